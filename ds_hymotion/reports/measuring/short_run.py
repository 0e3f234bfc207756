"""A short training inside a benchmark: its rank's mesh, its schedule, and its words kept in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.parallel.mesh import Mesh


def start_rank(port: int, rank: int = 0, ranks: int = 1) -> Mesh:
    """The mesh of a process that was spawned as rank ``rank``, on one thread."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    return Mesh.start()


def short_training(steps: int, **changes: Any) -> dict[str, Any]:
    """``hymotion.training`` of so many steps: a short warm-up, a cosine down, nothing saved on the way."""
    section = {"max_steps": steps, "warmup_steps": min(20, steps), "schedule": "cosine", "min_lr_ratio": 0.05}
    return {**section, "ema_decay": 0.0, "save_steps": 0, **changes}


@contextmanager
def words_to(path: Path) -> Iterator[None]:
    """Append what is printed to a file, in folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as said, redirect_stdout(said), redirect_stderr(said):
        yield

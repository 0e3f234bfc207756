"""A training run as a job for rank processes, and what tests compare of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ds_hymotion.config.json_files import set_by_path
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.training.checkpoint import newest_checkpoint, read_kind
from ds_hymotion.training.run import TrainingRun
from tests.corpora import SMALL

SGD = {"type": "SGD", "params": {"lr": 1.0}}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-3, "weight_decay": 0.01}}


def run_settings(weights: Path | None = None, **changes: Any) -> dict[str, Any]:
    """A configuration of the small network; ``changes`` are values by key with ``__`` for dots."""
    settings: dict[str, Any] = {
        "train_batch_size": 4,
        "optimizer": copy.deepcopy(ADAMW),
        "zero_allow_untested_optimizer": True,
        "hymotion": {
            "model": {"preset": "tiny", **SMALL},
            "flow": {"time": "stratified", "condition_drop": 0.5},
            "training": {"max_steps": 2, "log_steps": 1, "ema_decay": 0.9, "joint_groups": "hip,knee:others"},
        },
    }
    if weights:
        settings["hymotion"]["model"]["init_from"] = str(weights)
    for key, value in changes.items():
        set_by_path(settings, key.replace("__", "."), value)
    return settings


def train(settings: dict[str, Any], corpus: Path, output: Path, resume: bool = False) -> None:
    """Run a training on this rank of the current process group."""
    config = RunConfig(settings, "test", ranks=dist.get_world_size())
    mesh = Mesh.current(model=config.shape.model, pipe=config.shape.pipe)
    output.mkdir(parents=True, exist_ok=True)
    TrainingRun(config, Corpus.open(corpus), output, mesh, output if resume else None).train()


def final_weights(run: Path, kind: str = "master") -> dict[str, torch.Tensor]:
    """Whole tensors of a run's newest checkpoint."""
    return dict(read_kind(newest_checkpoint(run), kind))


def logged(run: Path, key: str = "loss") -> list[float]:
    """One logged number of every step."""
    lines = (run / "log.jsonl").read_text().splitlines()
    return [entry[key] for entry in map(json.loads, lines) if entry["kind"] == "train"]


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference over all tensors of equal names."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def count_from_zero() -> None:
    """ZeRO-3 compares running numbers of modules over ranks; pooled processes have run different jobs before."""
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init

    (modules,) = DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__
    modules[0] = Init.param_id = 0

"""SIGKILL at any moment, also inside a save: a resumed run sees the clips and the losses of an unbroken one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.training.checkpoint import checkpoint_folders, newest_checkpoint
from tests.corpora import wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, logged, run_settings, train

EVERY = 3
LONGEST_WAIT_S = 0.05


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), list(range(30, 44)))


def train_until_killed(settings: dict[str, Any], corpus: Path, run: Path, when: str, wait: float) -> None:
    """Train, or go on training; at the second new step (``when`` = step) or at the next save this process dies."""
    before = len(lines(run))
    reached: dict[str, Callable[[], bool]] = {
        "step": lambda: len(lines(run)) >= before + 2,
        "save": lambda: any((run / "checkpoints").glob(".partial-*")),
    }

    def kill() -> None:
        while not reached[when]():
            time.sleep(0.0005)
        time.sleep(wait)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    train(settings, corpus, run, (run / "checkpoints" / "latest").is_file())
    time.sleep(60)


def lines(run: Path) -> list[str]:
    path = run / "log.jsonl"
    return path.read_text().splitlines() if path.is_file() else []


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_kills_at_any_moment(ranks: RankPool, corpus: Corpus, tmp_path: Path, kills: int) -> None:
    """Every third kill falls into a save. Steps enough that the run cannot end before the last kill."""
    steps = EVERY * (kills + 2)
    settings = run_settings(
        hymotion__training__max_steps=steps,
        hymotion__training__save_steps=EVERY,
        hymotion__gradient_sync={"others_every": 2, "check_steps": 4},
        zero_optimization={"stage": 1},
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ranks.run(2, train, settings, corpus.folder, whole)
    assert len(set(logged(whole, "clips"))) > 3, "the epochs' steps differ"
    moments = []
    for kill in range(kills):
        when, wait = "save" if kill % 3 == 1 else "step", random.uniform(0, LONGEST_WAIT_S / (1 + kill % 2))
        wait = wait if kill > 1 else 0.0  # one save at least is cut off
        moments.append((when, wait))
        with pytest.raises(AssertionError, match="died or hung"):
            ranks.run(2, train_until_killed, settings, corpus.folder, broken, when, wait)
        for partial in (broken / "checkpoints").glob(".partial-*"):
            partial.rename(broken / f"cut-off-{kill}")
        assert not checkpoint_folders(broken) or newest_checkpoint(broken).name < f"step-{steps:08d}"
    assert len(lines(broken)) < steps, moments
    ranks.run(2, train, settings, corpus.folder, broken, True)
    assert logged(broken, "clips") == logged(whole, "clips"), moments
    assert logged(broken) == logged(whole), moments
    for kind in ("master", "exp_avg", "exp_avg_sq", "ema"):
        a, b = final_weights(whole, kind), final_weights(broken, kind)
        assert all(torch.equal(a[name], b[name]) for name in a), (kind, moments)
    cut_off = len(list(broken.glob("cut-off-*")))
    print(f"{kills} kills, {cut_off} saves cut off")
    assert cut_off >= 1

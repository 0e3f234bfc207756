"""SIGKILL in mid-epoch: a resumed run sees the clips and the losses of an unbroken one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.training.checkpoint import newest_checkpoint
from tests.corpora import wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, logged, run_settings, train

STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), list(range(30, 44)))


def train_until_killed(settings: dict[str, Any], corpus: Path, run: Path, step: int) -> None:
    """Train, or go on training, and kill this process at some moment after ``step`` is logged."""

    def kill() -> None:
        while len(lines(run)) < step:
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.05))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    train(settings, corpus, run, (run / "checkpoints" / "latest").is_file())
    time.sleep(60)


def lines(run: Path) -> list[str]:
    path = run / "log.jsonl"
    return path.read_text().splitlines() if path.is_file() else []


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.full)])
def test_kills_in_mid_epoch(ranks: RankPool, corpus: Corpus, tmp_path: Path, kills: int) -> None:
    settings = run_settings(
        hymotion__training__max_steps=STEPS,
        hymotion__training__save_steps=3,
        hymotion__gradient_sync={"others_every": 2, "check_steps": 4},
        zero_optimization={"stage": 1},
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ranks.run(2, train, settings, corpus.folder, whole)
    assert len(set(logged(whole, "clips"))) > 3, "the epochs' steps differ"
    steps = sorted(random.sample(range(4, STEPS - 2), kills))
    for step in steps:
        with pytest.raises(AssertionError, match="died or hung"):
            ranks.run(2, train_until_killed, settings, corpus.folder, broken, step)
        assert newest_checkpoint(broken).name < f"step-{STEPS:08d}"
    ranks.run(2, train, settings, corpus.folder, broken, True)
    assert logged(broken, "clips") == logged(whole, "clips"), f"killed at {steps}"
    assert logged(broken) == logged(whole), f"killed at {steps}"
    a, b = final_weights(whole), final_weights(broken)
    assert all(torch.equal(a[name], b[name]) for name in a), f"killed at {steps}"

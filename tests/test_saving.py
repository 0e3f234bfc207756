"""When checkpoints are written beside the periodic ones, which of them stay, and what happens on a full disk."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.training.checkpoint import checkpoint_folders, newest_checkpoint
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.save_requests import SaveRequests
from tests.ranks import RankPool
from tests.runs import logged, run_settings, train

Usage = namedtuple("Usage", "total used free")


def touching(settings: dict[str, Any], corpus: Path, run: Path, touched: dict[int, str]) -> None:
    """Train; the first rank's machine sees files appear right after given steps."""
    check = TrainingRun._check_ranks

    def touch(self: TrainingRun) -> None:
        check(self)
        if self.step in touched and dist.get_rank() == 0:
            (run / touched[self.step]).touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "_check_ranks", touch)
        train(settings, corpus, run)


def steps(run: Path) -> list[int]:
    return [int(path.name[-8:]) for path in checkpoint_folders(run)]


def test_a_touched_file_saves_at_the_next_step_and_another_also_ends_the_run(
    ranks: RankPool, corpus: Corpus, tmp_path: Path
) -> None:
    settings = run_settings(
        hymotion__training__max_steps=9, hymotion__training__save_steps=0, hymotion__training__keep_last=9
    )
    (tmp_path / "save_quit").touch()  # of an earlier run
    ranks.run(2, touching, settings, corpus.folder, tmp_path, {2: "save", 5: "save_quit"})
    assert steps(tmp_path) == [3, 6]
    assert not (tmp_path / "save").exists() and not (tmp_path / "save_quit").exists()
    assert len(logged(tmp_path)) == 6 and not (tmp_path / "weights.safetensors").exists()
    ranks.run(2, train, settings, corpus.folder, tmp_path, True)
    assert steps(tmp_path) == [3, 6, 9] and len(logged(tmp_path)) == 9


def test_the_newest_and_every_so_many_stay(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    settings = run_settings(
        hymotion__training__max_steps=11,
        hymotion__training__save_steps=1,
        hymotion__training__keep_last=2,
        hymotion__training__keep_every=4,
    )
    ranks.run(1, train, settings, corpus.folder, tmp_path)
    assert steps(tmp_path) == [4, 8, 10, 11]


def crowded(settings: dict[str, Any], corpus: Path, run: Path, full_at: list[int]) -> str:
    """Train on a disk that is full at the given saves; returns what the run ended with."""
    saves = 0

    def usage(_: Path) -> Usage:
        nonlocal saves
        saves += 1
        return Usage(1, 1, 1000 if saves in full_at else 1 << 40)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", usage)
        try:
            train(settings, corpus, run)
        except UserError as error:
            return str(error)
    return ""


def test_a_full_disk_costs_a_save_and_ends_a_run_only_at_its_last(
    ranks: RankPool, corpus: Corpus, tmp_path: Path
) -> None:
    settings = run_settings(
        hymotion__training__max_steps=4, hymotion__training__save_steps=1, hymotion__training__keep_last=9
    )
    assert ranks.run(2, crowded, settings, corpus.folder, tmp_path / "a", [2]) == ["", ""]
    assert steps(tmp_path / "a") == [1, 3, 4] and len(logged(tmp_path / "a")) == 4
    said = ranks.run(2, crowded, settings, corpus.folder, tmp_path / "b", [3, 4])
    assert said[0] == said[1] and "\n" not in said[0]
    assert "step-00000004: not saved: " in said[0] and " bytes needed, 1,000 bytes free" in said[0]
    assert "earlier checkpoints are untouched" in said[0]
    assert steps(tmp_path / "b") == [1, 2] and newest_checkpoint(tmp_path / "b").name == "step-00000002"
    assert not list((tmp_path / "b" / "checkpoints").glob(".partial*"))


def test_a_file_that_cannot_be_removed_counts_once(tmp_path: Path) -> None:
    requests = SaveRequests(tmp_path, active=True)
    assert requests.votes() == [0.0, 0.0]
    (tmp_path / "save").mkdir()
    assert requests.votes() == [1.0, 0.0]
    requests.take()
    assert requests.votes() == [0.0, 0.0]
    (tmp_path / "save_quit").touch()
    assert requests.votes() == [1.0, 1.0] and SaveRequests(tmp_path, active=False).votes() == [0.0, 0.0]
    requests.take()
    assert requests.votes() == [0.0, 0.0] and not (tmp_path / "save_quit").exists()

"""Checkpoints that were damaged, do not fit, or cannot be written: one line each, and the one before is untouched."""

from __future__ import annotations

import json
import logging
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.training.checkpoint import checkpoint_folders, newest_checkpoint
from tests.corpora import wavy_corpus
from tests.ranks import RankPool
from tests.runs import run_settings, train

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def run(ranks: RankPool, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of its steps 1 and 2."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    ranks.run(1, train, run_settings(hymotion__training__save_steps=1), corpus.folder, folder)
    assert [path.name for path in checkpoint_folders(folder)] == ["step-00000001", "step-00000002"]
    assert (folder / "checkpoints" / "latest").read_text().strip() == "step-00000002"
    return folder


@pytest.fixture
def damaged(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", ["master-00000.safetensors", "exp_avg_sq-00000.safetensors", "state.json"])
def test_a_damaged_file_names_itself_and_the_checkpoint_before(
    damaged: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], name: str
) -> None:
    older, newer = checkpoint_folders(damaged)
    before = contents(older)
    harm(newer / name)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(damaged) == older
    (said,) = caplog.messages
    assert str(newer / name) in said and said.endswith(str(older)) and "\n" not in said
    assert contents(older) == before
    harm(older / name)
    with pytest.raises(UserError, match="no intact checkpoint") as caught:
        newest_checkpoint(damaged)
    assert str(older / name) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_manifest_or_one_that_lies(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    older, newer = checkpoint_folders(damaged)
    for harm in ("{}", '{"files": {"../../log.jsonl": {"bytes": 1, "sha256": ""}}}', "\x00", None):
        caplog.clear()
        (newer / "manifest.json").unlink(missing_ok=True) if harm is None else (newer / "manifest.json").write_text(
            harm
        )
        assert newest_checkpoint(damaged) == older
        assert str(newer) in caplog.text


def refusal(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    """What a resumed run that must be refused says."""
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output, True)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hymotion__model__feat_dim": 32}, "motion_transformer"),
        ({"hymotion__model__num_layers": 6}, "blocks"),
        ({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, "exp_avg"),
    ],
)
def test_a_network_that_does_not_fit(
    ranks: RankPool, corpus: Corpus, damaged: Path, changes: dict[str, Any], said: str
) -> None:
    before = contents(checkpoint_folders(damaged)[1])
    settings = run_settings(hymotion__training__max_steps=3, **changes)
    (line,) = ranks.run(1, refusal, settings, corpus.folder, damaged)
    assert said in line and str(damaged) in line and "\n" not in line
    assert contents(checkpoint_folders(damaged)[1]) == before


def test_another_representation(ranks: RankPool, damaged: Path, tmp_path: Path) -> None:
    other = wavy_corpus(tmp_path / "other", [20, 30, 40, 50], representation="hymotion-201")
    (line,) = ranks.run(1, refusal, run_settings(hymotion__training__max_steps=3), other.folder, damaged)
    assert "representation" in line and "219" in line and "201" in line and "\n" not in line


def refusal_on_a_full_disk(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    """What a resumed run says that finds a disk with room for the tensors of its next save, and no more."""
    needed = sum(path.stat().st_size for path in checkpoint_folders(output)[-1].glob("*.safetensors"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Usage(needed, 0, needed))
        return refusal(settings, corpus, output)


def test_a_full_disk(ranks: RankPool, corpus: Corpus, damaged: Path) -> None:
    before = [contents(folder) for folder in checkpoint_folders(damaged)]
    settings = run_settings(hymotion__training__max_steps=3)
    for line in ranks.run(2, refusal_on_a_full_disk, settings, corpus.folder, damaged):
        assert "step-00000003: not saved" in line and "bytes free" in line and "\n" not in line
    assert [contents(folder) for folder in checkpoint_folders(damaged)] == before
    assert not list((damaged / "checkpoints").glob(".partial-*"))


def test_a_disk_that_fills_while_saving(ranks: RankPool, corpus: Corpus, damaged: Path) -> None:
    """The third file fails, as a full disk fails it."""
    before = [contents(folder) for folder in checkpoint_folders(damaged)]
    (line,) = ranks.run(1, refusal_while_saving, run_settings(hymotion__training__max_steps=3), corpus.folder, damaged)
    assert "step-00000003: not saved" in line and "No space left" in line
    assert [contents(folder) for folder in checkpoint_folders(damaged)] == before
    assert not list((damaged / "checkpoints").glob(".partial-*"))
    ranks.run(1, train, run_settings(hymotion__training__max_steps=3), corpus.folder, damaged, True)
    state = json.loads((newest_checkpoint(damaged) / "state.json").read_text())
    assert state["step"] == 3


def refusal_while_saving(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    from ds_hymotion.training import checkpoint_folder

    save, saved = checkpoint_folder.save_tensors, []

    def save_until_full(path: Path, tensors: dict[str, Any]) -> None:
        saved.append(path)
        if len(saved) == 3:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device", str(path))
        save(path, tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_folder, "save_tensors", save_until_full)
        return refusal(settings, corpus, output)

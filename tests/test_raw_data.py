"""Motion files as they are: prepared by the first rank, waited for by the others, never in place of another corpus."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from ds_hymotion.data.corpus import HEADER
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.training import raw_data
from ds_hymotion.training.raw_data import corpus_of
from tests.corpora import wavy_motion

SPACE = "smpl24-rotmat"


@pytest.fixture(scope="module")
def motions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("motions")
    for number in range(3):
        write_amass(folder / f"take{number}_poses.npz", wavy_motion(30 + number, number))
    return folder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("POLL_S", 0.01), ("BEAT_S", 0.05), ("PATIENCE_S", 1.0), ("START_S", 1.0)):
        monkeypatch.setattr(raw_data, name, value)


def test_motions_are_prepared_once_and_not_beside_a_run_of_others(motions: Path, tmp_path: Path) -> None:
    other = shutil.copytree(motions, tmp_path / "other")
    run = tmp_path / "run"
    corpus = corpus_of(str(motions), run, SPACE, "null")
    made = (corpus / HEADER).stat().st_mtime_ns
    assert corpus_of(str(motions), run, SPACE, "null") == corpus == run / "corpus"
    assert (corpus / HEADER).stat().st_mtime_ns == made
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{corpus} was made of {motions}; give that, --data_dir {corpus}, or another"):
        corpus_of(str(other), run, SPACE, "null")
    (run / "corpus-made-of.json").unlink()
    with pytest.raises(UserError, match="was made of something else; give that"):
        corpus_of(str(motions), run, SPACE, "null")
    assert (corpus / HEADER).stat().st_mtime_ns == made


def test_another_rank_hears_of_a_failure(
    motions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    with pytest.raises(UserError, match="no caption.*give --unconditional"):
        corpus_of(str(motions), tmp_path / "alone", SPACE, "hashed")
    assert not (tmp_path / "alone").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="no caption"):
        corpus_of(str(motions), tmp_path, SPACE, "hashed")
    marker = tmp_path / "corpus-made-of.json"
    failed = marker.read_text()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="rank 0 has not been heard of"):  # a failure of an earlier attempt
        corpus_of(str(motions), tmp_path, SPACE, "hashed")
    marker.unlink()
    threading.Timer(0.3, marker.write_text, (failed,)).start()
    with pytest.raises(UserError, match="not prepared by rank 0: .*no caption"):
        corpus_of(str(motions), tmp_path, SPACE, "hashed")


def test_a_failed_attempt_leaves_the_corpus_before_it(motions: Path, tmp_path: Path) -> None:
    corpus = corpus_of(str(motions), tmp_path, SPACE, "null")
    other = shutil.copytree(motions, tmp_path / "other")
    with pytest.raises(UserError, match="no caption"):
        corpus_of(str(other), tmp_path, SPACE, "hashed")
    assert corpus_of(str(motions), tmp_path, SPACE, "null") == corpus


def test_another_rank_does_not_wait_for_ever(
    motions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """Neither where nothing comes, nor where the marker stands and the corpus is gone."""
    corpus = corpus_of(str(motions), tmp_path, SPACE, "null")
    monkeypatch.setenv("RANK", "1")
    assert corpus_of(str(motions), tmp_path, SPACE, "null") == corpus
    shutil.rmtree(corpus)
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="rank 0 has not been heard of for 1 s; give all ranks the same"):
            corpus_of(str(motions), place, SPACE, "null")


def test_the_first_rank_beats_while_it_prepares(tmp_path: Path, impatient: None) -> None:
    marker = tmp_path / "corpus-made-of.json"
    with raw_data._beating(marker):
        seen = set()
        for _ in range(30):
            seen.add(json.loads(marker.read_text())["preparing"])
            time.sleep(0.01)
    assert len(seen) > 2


def test_an_output_that_is_a_file_is_named(motions: Path, tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match="--output_dir .*run: cannot be written"):
        corpus_of(str(motions), tmp_path / "run", SPACE, "null")

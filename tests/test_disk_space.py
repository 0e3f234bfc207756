"""A corpus that will not fit is refused before the work on it starts."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.disk_space import RESERVE, corpus_bytes, require_disk_space
from ds_hymotion.data.sources import Clip, Recording
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import recorded_seconds
from ds_hymotion.formats.humanml3d import Caption, IndexRow
from tests.damaged_files import save, smplh
from tests.motion_files import run, write_motion

Usage = namedtuple("Usage", "total used free")


def recording(path: Path, *clips: Clip) -> Recording:
    return Recording(path, path.name, path.stat().st_size, clips or (Clip("a", (Caption("x"),)),))


@pytest.fixture
def tens(tmp_path: Path) -> list[Path]:
    """Recordings of ten seconds at 60, 120 and 120 fps, the last without its second half."""
    paths = [tmp_path / f"{name}.npz" for name in ("a", "b", "c")]
    for path, rate in zip(paths, (60, 120, 120), strict=True):
        np.savez(path, **smplh(rate * 10, rate=rate))
    paths[2].write_bytes(paths[2].read_bytes()[:500_000])
    return paths


def test_lengths_come_from_headers(tens: list[Path], tmp_path: Path) -> None:
    assert [recorded_seconds(path) for path in tens[:2]] == [10.0, 10.0]
    root = np.zeros((30, 3))
    split = save(tmp_path / "s.npz", poses=None, root_orient=root, pose_body=np.zeros((30, 63)), trans=root)
    assert recorded_seconds(split) == 0.5
    for arrays in ({"poses": None}, {"poses": np.zeros(())}, {"mocap_framerate": 0.0}):
        with pytest.raises(UserError):
            recorded_seconds(save(tmp_path / "n.npz", **arrays))


def test_what_a_corpus_will_need(tens: list[Path]) -> None:
    assert corpus_bytes([recording(tens[0])], 1000) == 10_000
    both = corpus_bytes([recording(tens[0]), recording(tens[1])], 1000)
    assert both == 20_000
    assert corpus_bytes([recording(path) for path in tens], 1000) > both  # the damaged one by its size
    window = IndexRow("./pose_data/a.npy", 20, 60, "x")
    assert corpus_bytes([recording(tens[0], Clip("a", (Caption("x"),), window))], 1000) == 2_000
    spans = (Caption("x"), Caption("y"), Caption("z", 1.0, 2.5), Caption("u", 1.0, 2.5), Caption("v", 0.0, 1e9))
    assert corpus_bytes([recording(tens[0], Clip("a", spans))], 1000) == 10_000 + 1_500 + 10_000


def test_the_estimate_is_near_the_truth(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        write_motion(data, f"walk{number}", "a walk", frames=300 + 40 * number, fps=60.0, seed=number)
    run(data, tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    truth = sum(sample.frames for sample in corpus.samples) * 219 * 4
    found = corpus_bytes([recording(path) for path in sorted(data.glob("*.npz"))], 30 * 219 * 4)
    assert found == pytest.approx(truth, rel=0.05)


def test_a_disk_that_is_too_small_is_refused_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_motion(data, "walk", "a walk", frames=600, fps=60.0)
    asked: list[Path] = []

    def usage(path: Path) -> Usage:
        asked.append(path)
        return Usage(10**12, 0, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    free = RESERVE + 10 * 30 * 219 * 4 - 1000
    with pytest.raises(UserError, match=r"c will need about 64.25 MiB, its disk has 64.25 MiB free: free some, choose"):
        run(data, tmp_path / "deep" / "c")
    assert not list(tmp_path.glob("deep/c*"))
    free += 1000
    run(data, tmp_path / "deep" / "c")
    assert set(asked) == {tmp_path / "deep"}


def test_what_lies_there_already_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, RESERVE + 10))
    require_disk_space(tmp_path / "c", needed=1000, present=990)
    with pytest.raises(UserError, match="will need about 64 MiB"):
        require_disk_space(tmp_path / "c", needed=1000, present=989)

"""How fast motions are prepared, on one core and on two, and in how much memory."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from ds_hymotion.reports.measuring.process_tree import Run, measure
from ds_hymotion.reports.measuring.row import Row

RATE = 120.0
"""Frames per second of the files that are made: AMASS's usual rate."""
_SCRIPT = Path(__file__).resolve().parents[3] / "launch" / "prepare.py"


def run(files: int = 1000, seconds: float = 10.0, workers: int = 2, folder: str = "") -> list[Row]:
    """Generates SMPL-H recordings at 120 fps and prepares them with launch/prepare.py, with 1 worker and with more.

    Start and end of the script are part of every time. Options: how many files, how long each, how many workers in
    the second run, and a folder to work in (by default the system's for temporary files).
    """
    with tempfile.TemporaryDirectory(dir=folder or None) as work:
        data = Path(work) / "data"
        data.mkdir()
        for number in range(files):
            write_recording(data / f"clip{number:05d}_poses.npz", number, seconds)
        single, several = (_prepare(data, Path(work) / f"corpus{count}", count) for count in (1, workers))
    given = {"files": files, "seconds": seconds, "fps": RATE}
    rows = []
    for count, found in ((1, single), (workers, several)):
        conditions = {**given, "workers": count}
        rate = files / found.seconds
        one = files / single.seconds if count > 1 else None
        mebibytes = found.memory / 2**20
        rows += [
            Row("rate", rate, "files/s", one, None, conditions),
            Row("rate per core", rate / count, "files/s", one, None, conditions),
            Row("motion per second", rate * seconds, "s/s", None, None, conditions),
            Row("wall clock", found.seconds, "s", single.seconds if count > 1 else None, None, conditions),
            Row("processor time", found.cpu_seconds, "s", single.cpu_seconds if count > 1 else None, None, conditions),
            Row("peak memory, all processes", mebibytes, "MiB", None, None, conditions),
            Row("peak memory, largest process", found.largest / 2**20, "MiB", None, None, conditions),
        ]
    return rows


def write_recording(path: Path, seed: int, seconds: float) -> None:
    """A smooth recording of no meaning in SMPL-H's layout, uncompressed as AMASS's are."""
    random = np.random.default_rng(seed)
    frames = max(2, round(seconds * RATE))
    time = np.arange(frames)[:, None] / RATE
    poses = random.normal(0, 0.3, 156) * np.sin(time * random.uniform(0.5, 4, 156) + random.uniform(0, 6, 156))
    path_along = 0.3 * np.cumsum(random.normal(0, 1 / RATE, (frames, 3)), axis=0) + [0, 0, 1]
    np.savez(
        path,
        poses=poses,
        trans=path_along,
        betas=np.zeros(16),
        dmpls=np.zeros((frames, 8)),
        gender=np.array("neutral"),
        mocap_framerate=np.array(RATE),
    )
    path.with_suffix(".txt").write_text(f"a person moves in way {seed}\n", encoding="utf-8")


def _prepare(data: Path, out: Path, workers: int) -> Run:
    command = [sys.executable, str(_SCRIPT), "--data_dir", str(data), "--out", str(out), "--workers", str(workers)]
    return measure(command, {"OMP_NUM_THREADS": "1"})

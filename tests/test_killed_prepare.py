"""The real script killed at random moments: what it leaves is taken up, and the corpus is the same to the byte."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ds_hymotion.data.publishing import partial_folder
from tests.commands import ROOT, cpu_environment, run_command
from tests.motion_files import content, write_motion

RECORDINGS = 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small recordings, some of them damaged."""
    folder = tmp_path_factory.mktemp("motions")
    whole = write_motion(folder, "whole", "a whole").read_bytes()
    for number in range(RECORDINGS - 1):
        path = folder / f"walk{number:03d}.npz"
        path.write_bytes(whole if number % 7 else whole[:5000])
        path.with_suffix(".txt").write_text(f"walk number {number}, then turn left")
    return folder


def command(data: Path, out: Path) -> list[str]:
    return [sys.executable, "launch/prepare.py", "--data_dir", str(data), "--out", str(out), "--workers", "2",
            "--mirror", "--shard_mb", "0.3", "--encode_text", "hashed"]  # fmt: skip


def started(data: Path, out: Path) -> subprocess.Popen[bytes]:
    """The script in a process group of its own."""
    return subprocess.Popen(
        command(data, out), cwd=ROOT, env=cpu_environment(out.parent), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def work_begins(process: subprocess.Popen[bytes]) -> float:
    """Wait until both workers are there; when that was."""
    parent = psutil.Process(process.pid)
    while process.poll() is None and len(parent.children(recursive=True)) < 3:
        time.sleep(0.01)
    return time.monotonic()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the script and all processes of its group at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.full)])
def test_killed_at_random_it_ends_with_the_same_bytes(data: Path, tmp_path: Path, kills: int) -> None:
    process = started(data, tmp_path / "whole")
    began = work_begins(process)
    assert process.wait(200) == 0
    length = time.monotonic() - began
    wanted = content(tmp_path / "whole")
    assert sum(name.startswith("motion-") for name in wanted) >= 5

    moments = random.Random(kills)
    out, resumed, killed = tmp_path / "c", 0, 0
    while killed < kills:
        process = started(data, out)
        try:
            work_begins(process)
            process.wait(moments.uniform(0, length))
            shutil.rmtree(out)  # it was too quick: begin anew
        except subprocess.TimeoutExpired:
            killed += 1
        finally:
            end(process)
        resumed += any(partial_folder(out).glob("chunk-*.json"))
    done = run_command(command(data, out), tmp_path)
    assert done.returncode == 0, done.stderr
    assert content(out) == wanted
    assert not partial_folder(out).exists() and not list(tmp_path.glob(".c*"))
    print(f"killed {killed} times in {length:.1f} s, {resumed} times with work done")


@pytest.mark.timeout(120)
def test_workers_end_when_their_parent_is_killed(data: Path, tmp_path: Path) -> None:
    process = started(data, tmp_path / "c")
    parent = psutil.Process(process.pid)
    try:
        deadline = time.monotonic() + 60
        while not any(partial_folder(tmp_path / "c").glob("chunk-*.json")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        children = parent.children(recursive=True)
        process.kill()
        process.wait()
        assert len(children) >= 3  # two workers and the process that they are copies of
        while any(lives(child) for child in children):
            assert time.monotonic() < deadline, children
            time.sleep(0.05)
    finally:
        end(process)

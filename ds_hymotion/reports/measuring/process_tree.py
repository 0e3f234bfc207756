"""A command with all its child processes: how long it runs and how much memory they take together."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from ds_hymotion.errors import UserError

_INTERVAL = 0.05


@dataclass(frozen=True)
class Run:
    """Wall-clock seconds, CPU seconds of all processes (short of the last 50 ms of each), and peak memory in bytes.

    ``memory`` is the largest sum of resident sets (pages that processes share count once for each), ``largest`` the
    largest resident set of a single process.
    """

    seconds: float
    cpu_seconds: float
    memory: int
    largest: int


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command to its end, looking at its processes every 50 ms.

    Raises:
        UserError: it fails, with the last line that it said.
    """
    began = time.perf_counter()
    memory = largest = 0
    cpu: dict[int, float] = {}
    with tempfile.TemporaryFile("w+") as errors:  # a pipe would fill, and the command wait
        everything = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, env=everything, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            root = psutil.Process(process.pid)
            while process.poll() is None:
                sizes = _look(root, cpu)
                memory, largest = max(memory, sum(sizes)), max([largest, *sizes])
                time.sleep(_INTERVAL)
        finally:
            process.kill()
            process.wait()
        seconds = time.perf_counter() - began
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if process.returncode:
        raise UserError(f"{' '.join(command[:3])} ended with {process.returncode}: {said[-1] if said else 'nothing'}")
    return Run(seconds, sum(cpu.values()), memory, largest)


def _look(root: psutil.Process, cpu: dict[int, float]) -> list[int]:
    """The resident sets of a process and its descendants; ``cpu`` keeps the seconds that each has used so far."""
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
    sizes = []
    for process in processes:
        try:
            times = process.cpu_times()
            cpu[process.pid] = times.user + times.system
            sizes.append(process.memory_info().rss)
        except psutil.Error:
            continue  # it has just ended
    return sizes

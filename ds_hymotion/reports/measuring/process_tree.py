"""A command with all its child processes: how long it runs and how much memory they take together."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from ds_hymotion.errors import UserError

_INTERVAL = 0.05


@dataclass(frozen=True)
class Run:
    """Wall-clock seconds, CPU seconds of all processes, and peak memory in bytes.

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
    before = os.times()
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        memory = largest = 0
        root = psutil.Process(process.pid)
        while process.poll() is None:
            sizes = _resident(root)
            memory, largest = max(memory, sum(sizes)), max([largest, *sizes])
            time.sleep(_INTERVAL)
        seconds = time.perf_counter() - began
        assert process.stderr is not None
        said = process.stderr.read().strip().splitlines()
    if process.returncode:
        raise UserError(f"{' '.join(command[:3])} ended with {process.returncode}: {said[-1] if said else 'nothing'}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(seconds, cpu, memory, largest)


def _resident(root: psutil.Process) -> list[int]:
    sizes = []
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
    for process in processes:
        try:
            sizes.append(process.memory_info().rss)
        except psutil.Error:
            continue  # it has just ended
    return sizes

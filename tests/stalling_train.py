"""launch/train.py, in which one rank sleeps in a step: STALL is rank:step:where, where is step, data or frozen.

A frozen process is stopped as a whole, until somebody wakes it.
"""

from __future__ import annotations

import os
import runpy
import signal
import time
from collections.abc import Callable
from typing import Any

from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.errors import command_line
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.training import watchdog
from tests.conftest import ROOT


def sleep() -> None:
    time.sleep(1000)


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stall(owner: Any, name: str, due: Any, rest: Callable[[], None] = sleep) -> None:
    """Replace a method by one that first rests, by default for good, where ``due`` of its arguments."""
    original = getattr(owner, name)

    def replaced(self: Any, *arguments: Any) -> Any:
        if due(*arguments):
            rest()
        return original(self, *arguments)

    setattr(owner, name, replaced)


def main() -> None:
    rank, step, where = os.environ["STALL"].split(":")
    if where == "frozen":
        watchdog.TALK_S = 2.0
    if os.environ.get("RANK", "0") == rank and where in ("step", "frozen"):
        rest = freeze if where == "frozen" else sleep
        stall(DataEngine, "begin_step", lambda number, *_: number + 1 == int(step), rest)
    if os.environ.get("RANK", "0") == rank and where == "data":
        calls = iter(range(10**9))
        stall(BatchMaker, "make", lambda *_: next(calls) + 1 == int(step))
    runpy.run_path(str(ROOT / "launch" / "train.py"))["main"]()


if __name__ == "__main__":
    command_line(main)

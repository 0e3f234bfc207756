"""launch/train.py, in which one rank sleeps in a step: STALL is rank:step:where, where is step or data."""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.errors import command_line
from ds_hymotion.parallel.engine import DataEngine
from tests.conftest import ROOT


def stall(owner: Any, name: str, due: Any) -> None:
    """Replace a method by one that sleeps for good where ``due`` of its arguments."""
    original = getattr(owner, name)

    def replaced(self: Any, *arguments: Any) -> Any:
        if due(*arguments):
            time.sleep(1000)
        return original(self, *arguments)

    setattr(owner, name, replaced)


def main() -> None:
    rank, step, where = os.environ["STALL"].split(":")
    if os.environ.get("RANK", "0") == rank and where == "step":
        stall(DataEngine, "begin_step", lambda number, *_: number + 1 == int(step))
    if os.environ.get("RANK", "0") == rank and where == "data":
        calls = iter(range(10**9))
        stall(BatchMaker, "make", lambda *_: next(calls) + 1 == int(step))
    runpy.run_path(str(ROOT / "launch" / "train.py"))["main"]()


if __name__ == "__main__":
    command_line(main)

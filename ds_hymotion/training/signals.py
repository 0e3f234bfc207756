"""Requests to stop, taken at step boundaries: a handler only raises a flag, ranks agree on it later."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import psutil


class StopRequest:
    """Collects SIGTERM, SIGINT and SIGHUP (a closed terminal), and the death of DeepSpeed's launcher.

    A second SIGINT ends the process at once.

    Under that launcher SIGTERM reaches the first rank alone, which is killed 30 s later: the flag must travel with the
    next step's own reduction, and nothing may wait inside the handler. A signal to the ``deepspeed`` command itself
    ends that command and reaches no rank at all, so each rank watches whether it still lives.
    """

    def __init__(self) -> None:
        self._signal: str | None = None
        self._previous: dict[int, Any] = {}
        self._command = _deepspeed_command()

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def reason(self) -> str | None:
        """What asks this rank to stop, or None."""
        if self._signal is None and self._command is not None and not _lives(self._command):
            return "the end of the deepspeed command"
        return self._signal

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _deepspeed_command() -> psutil.Process | None:
    """The ``deepspeed`` command above the launcher that started this rank, if there is one."""
    try:
        launcher = psutil.Process().parent()
        if launcher is None or "deepspeed.launcher.launch" not in launcher.cmdline():
            return None
        command = launcher.parent()
        return command if command is not None and any("deepspeed" in word for word in command.cmdline()) else None
    except psutil.Error:
        return None

"""What a run says while it runs: a progress bar, ``log.jsonl``, and DeepSpeed's monitors."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import write_text
from ds_hymotion.parallel.engine import DataEngine


def announce(text: str) -> None:
    """Print a line before a run's log exists, on the first rank only."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


class RunLog:
    """Writes on the first rank only; every other rank's log is silent.

    ``log.jsonl`` holds one object per logged step, with floats in full precision. On resume the lines after the
    checkpoint's step are cut off, so that the file reads like an unbroken run's. Where it cannot be written any more
    (a full disk), or a monitor fails, that is said once and the run goes on without.

    Raises:
        UserError: on every rank alike, where the file cannot be begun.
    """

    def __init__(self, run: Path, engine: DataEngine, first_step: int, max_steps: int) -> None:
        self.engine = engine
        self.active = engine.mesh.is_first
        self._bar: tqdm[Any] | None = None
        self._stream: IO[str] | None = None
        self._started = time.monotonic()
        self._frames = 0
        self._monitored = True
        engine.mesh.on_first(lambda: self._begin(run / "log.jsonl", first_step))
        if self.active:
            pace = 1.0 if sys.stderr.isatty() else 30.0  # a file keeps every picture of the bar
            self._bar = tqdm(total=max_steps, initial=first_step, unit="step", file=sys.stderr, mininterval=pace)

    def _begin(self, path: Path, first_step: int) -> None:
        try:
            write_text(path, "".join(_lines_until(path, first_step) if first_step else []))
            self._stream = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); make room, or give another --output_dir"
            ) from None

    def say(self, text: str) -> None:
        """Print a line (or lines) above the progress bar."""
        if self.active:
            with suppress(OSError):  # a terminal that was closed must not stop the run's last save
                tqdm.write(text, file=sys.stdout)
                sys.stdout.flush()

    def warn(self, text: str) -> None:
        """Print a line on stderr, on whichever rank has something to warn of."""
        with suppress(OSError):
            tqdm.write(text, file=sys.stderr)

    def tick(self, frames: int, loss: float | None) -> None:
        """Advance the bar by one step of ``frames`` real frames."""
        self._frames += frames
        if self._bar is not None:
            if loss is not None:
                rate = self._frames / max(1e-9, time.monotonic() - self._started)
                self._bar.set_postfix_str(f"loss {loss:.4f}, {rate:,.0f} frames/s", refresh=False)
            with suppress(OSError):
                self._bar.update(1)

    def record(self, step: int, values: Mapping[str, float | str], kind: str = "train") -> None:
        """Log the values of one step: all of them in ``log.jsonl``, the numbers in the monitors.

        Names with a slash, such as ``comm/allreduce_bytes``, stand in the monitors as they are.
        """
        if not self.active:
            return
        if self._stream is not None:
            try:
                self._stream.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
                self._stream.flush()
            except OSError as error:
                self._stream = None
                self.say(f"warning: log.jsonl ends before step {step}: {error.strerror}")
        title = "Train" if kind == "train" else "Eval"
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        events = [(name if "/" in name else f"{title}/{name}", value, step) for name, value in numbers.items()]
        if self._monitored:
            try:
                self.engine.write_events(events)
            except Exception as error:  # a monitor is somebody else's program, on a network or a disk
                self._monitored = False
                self.say(f"warning: no monitor hears of step {step} and later: {error}")

    def close(self) -> None:
        """Finish the bar and the file."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def read_log(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The logged steps of a run, oldest first."""
    path = run / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def _lines_until(path: Path, step: int) -> list[str]:
    if not path.is_file():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            continue
    return kept

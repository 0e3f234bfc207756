"""What a preparation has done so far, in numbered files that a killed run leaves for the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ds_hymotion.formats.tensors import read_json, write_json


class Chunks:
    """``chunk-00000.json`` …: each has the rows and notes of some jobs in turn, and the number of the next job.

    They are read when they are asked for, so that a corpus of any size needs no memory here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def append(self, next_job: int, rows: Sequence[Any], notes: Sequence[Any]) -> None:
        """Write one; with it, its jobs count as done."""
        write_json(self._file(self.count), {"next_job": next_job, "rows": list(rows), "notes": list(notes)})
        self.count += 1

    def take_up(self) -> Iterator[dict[str, Any]]:
        """Those that lie in the folder, each being counted as it is given."""
        while self._file(self.count).exists():
            self.count += 1
            yield self._read(self.count - 1)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all chunks."""
        for chunk in range(self.count):
            yield from self._read(chunk)["rows"]

    def notes(self) -> Iterator[dict[str, Any]]:
        """The notes of all chunks."""
        for chunk in range(self.count):
            yield from self._read(chunk)["notes"]

    def _file(self, chunk: int) -> Path:
        return self.folder / f"chunk-{chunk:05d}.json"

    def _read(self, chunk: int) -> dict[str, Any]:
        return read_json(self._file(chunk), f"delete {self.folder} and prepare again")

"""What a preparation left out, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Drop:
    """One thing that was left out.

    Attributes:
        source: the recording or file, relative to the data folder.
        id: the clip's name, or None where the whole file was left out.
        reason: what it is counted under.
        detail: what exactly was wrong.
    """

    source: str
    id: str | None
    reason: str
    detail: str

    def __str__(self) -> str:
        name = self.source if self.id is None else f"{self.id} ({self.source})"
        return f"{name}: {self.reason}" + (f", {self.detail}" if self.detail else "")

    def row(self) -> dict[str, Any]:
        return asdict(self)

"""What a preparation left out, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NO_CAPTION, NOT_FOUND, NOT_A_MOTION = "no caption", "recording not found", "not a motion"
UNREADABLE, WRONG_WINDOW, TOO_SHORT, TOO_LONG = "unreadable", "window outside the recording", "too short", "too long"
NOT_FINITE, TOO_FAR, GLITCH = "NaN or infinite values", "further than 1 km from the origin", "velocity outlier"
NOT_LISTED, EXCLUDED, NAME_TAKEN = "not in the split lists", "excluded", "another clip has this name"
MIRRORED = "mirrored copy"

INTENDED = (NOT_A_MOTION, EXCLUDED, MIRRORED)
"""Reasons that are no fault: ``--strict`` does not stop at them."""


@dataclass(frozen=True)
class Drop:
    """One thing that was left out.

    Attributes:
        file: the motion file below the data folder, or the path that a list of clips gives for it.
        source: the recording: the same without its ending.
        id: the clip's name, or None where the whole file was left out.
        reason: what it is counted under.
        detail: what exactly was wrong.
        captions: how many captions went with it.
    """

    file: str
    source: str
    id: str | None
    reason: str
    detail: str = ""
    captions: int = 0

    def __str__(self) -> str:
        name = self.file if self.id is None else f"{self.id} ({self.file})"
        return f"{name}: {self.reason}" + (f", {self.detail}" if self.detail else "")

    def row(self) -> dict[str, Any]:
        return asdict(self)

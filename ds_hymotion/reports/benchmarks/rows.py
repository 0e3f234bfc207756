"""What every benchmark returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        figure: what was measured.
        value: how much, in ``unit``.
        against: what it is compared with, in words with its own number.
        ratio: value over that number, where there is one.
        conditions: sizes, ranks, precision, and whether it was measured or computed.
    """

    figure: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    conditions: str = ""

"""One measured figure, a table of them for people, and their JSON for programs."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import torch

_COLUMNS = ("figure", "value", "unit", "against", "ratio")


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        figure: what was measured.
        value: the number.
        unit: its unit; may be empty.
        against: the number it is compared with, in the same unit, if any.
        ratio: the comparison, by default ``value / against``.
        conditions: under which it was measured, as far as they differ from row to row.
    """

    figure: str
    value: float
    unit: str = ""
    against: float | None = None
    ratio: float | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ratio is None and self.against:
            object.__setattr__(self, "ratio", self.value / self.against)


def table(rows: Sequence[Row]) -> str:
    """The rows under each other, with their conditions at the end of the line."""
    cells = [list(_COLUMNS)]
    notes = ["conditions"]
    for row in rows:
        cells.append([row.figure, _number(row.value), row.unit, _number(row.against), _number(row.ratio)])
        notes.append(", ".join(f"{name} {value}" for name, value in row.conditions.items()))
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    left = (True, False, True, False, False)
    lines = []
    for line, note in zip(cells, notes, strict=True):
        words = [f"{cell:{'<' if side else '>'}{width}}" for cell, width, side in zip(line, widths, left, strict=True)]
        lines.append("  ".join([*words, note]).rstrip())
    return "\n".join(lines)


def as_json(benchmark: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The benchmark's name and rows; every row's conditions include the machine's."""
    machine = machine_conditions()
    return {
        "benchmark": benchmark,
        "rows": [{**asdict(row), "conditions": {**machine, **row.conditions}} for row in rows],
    }


def machine_conditions() -> dict[str, Any]:
    """What every figure depends on."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

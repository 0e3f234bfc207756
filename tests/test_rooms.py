"""The package's rooms: imports run downward, and the lower ones know no process group."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ds_hymotion"
ROOMS = ["motion", "formats", "text", "data", "metrics", "model", "flow", "parallel", "training", "reports"]
FREE = {"action_names", "arguments", "config", "errors", "randomness", "tiers"}
WITHOUT_GROUPS = ROOMS[: ROOMS.index("parallel")]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_itself_and_below(room: str) -> None:
    below = {*ROOMS[: ROOMS.index(room) + 1], *FREE, *({"generation"} if room == "reports" else ())}
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    for path in files:
        upward = [name for name in imports(path) if name.startswith("ds_hymotion.") and name.split(".")[1] not in below]
        assert not upward, f"{path.name} imports {upward}"


@pytest.mark.parametrize("room", WITHOUT_GROUPS)
def test_lower_rooms_know_no_process_group(room: str) -> None:
    for path in sorted((PACKAGE / room).rglob("*.py")):
        group = [name for name in imports(path) if name.startswith(("deepspeed", "torch.distributed"))]
        assert not group, f"{path.name} imports {group}"

"""JSON objects from files, and values in them by dotted key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ds_hymotion.errors import UserError


def read_json(path: str | Path) -> dict[str, Any]:
    """Parse a JSON object from a file, or raise a one-line :class:`UserError`."""
    path = Path(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give a DeepSpeed JSON such as ds_configs/cpu_tiny.json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); give a DeepSpeed JSON "
            "such as ds_configs/cpu_tiny.json"
        ) from None
    except json.JSONDecodeError as error:
        comma = " (is there a comma too many before it?)" if error.msg.startswith("Expecting property name") else ""
        raise UserError(f"{path}: not JSON: {error.msg} in line {error.lineno}{comma}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: must hold a JSON object, not a {type(raw).__name__}")
    return raw


def set_by_path(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set ``tree["a"]["b"] = value`` for key ``"a.b"``, making objects on the way."""
    *parents, last = key.split(".")
    for name in parents:
        if tree.get(name) is None:
            tree[name] = {}
        child = tree[name]
        if not isinstance(child, dict):
            raise UserError(f"{key}: {name} = {child!r} must be a JSON object")
        tree = child
    tree[last] = value

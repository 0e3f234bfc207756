"""A JSON object whose values are entries by name, read so that a damaged one costs itself alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_hymotion.formats.files import FormatError, read_bytes


def read_entries(path: str | Path) -> list[tuple[str, Any]]:
    """The (name, value) pairs of a JSON file's outermost object, in order.

    A name that occurs twice is here twice, where :func:`json.loads` would keep the last in silence.

    Raises:
        FormatError: the file is missing, unreadable, no JSON, or no object.
    """
    path = Path(path)
    try:
        value = json.loads(read_bytes(path).decode("utf-8-sig"), object_pairs_hook=_Pairs)
        entries = [(name, _plain(content)) for name, content in value.pairs] if isinstance(value, _Pairs) else None
    except UnicodeDecodeError as error:
        raise FormatError(path, "not UTF-8", f"byte {error.start}") from None
    except RecursionError:
        raise FormatError(path, "not JSON", "nested too deeply") from None
    except ValueError as error:
        raise FormatError(path, "not JSON", str(error)) from None
    if entries is None:
        raise FormatError(path, "not a JSON object of entries", f"but {type(value).__name__}")
    return entries


def text_of(entry: Mapping[str, Any], key: str) -> str:
    """The text under ``key`` on one line, "" where it is absent or null.

    Raises:
        ValueError: it is not a text, or one that UTF-8 cannot hold.
    """
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{key} {value!r} is not a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{key} {value!r} holds half a character") from None
    return " ".join(value.split())


def seconds_of(entry: Mapping[str, Any], key: str) -> float | None:
    """The number of seconds under ``key``, None where it is absent or null.

    Raises:
        ValueError: it is not a finite number of at least 0.
    """
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value) or value < 0:
        raise ValueError(f"{key} {value!r} is not a number of seconds")
    return float(value)


def span_of(entry: Mapping[str, Any], start_key: str, end_key: str) -> tuple[float, float] | None:
    """Start and end in seconds, None where both are absent.

    Raises:
        ValueError: one is absent or illegal, or the end does not come after the start.
    """
    start, end = seconds_of(entry, start_key), seconds_of(entry, end_key)
    if start is None and end is None:
        return None
    if start is None or end is None or end <= start:
        raise ValueError(f"{start_key} {start} to {end_key} {end} s is no span")
    return start, end


def path_of(entry: Mapping[str, Any], key: str) -> str:
    """A recording's path without its ending, with forward slashes and without a leading ``./``.

    Raises:
        ValueError: it is absent, or leads out of the data folder.
    """
    path = entry.get(key)
    if not isinstance(path, str) or "\0" in path:
        raise ValueError(f"{key} {path!r} is not a path")
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise ValueError(f"{key} {path!r} is not a path below the recordings' folder")
    for ending in (".npz", ".npy"):
        parts[-1] = parts[-1].removesuffix(ending)
    return "/".join(parts)


def items_of(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of objects under ``key``, empty where it is absent or null.

    Raises:
        ValueError: it is something else.
    """
    items = entry.get(key)
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{key} is not a list of objects")
    return items


def object_of(value: Any) -> Mapping[str, Any]:
    """The value as an object.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, dict):
        raise ValueError(f"it is no object but {type(value).__name__}")
    return value


class _Pairs:
    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {name: _plain(content) for name, content in value.pairs}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False

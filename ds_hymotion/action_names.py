"""Names of action types."""

from __future__ import annotations

from typing import Any

ACTION_TYPES = ("LOCOMOTION", "MANIPULATION", "GESTURE", "POSTURE", "BALANCE", "TRANSITION")
MOST_TYPES = 64


def check_names(names: Any) -> tuple[str, ...]:
    """Names of types as a tuple: 1 to 64 of them, different but for capitals, each a printable word without spaces.

    Raises:
        ValueError: they are not so.
    """
    if not isinstance(names, (list, tuple)) or not 1 <= len(names) <= MOST_TYPES:
        raise ValueError(f"names of action types are no list of 1 to {MOST_TYPES}")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > 64 or not name.isprintable() or " " in name:
            raise ValueError(f"{str(name)[:80]!r} is no name of an action type, such as LOCOMOTION")
    if len({name.lower() for name in names}) != len(names):
        raise ValueError(f"action types {' '.join(names)} name one twice")
    return tuple(names)

"""The collective or message that a rank called last, for the report on a run that stands still."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ds_hymotion.parallel.wrapped_calls import WrappedCalls

RECORDED = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all_single",
    "barrier",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
)
MESSAGES = ("send", "isend", "recv", "irecv")
MOST_SHAPES = 3


class CollectiveRecord:
    """Notes every call of the thread that entered it as a context: a name, a message and a count per group.

    A call inside a call, such as the backend's of torch.distributed, is not noted again.

    Attributes:
        counts: calls so far by the group's ranks; ranks of a group make the same calls, so one that is behind in its
            count keeps the others waiting.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, ...]] = Counter()
        self._last: tuple[str, tuple[Any, ...], Any, float] | None = None
        self._inside = False
        self._thread = 0
        self._ranks: dict[Any, tuple[int, ...]] = {}
        self._calls = WrappedCalls()

    def __enter__(self) -> CollectiveRecord:
        self._thread = threading.get_ident()
        self._calls.wrap_collectives((*RECORDED, *MESSAGES), self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.restore()

    def state(self) -> dict[str, Any]:
        """The last call and the counts as a JSON-able object; may be asked by another thread at any time."""
        counts = {",".join(map(str, ranks)): count for ranks, count in list(self.counts.items())}
        if self._last is None:
            return {"inside": False, "counts": counts}
        name, arguments, group, since = self._last
        return {
            "name": name,
            "message": _message(arguments),
            "ranks": list(self._ranks.get(group, ())),
            "inside": self._inside,
            "seconds": time.monotonic() - since,
            "counts": counts,
        }

    def _noted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            group = kwargs.get("group")
            if group is None:
                group = next((value for value in args if isinstance(value, dist.ProcessGroup)), None)
            if group not in self._ranks:
                self._ranks[group] = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
            # Shapes alone: a tensor kept here would live longer than its step.
            self._last = name, tuple(_shapes((*args, *kwargs.values()))), group, time.monotonic()
            if name not in MESSAGES:
                self.counts[self._ranks[group]] += 1
            self._inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False

        return noted


def _shapes(arguments: Any) -> list[tuple[tuple[int, ...], str]]:
    found: list[tuple[tuple[int, ...], str]] = []
    for value in arguments:
        if torch.is_tensor(value):
            found.append((tuple(value.shape), str(value.dtype).removeprefix("torch.")))
        elif isinstance(value, (list, tuple)) and value and torch.is_tensor(value[0]):
            found.extend((tuple(part.shape), str(part.dtype).removeprefix("torch.")) for part in value[:MOST_SHAPES])
    return found


def _message(shapes: tuple[tuple[tuple[int, ...], str], ...]) -> str:
    told = " ".join(f"{list(shape)} {dtype}" for shape, dtype in shapes[:MOST_SHAPES])
    return told + (" ..." if len(shapes) > MOST_SHAPES else "")

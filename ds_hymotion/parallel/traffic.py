"""Bytes that really travel: every collective and message of a run, counted where it is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ds_hymotion.parallel.wrapped_calls import WrappedCalls

# The argument that holds the whole message, by function name, in torch.distributed and in DeepSpeed's backend alike.
MESSAGE = {
    "all_reduce": 0,
    "reduce": 0,
    "broadcast": 0,
    "all_gather": 0,
    "all_gather_into_tensor": 0,
    "all_gather_single": 0,
    "gather": 0,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "reduce_scatter_single": 1,
    "all_to_all_single": 1,
    "send": 0,
    "isend": 0,
}
GRADIENTS, WEIGHTS, STAGES, CONTROL, DISPATCH = "gradients", "weights", "stages", "control", "dispatch"
# What a region of that purpose sends on its own account; anything else in it, such as a norm, is control.
PURPOSES = {
    GRADIENTS: ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    STAGES: ("all_reduce",),
    WEIGHTS: ("all_gather", "all_gather_into_tensor", "all_gather_single", "broadcast"),
}


class Traffic:
    """Counts the messages of this rank inside groups of more than one, while it is entered as a context.

    A message's size is the whole tensor's, as handed to the collective: for n ranks, a ring all-reduce sends
    2(n − 1)/n of it over every link and a gather (n − 1)/n. Python objects, which only checkpoints and checks send,
    are not counted. Gradients and weights travel in the data group, those of experts that few ranks hold in the group
    of these, sums of tied gradients over pipeline stages. Clips on their way to experts and back are dispatch, and what
    other groups send is control.
    """

    def __init__(self, data_group: Any = None, expert_group: Any = None) -> None:
        self._data = None if data_group is None else dist.get_process_group_ranks(data_group)
        self._experts = None if expert_group is None else dist.get_process_group_ranks(expert_group)
        self._several = self._data is None or len(self._data) > 1
        self.steps = 0
        self.total: Counter[tuple[str, str]] = Counter()
        self._since: Counter[tuple[str, str]] = Counter()
        self._steps_since = 0
        self._purpose = CONTROL
        self._shares: dict[str, float] = {}
        self._counting = True
        self._calls = WrappedCalls()

    def __enter__(self) -> Traffic:
        self._calls.wrap_collectives(MESSAGE, self._counted)
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.restore()

    @contextmanager
    def region(self, purpose: str, elements: Mapping[str, int]) -> Iterator[None]:
        """Count what is sent inside for ``purpose``, divided over parameter groups in proportion to ``elements``."""
        before = self._purpose, self._shares
        whole = sum(elements.values())
        self._purpose, self._shares = purpose, {name: count / whole for name, count in elements.items()}
        try:
            yield
        finally:
            self._purpose, self._shares = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing inside, such as an evaluation's messages."""
        self._counting = False
        try:
            yield
        finally:
            self._counting = True

    def end_step(self) -> None:
        """Close one optimizer step."""
        self.steps += 1
        self._steps_since += 1

    def scalars(self) -> dict[str, float]:
        """Mean bytes per step since the last call, by monitor name."""
        steps, since = max(1, self._steps_since), self._since
        self._since, self._steps_since = Counter(), 0
        values = {"comm/allreduce_bytes": _of(since, GRADIENTS) / steps}
        for purpose, group in sorted(since):
            name = f"comm/{purpose}_{group}_bytes" if group else f"comm/{purpose}_bytes"
            values[name] = since[purpose, group] / steps
        return values

    def summary(self, parameters: int) -> str:
        """A line on the steps counted, against averaging all ``parameters`` in fp32 every step."""
        stages = _of(self.total, STAGES) / max(1, self.steps)
        tied = f"; tied gradients summed over stages: {stages / 1e6:.3f} MB per step and rank" if stages else ""
        if not self.steps or not self._several or not _of(self.total, GRADIENTS):
            return f"gradients sent: none, there is one data rank{tied}"
        sent, full = _of(self.total, GRADIENTS) / self.steps, 4.0 * parameters
        groups = ", ".join(
            f"{group} {count / self.steps / 1e6:.3f}"
            for (purpose, group), count in sorted(self.total.items())
            if purpose == GRADIENTS
        )
        saved = max(0.0, 100 * (1 - sent / full))
        return (
            f"gradients sent: {sent / 1e6:.3f} MB per step and rank ({groups}), {100 * sent / full:.1f} % of all in "
            f"fp32 every step ({full / 1e6:.3f} MB): {saved:.1f} % saved; weights gathered: "
            f"{_of(self.total, WEIGHTS) / self.steps / 1e6:.3f} MB{tied}"
        )

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self._counting:
                return original(*args, **kwargs)
            self._count(name, [*args, *kwargs.values()])
            self._counting = False
            try:
                return original(*args, **kwargs)
            finally:
                self._counting = True

        return counted

    def _count(self, name: str, arguments: list[Any]) -> None:
        group = next((value for value in arguments if isinstance(value, dist.ProcessGroup)), None)
        if dist.get_world_size(group) < 2:
            return
        size = _bytes(arguments[MESSAGE[name]])
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        mine = self._purpose == STAGES or self._data is None or self._data == members
        if name == "all_to_all_single":
            self._add(DISPATCH, "", size)
        elif self._experts == members and name in PURPOSES.get(self._purpose, ()):
            self._add(self._purpose, "experts", size)
        elif mine and name in PURPOSES.get(self._purpose, ()):
            for label, share in self._shares.items():
                self._add(self._purpose, label, size * share)
        else:
            self._add(CONTROL, "", size)

    def _add(self, purpose: str, group: str, size: float) -> None:
        self.total[purpose, group] += size  # type: ignore[assignment]
        self._since[purpose, group] += size  # type: ignore[assignment]


def _of(counts: Mapping[tuple[str, str], float], purpose: str) -> float:
    return float(sum(count for (kind, _), count in counts.items() if kind == purpose))


def _bytes(message: Any) -> int:
    if torch.is_tensor(message):
        return message.numel() * message.element_size()
    return sum(_bytes(part) for part in message)

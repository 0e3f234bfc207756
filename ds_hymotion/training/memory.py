"""Memory of every rank by what it holds, and why one holds more than another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ds_hymotion.model.initialisation import own_name
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.states import MASTER
from ds_hymotion.training.ema import WeightAverage

HEAD = "motion_transformer.final_layer.linear."
WIDEST_SPREAD = 0.1
MOST_TOLD = 16


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one rank.

    Attributes:
        weights: what the network computes with, the motion head apart.
        states: fp32 masters, moments and average, the motion head's apart.
        head: weights and states of the motion head, and what its loss keeps for the backward pass.
        activations: what the network keeps for the backward passes under way, where blocks are not recomputed.
    """

    weights: int
    states: int
    head: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.states + self.head + self.activations


class MemoryWatch:
    """Measures this rank's memory in chosen steps and tells all ranks' in a few lines.

    Args:
        engine: the engine whose network and states are counted.
        average: the weight average, if there is one.
        suggestion: joint groups that balance the head, to propose where the head explains a spread.
    """

    def __init__(self, engine: DataEngine, average: WeightAverage | None, suggestion: str) -> None:
        self.engine = engine
        self.average = average
        self.suggestion = suggestion
        self.measured: MemoryUse | None = None
        self._first = True

    @contextmanager
    def counting(self, step: int, every: int) -> Iterator[None]:
        """Measure what runs inside, in the first step and in every ``every``-th one, 0 = the first alone."""
        due = self._first or bool(every and (step + 1) % every == 0)
        self._first = False
        self.measured = None
        if not due:
            yield
            return
        with counting_saved(*self.engine.called_modules) as saved:
            yield
        saved.network *= self.engine.in_flight
        self.measured = self._use(saved)

    def lines(self) -> list[str]:
        """What the last step measured, of all ranks (collective); [] where it was not measured."""
        if self.measured is None:
            return []
        mesh = self.engine.mesh
        lines = describe(mesh.gather_objects(self.measured), self.suggestion)
        if mesh.device.type == "cuda":
            lines.append(describe_peaks(mesh.gather_objects(torch.cuda.max_memory_allocated(mesh.device))))
        return lines

    def _use(self, saved: SavedBytes) -> MemoryUse:
        states = self.engine.states
        sizes = {True: 0, False: 0}
        weights = {True: 0, False: 0}
        for name, parameter in self.engine.objective.generator.named_parameters():
            held = getattr(parameter, "ds_tensor", parameter)
            weights[own_name(name).startswith(HEAD)] += held.numel() * held.element_size()
        kinds = [kind for kind in states.kinds() if kind != MASTER or states.partitioned]
        per_element = sum(states.element_bytes(kind) for kind in kinds) + 4 * bool(self.average)
        for fragment in states.fragments():
            sizes[own_name(fragment.name).startswith(HEAD)] += per_element * fragment.numel
        return MemoryUse(weights[False], sizes[False], weights[True] + sizes[True] + saved.loss, saved.network)


@dataclass
class SavedBytes:
    """What autograd saved in the largest call of an objective: in its network, and after it."""

    network: int = 0
    loss: int = 0


@contextmanager
def counting_saved(objective: torch.nn.Module, network: torch.nn.Module) -> Iterator[SavedBytes]:
    """Count what autograd saves inside, weights apart; the largest call of ``objective`` counts.

    Args:
        objective: a module that calls ``network`` and then computes its loss.
    """
    weights = list(objective.parameters())  # those that ZeRO-3 divides have memory of their own in every call
    largest, current, seen = SavedBytes(), SavedBytes(), set[int]()
    behind_network = False

    def start(*_: object) -> None:
        nonlocal current, behind_network
        current, behind_network = SavedBytes(), False
        seen.clear()

    def leave_network(*_: object) -> None:
        nonlocal behind_network
        behind_network = True

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        place = storage.data_ptr()
        if place not in seen and all(place != weight.untyped_storage().data_ptr() for weight in weights):
            seen.add(place)
            current.loss += storage.nbytes() * behind_network
            current.network += storage.nbytes() * (not behind_network)
            if current.network + current.loss > largest.network + largest.loss:
                largest.network, largest.loss = current.network, current.loss
        return value

    handles = [objective.register_forward_pre_hook(start), network.register_forward_hook(leave_network)]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            yield largest
    finally:
        for handle in handles:
            handle.remove()


def describe(uses: list[MemoryUse], suggestion: str = "") -> list[str]:
    """A line of every rank's bytes (of many, the least and the most), and one on the cause of a spread over 10 %."""
    most = max(range(len(uses)), key=lambda rank: uses[rank].total)
    least = min(range(len(uses)), key=lambda rank: uses[rank].total)
    told = range(len(uses)) if len(uses) <= MOST_TOLD else sorted({least, most})
    parts = [
        f"{rank}: {megabytes(uses[rank].total)} ("
        + ", ".join(f"{kind} {megabytes(value)}" for kind, value in asdict(uses[rank]).items())
        + ")"
        for rank in told
    ]
    share = uses[most].total / max(1, uses[least].total) - 1
    lines = [f"memory per rank, MB: {'; '.join(parts)}; spread {100 * share:.0f} %"]
    if share > WIDEST_SPREAD:
        other = asdict(uses[least])
        more = {kind: value - other[kind] for kind, value in asdict(uses[most]).items()}
        cause = max(more, key=lambda kind: more[kind])
        differences = ", ".join(f"{kind} {megabytes(value, '+')}" for kind, value in more.items())
        line = f"rank {most} holds {100 * share:.0f} % more than rank {least}, mostly {cause}: {differences} MB"
        if cause == "head" and suggestion:
            line += f"; balance the head with --joint_groups {suggestion}"
        lines.append(line)
    return lines


def describe_peaks(peaks: list[int]) -> str:
    """A line on the most bytes that each rank's device had allocated (of many ranks, the least and the most)."""
    most, least = max(peaks), min(peaks)
    told = range(len(peaks)) if len(peaks) <= MOST_TOLD else sorted({peaks.index(least), peaks.index(most)})
    parts = "; ".join(f"{rank}: {megabytes(peaks[rank])}" for rank in told)
    return f"allocated per device at most, MB: {parts}; spread {100 * (most / max(1, least) - 1):.0f} %"


def megabytes(value: int, sign: str = "") -> str:
    """``value`` bytes in MB with digits enough for small networks."""
    return f"{value / 1e6:{sign}.{1 if abs(value) >= 1e7 else 3}f}"

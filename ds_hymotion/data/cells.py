"""Cells: an epoch of a network with experts, drawn step by step from clips by bucket and expert.

First a step's phase and dropped experts are known, from the seed and the step's number alone; then its bucket is
drawn, then how many clips every cell of it gives. A dropped expert's clips wait for a later step, so an epoch still
has every visit once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ds_hymotion.data.expert_owners import owned_experts, owner_of_expert
from ds_hymotion.randomness import seed_of

MOST_DRAWS = 10_000


@dataclass(frozen=True)
class Phase:
    """What learns before step ``until``: the trunk, the experts, and how many of them are left out of every step."""

    until: int
    trunk: bool = True
    experts: bool = True
    drop: int = 0


@dataclass(frozen=True)
class ExpertPlan:
    """Where experts come into a plan.

    Attributes:
        of: every clip's expert.
        number: how many experts there are.
        owners: groups of data ranks that hold ``number / owners`` experts each; see
            :mod:`ds_hymotion.data.expert_owners`.
        phases: by rising ``until``; the last one goes on without end.
        weights: how often an epoch visits the clips of each expert, over once; () for all alike.
    """

    of: tuple[int, ...]
    number: int
    owners: int = 1
    phases: tuple[Phase, ...] = ()
    weights: tuple[Fraction, ...] = ()

    @property
    def drawn_by_cell(self) -> bool:
        """Whether steps are drawn here, not cut by length alone."""
        return self.owners > 1 or any(phase.drop for phase in self.phases)

    def phase(self, step: int) -> Phase:
        """The phase of a step, counted from 0 over the whole run."""
        later = [phase for phase in self.phases if step < phase.until]
        return (later or [*self.phases[-1:], Phase(0)])[0]

    def owner(self, expert: int) -> int:
        """The group of ranks that holds an expert."""
        return owner_of_expert(expert, self.number, self.owners)

    def dropped(self, seed: int, step: int, draw: int = 0) -> frozenset[int]:
        """The experts left out of a step: as many from every owner as from any other, or one more."""
        count = self.phase(step).drop
        random = np.random.default_rng(seed_of(seed, "dropped experts", step, draw))
        owners = [owned_experts(int(owner), self.number, self.owners) for owner in random.permutation(self.owners)]
        order = [random.permutation(own).tolist() for own in owners]
        return frozenset([expert for rank in zip(*order) for expert in rank][:count])


class Draft(NamedTuple):
    """A step before its rows are made: visits by rank, and what is left out."""

    bucket: int
    ranks: list[list[int]]
    dropped: frozenset[int]


@dataclass
class CellDrawer:
    """Draws the steps of one round of visits.

    Attributes:
        plan: the experts.
        seed: the run's seed.
        key: what else seeds the drawing, such as the epoch.
        ranks, slots: data ranks, and clips that each of them has room for in a step.
    """

    plan: ExpertPlan
    seed: int
    key: tuple[int, ...]
    ranks: int
    slots: int
    _left: dict[int, list[list[int]]] = field(default_factory=dict)

    def steps(self, cells: dict[int, list[list[int]]], first: int) -> Iterator[Draft]:
        """Steps from number ``first`` of the run on, until nothing is left.

        Args:
            cells: by bucket, each expert's visits in the order in which neighbours should share a step.
        """
        self._left = {bucket: [list(visits) for visits in experts] for bucket, experts in cells.items()}
        step = first
        while any(visits for experts in self._left.values() for visits in experts):
            yield self._step(step)
            step += 1

    def _step(self, step: int) -> Draft:
        random = np.random.default_rng(seed_of(self.seed, "cells", *self.key, step))
        for draw in range(MOST_DRAWS):
            dropped = self.plan.dropped(self.seed, step, draw)
            needed = {bucket: self._needed(experts, dropped) for bucket, experts in self._left.items()}
            if any(needed.values()):
                break
        else:
            raise AssertionError("every draw drops the experts of all clips that are left")
        buckets = sorted(needed)
        weights = np.array([needed[bucket] for bucket in buckets], dtype=np.float64)
        bucket = buckets[int(random.choice(len(buckets), p=weights / weights.sum()))]
        place = float(random.random())
        by_owner = self._take(bucket, needed[bucket], dropped, place, random)
        ranks: list[list[int]] = [[] for _ in range(self.ranks)]
        for owner, visits in enumerate(by_owner):
            own = range(owner, self.ranks, self.plan.owners)
            base, extra = divmod(len(visits), len(own))
            for number, rank in enumerate(own):
                count = base + (number < extra)
                ranks[rank], visits = visits[:count], visits[count:]
        return Draft(bucket, ranks, dropped)

    def _room(self) -> int:
        """Clips that all ranks of an owner have room for in a step."""
        return self.slots * self.ranks // self.plan.owners

    def _counts(self, experts: list[list[int]], dropped: frozenset[int]) -> list[dict[int, int]]:
        """By owner, the clips left of each of its experts that may be drawn."""
        counts: list[dict[int, int]] = [{} for _ in range(self.plan.owners)]
        for expert, visits in enumerate(experts):
            if visits and expert not in dropped:
                counts[self.plan.owner(expert)][expert] = len(visits)
        return counts

    def _needed(self, experts: list[list[int]], dropped: frozenset[int]) -> int:
        """Steps that a bucket's clips need at least, where those of ``dropped`` are not drawn."""
        return max(-(-sum(counts.values()) // self._room()) for counts in self._counts(experts, dropped))

    def _take(
        self, bucket: int, steps: int, dropped: frozenset[int], place: float, random: np.random.Generator
    ) -> list[list[int]]:
        """Each owner's visits in this step: what would use its clips up in ``steps`` steps.

        An expert's share of them is a fraction, which systematic sampling rounds up as often as it should be: rare
        types are spread over all steps.
        """
        taken = []
        for counts in self._counts(self._left[bucket], dropped):
            total = sum(counts.values())
            want = -(-total // steps) if total else 0
            shares = {expert: want * count / total for expert, count in counts.items()}
            order = random.permutation(sorted(counts)).tolist()
            marks = np.floor(np.cumsum([0.0, *(shares[expert] for expert in order)]) + random.random() + 1e-9)
            chosen = dict(zip(order, np.diff(marks).astype(int).tolist()))
            taken.append(
                [visit for expert, count in chosen.items() for visit in self._pull(bucket, expert, count, place)]
            )
        return taken

    def _pull(self, bucket: int, expert: int, count: int, place: float) -> list[int]:
        """``count`` neighbours out of a cell, around the share ``place`` of its order."""
        visits = self._left[bucket][expert]
        start = int(place * (len(visits) - count + 1))
        pulled = visits[start : start + count]
        del visits[start : start + count]
        return pulled


def by_cell(visits: Sequence[int], experts: Sequence[int], number: int) -> list[list[int]]:
    """Visits in their order, divided by expert."""
    cells: list[list[int]] = [[] for _ in range(number)]
    for visit, expert in zip(visits, experts, strict=True):
        cells[expert].append(visit)
    return cells

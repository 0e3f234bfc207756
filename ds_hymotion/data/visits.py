"""Visits: how often an epoch takes each clip, where corpora are taken more or less often than once.

The clips of a corpus stand in one seeded circle for the whole run, and every epoch goes on where the one before it
stopped. So no clip returns before all others of its corpus have had their turn, and all of it is a pure function of
the seed and the epoch's number. A visit is a number: the clip plus (number of clips) × (visits of it before in the
epoch). An epoch in which clips are visited several times is divided into rounds that visit no clip twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from ds_hymotion.randomness import seed_of

_FINE = 1 << 30


@dataclass(frozen=True)
class Ration:
    """One corpus's part of an epoch.

    Attributes:
        name: what messages and seeds call the corpus.
        clips: its number of clips, which follow those of the ration before.
        times: visits of each of its clips in an epoch, on average.
        share: where it is not 0, instead of ``times``: its share of all visits of an epoch.
    """

    name: str
    clips: int
    times: Fraction = Fraction(1)
    share: Fraction = Fraction(0)


class Visits:
    """The visits of every epoch.

    Args:
        rations: the corpora in the order of their clips.
        usable: the clips that can be taken, in rising order.
        seed: the run's seed.

    Attributes:
        clips: number of clips, those that cannot be taken included.
        members: the usable clips of every ration.
        per_epoch: mean number of visits an epoch has of every ration.

    Raises:
        ValueError: rations without a share and shares of all or more than all visits.
    """

    def __init__(self, rations: Sequence[Ration], usable: Sequence[int], seed: int) -> None:
        self.rations = tuple(rations)
        self.seed = seed
        self.clips = sum(ration.clips for ration in rations)
        starts = np.cumsum([0, *(ration.clips for ration in rations)])
        clips = np.asarray(usable, dtype=np.int64)
        self.members = [clips[(clips >= a) & (clips < b)] for a, b in zip(starts, starts[1:])]
        shared = sum((ration.share for ration in rations), Fraction(0))
        if shared >= 1:
            raise ValueError(f"shares of {shared} leave nothing to the other corpora")
        own = [
            Fraction(0) if ration.share else ration.times * len(members)
            for ration, members in zip(rations, self.members)
        ]
        whole = sum(own, Fraction(0)) / (1 - shared)
        self.per_epoch = [ration.share * whole or visits for ration, visits in zip(rations, own)]

    def epoch(self, epoch: int) -> list[int]:
        """The visits of an epoch, in rising order."""
        return np.sort(self._numbers(epoch)).tolist()

    def rounds(self, epoch: int, visits: Collection[int]) -> Iterator[np.ndarray]:
        """``visits`` of an epoch in rounds, each in rising order; a clip's visits lie evenly over the rounds."""
        numbers = np.fromiter(visits, dtype=np.int64, count=len(visits))
        numbers.sort()
        counts = np.bincount(self._numbers(epoch) % self.clips, minlength=self.clips)
        rounds = int(counts.max())
        if rounds <= 1:
            yield numbers
            return
        random = np.random.default_rng(seed_of(self.seed, "rounds", epoch))
        offsets = random.integers(_FINE, size=self.clips)
        clip, visit = numbers % self.clips, numbers // self.clips
        # floor((visit + offset) * rounds / count) in whole numbers: consecutive visits never share a round.
        place = (visit * _FINE + offsets[clip]) * rounds // (counts[clip] * _FINE)
        for number in range(rounds):
            yield numbers[place == number]

    @cached_property
    def _circles(self) -> list[np.ndarray]:
        return [
            np.random.default_rng(seed_of(self.seed, "turns", ration.name)).permutation(len(members))
            for ration, members in zip(self.rations, self.members)
        ]

    def _numbers(self, epoch: int) -> np.ndarray:
        """The visits of an epoch, corpus by corpus: of every circle the stretch that is the epoch's."""
        found = []
        for members, order, visits in zip(self.members, self._circles, self.per_epoch):
            first, end = int(epoch * visits), int((epoch + 1) * visits)
            places = np.arange(end - first)
            if len(members):
                clips = members[order[(first + places) % len(members)]]
                found.append(clips + self.clips * (places // len(members)))
        return np.concatenate(found)

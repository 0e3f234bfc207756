"""Visits: how often an epoch takes each clip, where corpora are taken more or less often than once.

The clips of a corpus stand in one seeded circle for the whole run, and every epoch goes on where the one before it
stopped. So no clip returns before all others of its corpus have had their turn, and all of it is a pure function of
the seed and the epoch's number. A visit is a number: the clip plus (number of clips) × (visits of it before in the
epoch). An epoch in which clips are visited several times is divided into rounds that visit no clip twice, as long as
the rounds fill whole steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

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
        classes: every clip's class, where ``weights`` tell how often clips are visited over what their ration says.
        weights: by class; the share of a ration that has one stays as it is.

    Attributes:
        clips: number of clips, those that cannot be taken included.
        members: the usable clips of every ration.
        per_epoch: mean number of visits an epoch has of every ration.

    Raises:
        ValueError: rations without a share and shares of all or more than all visits.
    """

    def __init__(
        self,
        rations: Sequence[Ration],
        usable: Sequence[int],
        seed: int,
        classes: Sequence[int] = (),
        weights: Mapping[int, Fraction] | None = None,
    ) -> None:
        self.rations = tuple(rations)
        self.seed = seed
        self.clips = sum(ration.clips for ration in rations)
        starts = np.cumsum([0, *(ration.clips for ration in rations)])
        clips = np.asarray(usable, dtype=np.int64)
        self.members = [clips[(clips >= a) & (clips < b)] for a, b in zip(starts, starts[1:])]
        shared = sum((ration.share for ration in rations), Fraction(0))
        if shared >= 1:
            raise ValueError(f"shares of {shared} leave nothing to the other corpora")
        parts = [_by_class(members, np.asarray(classes), weights or {}) for members in self.members]
        sizes = [sum((weight * len(clips) for _, weight, clips in part), Fraction(0)) for part in parts]
        own = [Fraction(0) if ration.share else ration.times * size for ration, size in zip(rations, sizes)]
        whole = sum(own, Fraction(0)) / (1 - shared)
        self.per_epoch = [ration.share * whole or visits for ration, visits in zip(rations, own)]
        self._circles = [
            _Circle.drawn(clips, visits * weight * len(clips) / size, seed_of(seed, "turns", ration.name + suffix))
            for ration, part, size, visits in zip(rations, parts, sizes, self.per_epoch)
            for suffix, weight, clips in part
            if len(clips)
        ]

    def epoch(self, epoch: int) -> list[int]:
        """The visits of an epoch, in rising order."""
        return np.sort(self._numbers(epoch)).tolist()

    def rounds(self, epoch: int, visits: Collection[int], least: int = 1) -> Iterator[np.ndarray]:
        """``visits`` of an epoch in rounds, each in rising order; a clip's visits lie evenly over the rounds.

        Rounds have about ``least`` visits or more. Only where that leaves fewer rounds than a clip has visits does it
        come more than once in one of them.
        """
        numbers = np.fromiter(visits, dtype=np.int64, count=len(visits))
        numbers.sort()
        every = self._numbers(epoch)
        counts = np.bincount(every % self.clips, minlength=self.clips)
        rounds = min(int(counts.max()), max(1, len(every) // least))
        if rounds <= 1:
            yield numbers
            return
        random = np.random.default_rng(seed_of(self.seed, "rounds", epoch))
        offsets = random.integers(_FINE, size=self.clips)
        clip, visit = numbers % self.clips, numbers // self.clips
        # floor((visit + offset) * rounds / count) in whole numbers: with as many rounds, visits never share one.
        place = (visit * _FINE + offsets[clip]) * rounds // (counts[clip] * _FINE)
        order = np.argsort(place, kind="stable")
        yield from np.split(numbers[order], np.searchsorted(place[order], np.arange(1, rounds)))

    def _numbers(self, epoch: int) -> np.ndarray:
        """The visits of an epoch, circle by circle: of every one the stretch that is the epoch's."""
        found = []
        for circle in self._circles:
            first, end = int(epoch * circle.visits), int((epoch + 1) * circle.visits)
            places = np.arange(end - first)
            clips = circle.clips[(first + places) % len(circle.clips)]
            found.append(clips + self.clips * (places // len(circle.clips)))
        return np.concatenate(found)


class _Circle(NamedTuple):
    """Clips in the order of their turns, and how many visits an epoch makes, on average."""

    clips: np.ndarray
    visits: Fraction

    @classmethod
    def drawn(cls, clips: np.ndarray, visits: Fraction, seed: int) -> _Circle:
        return cls(clips[np.random.default_rng(seed).permutation(len(clips))], visits)


def _by_class(
    clips: np.ndarray, classes: np.ndarray, weights: Mapping[int, Fraction]
) -> list[tuple[str, Fraction, np.ndarray]]:
    """A ration's clips by class: what the class adds to the ration's name in seeds, its weight and its clips."""
    if not weights:
        return [("", Fraction(1), clips)]
    return [(f" class {number}", weight, clips[classes[clips] == number]) for number, weight in weights.items()]

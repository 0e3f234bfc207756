"""Neighbours in length: how a bucket's clips are ordered and packed into ranks of nearly equal cost.

A rank's cost in a step is its rows times its longest clip, and all ranks wait for the dearest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

REPEATS = 0.15
"""Expected share of a micro-batch's pairs of clips that meet again in the next epoch, where the jitter allows it."""
TOGETHER = 32
"""Clips of one step whose company is varied by the order itself; in larger steps ranks mix their clips instead."""
TAILS = 8


class Jitter:
    """Orders a bucket's clips by length, with as much jitter as makes epochs differ and no more.

    Two clips that a block of c clips holds together meet again in the next epoch with a chance of about c / (3·d·w),
    for a uniform jitter of half-width w frames on a density of d clips a frame. So w = c / (3·d·REPEATS) suffices;
    more would only lengthen the longest clip of every block. Equal lengths are ordered at random.

    Args:
        frames: lengths [n].
        limit: largest w in frames; 0 orders strictly by length.
        random: the epoch's generator for this bucket.
    """

    def __init__(self, frames: np.ndarray, limit: float, random: np.random.Generator) -> None:
        self.frames = frames
        self.limit = limit
        self.density = len(frames) / (float(frames.max() - frames.min()) + 1.0)
        self._random = random

    def keys(self, block: float) -> np.ndarray:
        """Sort keys [n] for blocks of ``block`` clips."""
        width = min(self.limit, max(0.0, block - 1) / (3 * self.density * REPEATS))
        return self.frames + max(width, 1e-6) * self._random.uniform(-1, 1, len(self.frames))

    def order(self, block: float) -> np.ndarray:
        """Positions [n] in rising order of keys for blocks of at most TOGETHER clips."""
        return np.argsort(self.keys(min(block, TOGETHER)), kind="stable")


def cut_by_frames(lengths: Sequence[int], ranks: int, accumulation: int, frames: int) -> Iterator[list[int]]:
    """Cut neighbours into steps whose micro-batches hold at most ``frames`` padded frames: clips per rank of each step.

    Steps are filled to the brim, but the last two share what is left in the way that costs least.
    """
    start = 0
    while start < len(lengths):
        take = _fit(lengths, start, ranks, accumulation, frames)
        left = len(lengths) - start - take
        if 0 < left <= take:
            take = _tail(lengths, start, take, ranks, accumulation, frames)
        yield balanced_counts(lengths[start : start + take], ranks, accumulation, frames)
        start += take


def _tail(lengths: Sequence[int], start: int, take: int, ranks: int, accumulation: int, frames: int) -> int:
    """How many of the clips from ``start`` on go to the step before the last."""
    best = (float("inf"), -take)
    rest = len(lengths) - start - take
    for part in range(TAILS + 1):
        first = take - (take - rest) * part // TAILS
        if _fit(lengths, start + first, ranks, accumulation, frames) < len(lengths) - start - first:
            continue
        pieces = (lengths[start : start + first], lengths[start + first :])
        cost = sum(_cost(piece, balanced_counts(piece, ranks, accumulation, frames)) for piece in pieces)
        best = min(best, (cost, -first))
    return -best[1]


def _cost(lengths: Sequence[int], counts: Sequence[int]) -> int:
    start = worst = 0
    for count in counts:
        worst = max(worst, count * max(lengths[start : start + count], default=0))
        start += count
    return worst


def _fit(lengths: Sequence[int], start: int, ranks: int, accumulation: int, frames: int) -> int:
    """How many clips from ``start`` on fill all ranks' micro-batches."""
    position = start
    for _ in range(ranks):
        rows = longest = 0
        while position + rows < len(lengths):
            longest = max(longest, lengths[position + rows])
            if rows + 1 > accumulation * (frames // longest):
                break
            rows += 1
        position += rows
    return position - start


def balanced_counts(lengths: Sequence[int], ranks: int, accumulation: int = 1, frames: int = 0) -> list[int]:
    """Cut ``lengths`` into ``ranks`` neighbourhoods so that the largest count × longest is smallest.

    Bisection on that bound: a bound is feasible if filling ranks greedily needs no more than ``ranks`` of them, which
    is the best any cut can do. With ``frames``, a rank also holds at most what its micro-batches do; the caller makes
    sure that the clips fit.
    """

    def fill(bound: int) -> list[int] | None:
        counts: list[int] = []
        rows = longest = 0
        for length in lengths:
            higher = max(longest, length)
            full = frames and rows + 1 > accumulation * (frames // higher)
            if rows and ((rows + 1) * higher > bound or full):
                counts.append(rows)
                if len(counts) == ranks:
                    return None
                rows, higher = 0, length
            longest = higher
            rows += 1
        return [*counts, rows]

    low, high = max(max(lengths), -(-sum(lengths) // ranks)), len(lengths) * max(lengths)
    best = fill(high)
    while low < high:
        middle = (low + high) // 2
        counts = fill(middle)
        if counts is None:
            low = middle + 1
        else:
            best, high = counts, middle
    assert best is not None, "the clips of a step fit into its ranks"
    return best + [0] * (ranks - len(best))

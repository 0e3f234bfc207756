"""KMeans over the points of clips, and names for its clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

Floats = NDArray[np.float64]
STARTS = 10
"""KMeans starts so often from drawn centres and keeps the best."""


@dataclass(frozen=True)
class Clusters:
    """Centres [k, E] float32, the name of each, and which of the names come from labels."""

    centres: NDArray[np.float32]
    names: tuple[str, ...]
    matched: tuple[str, ...]


def nearest(points: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """The nearest centre of every point [N, E], the first of equal ones; as :meth:`KMeans.predict`.

    In float64 and without a matrix product, so that a point's cluster depends on no other point.
    """
    difference = points.astype(np.float64)[:, None] - centres.astype(np.float64)[None]
    return np.square(difference).sum(axis=-1).argmin(axis=1)


def cluster(
    points: NDArray[np.float32],
    count: int,
    seed: int,
    names: Sequence[str],
    labels: Sequence[str | None],
    guided: bool,
    named: bool = False,
) -> Clusters:
    """Divide points [N, E] into ``count`` clusters.

    Clusters get names by the assignment (Hungarian method) that puts most labelled points into a cluster of their own
    name, and come in the order of ``names``. Clusters that no label falls to follow, the largest first, as ``TYPE_1``,
    ``TYPE_2`` …; without any label, ``named`` gives those ``names`` instead.

    Args:
        names: the names there are.
        labels: a name or None for every point.
        guided: start KMeans from the means of labelled points instead of from drawn ones.
    """
    if guided:
        start = _guided_start(points, count, names, labels)
        fitted = KMeans(count, init=start, n_init=1, random_state=seed).fit(points)
    else:
        fitted = KMeans(count, n_init=STARTS, random_state=seed).fit(points)
    centres = fitted.cluster_centers_.astype(np.float32)
    ids = nearest(points, centres)
    table = np.zeros((count, len(names)), dtype=np.int64)
    for place, label in zip(ids, labels, strict=True):
        if label is not None:
            table[place, names.index(label)] += 1
    pairs = {int(name): int(row) for row, name in zip(*linear_sum_assignment(-table)) if table[row, name] > 0}
    order = [pairs[name] for name in sorted(pairs)]
    sizes = np.bincount(ids, minlength=count)
    rest = sorted(set(range(count)) - set(order), key=lambda row: (-sizes[row], tuple(centres[row])))
    matched = tuple(names[name] for name in sorted(pairs))
    spare = list(names) if named and not matched else []
    free = (name for name in (f"TYPE_{number}" for number in range(1, count + len(names) + 1)) if name not in names)
    numbered = [spare[place] if place < len(spare) else next(free) for place in range(len(rest))]
    return Clusters(centres[order + rest], (*matched, *numbered), matched)


def _guided_start(
    points: NDArray[np.float32], count: int, names: Sequence[str], labels: Sequence[str | None]
) -> NDArray[np.float32]:
    """Means of the labelled points of the ``count`` commonest labels; what is missing is far from what there is."""
    found = np.array([-1 if label is None else names.index(label) for label in labels])
    sizes = {name: int((found == name).sum()) for name in range(len(names))}
    chosen = sorted((name for name in sizes if sizes[name]), key=lambda name: (-sizes[name], name))[:count]
    centres = [points[found == name].mean(axis=0) for name in sorted(chosen)]
    while len(centres) < count:
        distance = np.square(points[:, None] - np.stack(centres)[None]).sum(axis=-1).min(axis=1)
        centres.append(points[int(distance.argmax())])
    return np.stack(centres)

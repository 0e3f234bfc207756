"""Which recordings train, validate and test."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ds_hymotion.data.lookup import comparable
from ds_hymotion.data.names import read_names
from ds_hymotion.data.sources import mirrored_originals
from ds_hymotion.errors import UserError

SPLITS = ("train", "val", "test")


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    """Train, val and test shares that are at least 0, sum to 1 and leave something to train on.

    Raises:
        UserError: they do not.
    """
    usable = len(fractions) == 3 and all(0 <= share <= 1 for share in fractions) and fractions[0] > 0
    if not usable or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        raise UserError(
            f"--split {' '.join(map(str, fractions))} must be three shares for train, val and test that sum to 1, "
            "such as 0.9 0.05 0.05"
        )
    return fractions[0], fractions[1], fractions[2]


def split_by_hash(sources: Iterable[str], fractions: Sequence[float], seed: int) -> dict[str, str]:
    """The split of every recording, from a hash of its name and the seed alone: adding recordings moves none.

    A recording that is the mirrored copy of another goes with it, and so does the same one of another release, whose
    name differs in case, spaces or suffix. Should no recording fall to training, the one with
    the lowest hash does.
    """
    names = sorted(sources)
    originals = mirrored_originals(names)
    places = {source: _place(comparable(originals.get(source, source)), seed) for source in names}
    split = {source: _split_at(place, fractions) for source, place in places.items()}
    if split and "train" not in split.values():
        lowest = min(places.values())
        split.update({source: "train" for source, place in places.items() if place == lowest})
    return split


def _split_at(place: float, fractions: Sequence[float]) -> str:
    last, end = SPLITS[0], 0.0
    for name, share in zip(SPLITS, fractions, strict=True):
        end += share
        if share > 0:
            last = name
            if place < end:
                return name
    return last  # shares that sum to 1 up to rounding


def _place(source: str, seed: int) -> float:
    """A number in [0, 1)."""
    digest = hashlib.sha256(f"split\0{seed}\0{source}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def read_split_lists(folder: Path) -> dict[str, str]:
    """Clip name to split, from ``train.txt`` and, where present, ``val.txt`` and ``test.txt``: one name a line.

    Raises:
        UserError: no train.txt, or a name in two lists.
    """
    if not (folder / "train.txt").is_file():
        raise UserError(f"--split_lists {folder} has no train.txt: name a folder with train.txt, val.txt and test.txt")
    split: dict[str, str] = {}
    for name in SPLITS:
        path = folder / f"{name}.txt"
        for clip in read_names(path) if path.exists() else ():
            if split.setdefault(clip, name) != name:
                raise UserError(f"{path} names {clip!r}, which {split[clip]}.txt also names: leave it in one list")
    return split


def straddling(split_of_clip: Iterable[tuple[str, str]]) -> list[str]:
    """Recordings of which clips lie in more than one split, from pairs (recording, split)."""
    found: dict[str, set[str]] = defaultdict(set)
    for source, split in split_of_clip:
        found[source].add(split)
    return sorted(source for source, splits in found.items() if len(splits) > 1)

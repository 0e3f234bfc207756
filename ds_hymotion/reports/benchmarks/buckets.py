"""How much of the compute goes to real frames when batches follow the lengths of genuine motions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.plan import Layout, Planner, Step
from ds_hymotion.errors import UserError
from ds_hymotion.formats.humanml3d import INDEX_FPS, read_index
from ds_hymotion.reports.measuring.row import Row

SHORTEST, CANVAS, FPS = 60, 300, 30
Batches = list[list[list[int]]]
"""Clips by step and rank."""


def run(index: str = "", seed: int = 0) -> list[Row]:
    """The useful share of compute and the pairs of clips that meet again, on HumanML3D's own distribution of lengths.

    The share is real frames over ranks x padded frames of the slowest rank, all steps of an epoch together, unequal
    last steps included; a rank's padded frames are its rows times its longest clip. Pairs are those of one
    micro-batch; repeated ones meet again in the next epoch. By frames, a micro-batch holds up to clips x 300 padded
    frames. The plain sampler shuffles all clips and pads each rank's batch to its longest. Options: HumanML3D's
    index.csv, which is needed, and the seed.
    """
    if not index:
        raise UserError("--index is missing; give HumanML3D's index.csv")
    lengths = index_lengths(Path(index))
    rows = []
    for ranks in (2, 8, 64):
        for clips in (2, 16):
            plain = [shuffled(len(lengths), ranks, clips, seed + epoch) for epoch in (0, 1)]
            share = useful_share(plain[0], lengths)
            for method, layout in (
                ("by frames", Layout(ranks, 1, 0, clips * CANVAS)),
                ("by samples", Layout(ranks, 1, clips)),
            ):
                planner = Planner(lengths, BucketSettings(), layout, seed)
                start = time.perf_counter()
                plans = [list(map(by_rank, planner.epoch(epoch))) for epoch in (0, 1)]
                seconds = (time.perf_counter() - start) / 2
                for plan in plans:
                    assert sorted(clip for step in plan for rank in step for clip in rank) == list(range(len(lengths)))
                rows += _figures(method, ranks, clips, plans, lengths, share)
                rows.append(Row(f"{ranks} x {clips} {method}: planning an epoch", seconds, "s"))
            rows += _figures("shuffled", ranks, clips, plain, lengths, None)
    return rows


def index_lengths(path: Path) -> list[int]:
    """Lengths in frames at 30 fps of an index's clips from 60 frames on, longer ones cropped to 300.

    Raises:
        UserError: no such file.
    """
    if not path.is_file():
        raise UserError(f"--index {path}: no such file; give HumanML3D's index.csv")
    frames = (
        round((row.end_frame - row.start_frame) * FPS / INDEX_FPS) for row in read_index(path) if row.end_frame >= 0
    )
    return [min(count, CANVAS) for count in frames if count >= SHORTEST]


def by_rank(step: Step) -> list[list[int]]:
    """A planned step's clips by rank, with one micro-batch each."""
    return [[row.clip for micro in rank for row in micro] for rank in step.micro_batches]


def shuffled(clips: int, ranks: int, per_rank: int, seed: int) -> Batches:
    """What a plain distributed sampler makes of as many clips."""
    order = np.random.default_rng(seed).permutation(clips).tolist()
    take = ranks * per_rank
    return [
        [order[start + rank * per_rank : start + (rank + 1) * per_rank] for rank in range(ranks)]
        for start in range(0, clips, take)
    ]


def useful_share(batches: Batches, lengths: list[int]) -> float:
    """Real frames over ranks x the dearest rank's rows x longest clip, over all steps."""
    real = paid = 0
    for step in batches:
        real += sum(lengths[clip] for rank in step for clip in rank)
        paid += len(step) * max(len(rank) * max((lengths[clip] for clip in rank), default=0) for rank in step)
    return real / paid


def pairs(batches: Batches) -> set[tuple[int, int]]:
    """Clips that share a micro-batch."""
    return set(_pairs(batches))


def _pairs(batches: Batches) -> Iterator[tuple[int, int]]:
    for step in batches:
        for rank in step:
            for i, a in enumerate(rank):
                for b in rank[:i]:
                    yield min(a, b), max(a, b)


def _figures(
    method: str, ranks: int, clips: int, epochs: list[Batches], lengths: list[int], plain: float | None
) -> list[Row]:
    first, second = map(pairs, epochs)
    name = f"{ranks} x {clips} {method}"
    return [
        Row(f"{name}: useful share", useful_share(epochs[0], lengths), "", plain, None, {"steps": len(epochs[0])}),
        Row(f"{name}: pairs repeated", len(first & second) / len(first), ""),
    ]

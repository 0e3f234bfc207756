"""By time, how much of what stages compute is motion: clips are shorter than the window, and stages wait or pad."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.plan import Layout, Planner
from ds_hymotion.errors import UserError
from ds_hymotion.model.chunks import aligned, packed
from ds_hymotion.reports.benchmarks.buckets import CANVAS, index_lengths, shuffled
from ds_hymotion.reports.measuring.row import Row

CHUNK = 60
WINDOWS = 4  # clips of full length that a micro-batch has room for


def run(index: str = "", seed: int = 0) -> list[Row]:
    """Real frames over the frames that all stages compute, on HumanML3D's own lengths, in chunks of 60 frames.

    Tied weights pack chunks, so that every stage takes those of any clip; with weights per stage, stage i computes
    chunk i of every clip of the micro-batch, an empty one where the clip is over. Micro-batches are those of
    the frame buckets, or of shuffled clips. Options: HumanML3D's index.csv, which is needed, and the seed.
    """
    if not index:
        raise UserError("--index is missing; give HumanML3D's index.csv")
    lengths = index_lengths(Path(index))
    planner = Planner(lengths, BucketSettings(), Layout(1, 1, 0, WINDOWS * CANVAS), seed)
    bucketed = [[row.clip for row in micro] for step in planner.epoch(0) for micro in step.micro_batches[0]]
    batches = {
        "frame buckets": [[lengths[clip] for clip in clips] for clips in bucketed],
        "shuffled": [[lengths[clip] for clip in step[0]] for step in shuffled(len(lengths), 1, WINDOWS, seed)],
    }
    rows = []
    for name, given in batches.items():
        each = share(given, 5, tied=False)
        rows.append(Row("useful share, weights per stage", 100 * each, "%", conditions={"stages": 5, "batches": name}))
        for stages in (2, 4, 5, 8):
            conditions = {"stages": stages, "batches": name, "against": "weights per stage, 5 stages"}
            useful = 100 * share(given, stages, tied=True)
            rows.append(Row("useful share, tied and packed", useful, "%", 100 * each, conditions=conditions))
    return rows


def share(batches: Iterable[Sequence[int]], stages: int, tied: bool) -> float:
    """Real frames over stages × frames of the slowest stage, all micro-batches of lengths together."""
    real = computed = 0
    for lengths in batches:
        pieces = (packed if tied else aligned)(lengths, CHUNK, stages)
        real += sum(lengths)
        computed += stages * CHUNK * max(part.starts.numel() for part in pieces)
    return real / computed

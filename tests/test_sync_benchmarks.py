"""The figures of buckets and selective sync: their arithmetic, and the thresholds on genuine lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.plan import Layout, Planner
from ds_hymotion.errors import UserError
from ds_hymotion.reports.benchmarks import bucket_speed, gradient_sync
from ds_hymotion.reports.benchmarks.buckets import by_rank, index_lengths, pairs, shuffled, useful_share
from ds_hymotion.reports.benchmarks.gradient_sync import released


def test_arithmetic() -> None:
    """The dearest rank costs 2 x 20, then 1 x 30: of 4 ranks' 2 x 40 + 2 x 30 frames, 90 are real."""
    batches = [[[0, 1], [2]], [[3], []]]
    assert useful_share(batches, [10, 20, 30, 30]) == 90 / 140
    assert pairs(batches) == {(0, 1)}
    plain = shuffled(11, 2, 3, seed=0)
    assert [[len(rank) for rank in step] for step in plain] == [[3, 3], [3, 2]]
    assert sorted(clip for step in plain for rank in step for clip in rank) == list(range(11))
    with pytest.raises(UserError, match="no such file"):
        index_lengths(Path("none.csv"))


@pytest.mark.parametrize(
    ("ranks", "clips", "frames", "least"),
    [(8, 2, 0, 0.97), (64, 2, 0, 0.97), (64, 16, 0, 0.955), (64, 2, 600, 0.98), (64, 16, 4800, 0.98)],
)
def test_thresholds_on_genuine_lengths(shared: Path, ranks: int, clips: int, frames: int, least: float) -> None:
    lengths = index_lengths(shared / "samples" / "humanml3d" / "index.csv")
    assert len(lengths) == 13195
    planner = Planner(lengths, BucketSettings(), Layout(ranks, 1, 0 if frames else clips, frames), seed=1)
    epochs = [[by_rank(step) for step in planner.epoch(epoch)] for epoch in (0, 1)]
    assert useful_share(epochs[0], lengths) >= least
    first, second = map(pairs, epochs)
    assert len(first & second) < 0.2 * len(first)
    assert sorted(clip for step in epochs[0] for rank in step for clip in rank) == list(range(len(lengths)))


@pytest.mark.parametrize("name", ["hy-motion-1.0", "hy-motion-1.0-lite"])
def test_a_third_of_the_bytes(name: str) -> None:
    ratios = [row.ratio for row in released(name)]
    assert ratios == pytest.approx([0.298, 0.649, 0.3243], abs=2e-3)
    assert ratios[2] is not None and ratios[2] <= 0.33


@pytest.mark.full
def test_both_measurements_run() -> None:
    speed = bucket_speed.run(clips=8, batch=2, rounds=1)
    assert speed[1].value > speed[1].against and speed[2].value < 1e-5
    rows = {row.figure: row for row in gradient_sync.run(steps=4, seeds=1, ranks=4, clips=24)}
    sent = rows["small network, counted: gradient bytes per step"]
    assert sent.ratio == pytest.approx(0.3233, abs=0.01)

"""The batch plan: one bucket a step, every clip once an epoch, positions that survive another layout."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.data.buckets import Buckets, BucketSettings
from ds_hymotion.data.packing import REPEATS, Jitter, balanced_counts, cut_by_frames
from ds_hymotion.data.plan import Layout, Planner, Position
from ds_hymotion.errors import UserError

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60)
LAYOUTS = st.builds(
    Layout,
    ranks=st.integers(1, 5),
    accumulation=st.integers(1, 3),
    clips=st.integers(1, 4),
    frames=st.sampled_from([0, 1000]),
)


def planner(lengths: list[int], layout: Layout, timesteps: int = 1, seed: int = 3) -> Planner:
    return Planner(lengths, BucketSettings(), layout, seed, timesteps)


def test_buckets() -> None:
    lengths = [0, 5, 59, 60, 119, 120, 240, 299, 300, 301]
    buckets = Buckets.build(lengths, BucketSettings())
    assert buckets.members == [[1, 2], [3, 4], [5], [], [6, 7], [8, 9]]
    assert buckets.dropped == {"no frames": [0]}
    assert buckets.frames[9] == 300 and buckets.cropped == 1
    assert Buckets.build(lengths, BucketSettings(short="pad")).members[1] == [1, 2, 3, 4]
    dropped = Buckets.build(lengths, BucketSettings(short="drop"))
    assert dropped.dropped == {"no frames": [0], "shorter than 60 frames": [1, 2]}
    table = dropped.table([0, 1, 1, 0, 1, 1])
    assert "dropped: 2 (shorter than 60 frames)" in table and "[240, 300)" in table and "cropped to 300" in table


@pytest.mark.parametrize("bounds", [(), (60, 60), (120, 60), (0, 60)])
def test_illegal_bounds(bounds: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="bucket_bounds"):
        BucketSettings(bounds)


@settings(deadline=None)
@given(LENGTHS, LAYOUTS, st.integers(1, 3), st.integers(0, 2))
def test_an_epoch_visits_every_clip_once(lengths: list[int], layout: Layout, timesteps: int, epoch: int) -> None:
    plan = planner(lengths, layout, timesteps)
    steps = plan.epoch(epoch)
    assert sorted(clip for step in steps for clip in step.clips) == list(range(len(lengths)))
    bucket_of = {clip: bucket for bucket, clips in enumerate(plan.buckets.members) for clip in clips}
    for step in steps:
        assert {bucket_of[clip] for clip in step.clips} == {step.bucket}
        assert [len(rank) for rank in step.micro_batches] == [layout.accumulation] * layout.ranks
        rows = [row for rank in step.micro_batches for micro in rank for row in micro]
        assert sorted(row.stratum for row in rows) == list(range(step.strata))
        assert step.valid_frames == sum(min(lengths[row.clip], 300) for row in rows)
        for rank, padded in zip(step.micro_batches, step.padded):
            assert padded == max((min(lengths[row.clip], 300) for micro in rank for row in micro), default=0)
            for micro in rank:
                if layout.frames:
                    assert len(micro) * padded <= layout.frames
                else:
                    assert len(micro) <= layout.clips * timesteps
    assert steps == planner(lengths, layout, timesteps).epoch(epoch)


@settings(deadline=None)
@given(LENGTHS, LAYOUTS, LAYOUTS, st.integers(0, 30), st.integers(0, 30))
def test_changing_the_layout_inside_an_epoch_loses_and_repeats_nothing(
    lengths: list[int], first: Layout, second: Layout, before: int, between: int
) -> None:
    position = Position()
    seen: list[int] = []
    for layout, count in ((first, before), (second, between), (first, 10**6)):
        plan = planner(lengths, layout)
        for step in islice(plan.walk(position), count):
            if step.epoch > 0:
                break
            seen += step.clips
        if position.epoch > 0:
            break
    assert Counter(seen) == Counter(range(len(lengths)))


@settings(deadline=None)
@given(LENGTHS, LAYOUTS, st.integers(0, 12))
def test_a_saved_position_continues_the_same_walk(lengths: list[int], layout: Layout, done: int) -> None:
    position = Position()
    plan = planner(lengths, layout)
    whole = list(islice(plan.walk(Position()), done + 5))
    assert list(islice(plan.walk(position), done)) == whole[:done]
    restored = Position.from_state(position.state())
    assert list(islice(planner(lengths, layout).walk(restored), 5)) == whole[done:]


def test_the_same_global_batch_on_other_ranks_has_the_same_steps() -> None:
    lengths = np.random.default_rng(0).integers(20, 300, 100).tolist()
    one = planner(lengths, Layout(1, 1, 8)).epoch(0)
    four = planner(lengths, Layout(4, 1, 2)).epoch(0)
    assert [sorted(step.clips) for step in one] == [sorted(step.clips) for step in four]
    strata = [{(row.clip, row.timestep): row.stratum for r in s.micro_batches for m in r for row in m} for s in one]
    assert strata == [
        {(row.clip, row.timestep): row.stratum for r in s.micro_batches for m in r for row in m} for s in four
    ]


def test_other_ranks_of_the_same_global_batch_continue_the_same_order() -> None:
    lengths = np.random.default_rng(0).integers(20, 300, 100).tolist()
    layouts = [Layout(1, 1, 8), Layout(4, 1, 2), Layout(2, 2, 2)]
    whole = [sorted(step.clips) for step in islice(planner(lengths, layouts[0]).walk(Position()), 20)]
    position, seen = Position(), []
    for layout in (*layouts, layouts[0]):
        walk = planner(lengths, layout).walk(Position.from_state(position.state()))
        for step in islice(walk, 5):
            seen.append(sorted(step.clips))
            if step.epoch != position.epoch:
                position = Position(step.epoch)
            position.advance(layout)
    assert seen == whole


def test_epochs_differ() -> None:
    lengths = np.random.default_rng(0).integers(60, 300, 400).tolist()
    plan = planner(lengths, Layout(2, 1, 2))
    pairs = [
        {(a, b) for s in plan.epoch(e) for r in s.micro_batches for m in r for a in m for b in m if a.clip < b.clip}
        for e in (0, 1)
    ]
    clips = [{(a.clip, b.clip) for a, b in found} for found in pairs]
    assert len(clips[0] & clips[1]) < 0.2 * len(clips[0])


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12).map(sorted), st.integers(1, 5))
def test_balanced_counts_are_the_best(lengths: list[int], ranks: int) -> None:
    def cost(counts: tuple[int, ...] | list[int]) -> int:
        worst, start = 0, 0
        for count in counts:
            if count:
                worst = max(worst, count * lengths[start + count - 1])
            start += count
        return worst

    def splits(total: int, parts: int) -> list[tuple[int, ...]]:
        if parts == 1:
            return [(total,)]
        return [(n, *rest) for n in range(total + 1) for rest in splits(total - n, parts - 1)]

    counts = balanced_counts(lengths, ranks)
    assert sum(counts) == len(lengths) and len(counts) == ranks
    assert cost(counts) == min(cost(split) for split in splits(len(lengths), ranks))


@settings(deadline=None)
@given(st.lists(st.integers(60, 300), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
def test_no_micro_batch_is_over_its_frames(lengths: list[int], ranks: int, accumulation: int, seed: int) -> None:
    layout = Layout(ranks, accumulation, 1, frames=300 + 100 * seed)
    for step in Planner(lengths, BucketSettings((60, 300)), layout, seed).epoch(0):
        for rank, padded in zip(step.micro_batches, step.padded):
            assert max(map(len, rank)) * padded <= layout.frames


def test_jitter_is_as_wide_as_epochs_need() -> None:
    """Blocks of c clips at d clips a frame: (c - 1) / (3 * d * 0.15) frames, 4.44 for 5 clips at 2 a frame."""
    frames = np.repeat(np.arange(100.0, 200.0), 2)

    def width(limit: float, block: float) -> float:
        return float(np.abs(Jitter(frames, limit, np.random.default_rng(0)).keys(block) - frames).max())

    assert 4.3 < width(9.0, 5) <= 4 / (3 * 2 * REPEATS)
    assert 2.9 < width(3.0, 5) <= 3.0
    assert width(9.0, 1) < 1e-5 and width(0.0, 5) < 1e-5
    orders = [Jitter(np.full(50, 300.0), 0.0, np.random.default_rng(seed)).order(4).tolist() for seed in (0, 1)]
    assert orders[0] != orders[1] and sorted(orders[0]) == list(range(50))


def test_the_last_two_steps_share_what_is_left() -> None:
    """Two ranks of up to 400 frames. Twelve clips of 100: 8, then 4, two on each rank.

    Three of 100 and five of 130: to the brim they cost 3 x 130 and then 130, with the shortest two first 100 and then
    3 x 130.
    """
    assert list(cut_by_frames([100] * 12, 2, 1, 400)) == [[4, 4], [2, 2]]
    assert list(cut_by_frames([100] * 3 + [130] * 5, 2, 1, 400)) == [[1, 1], [3, 3]]
    for lengths in ([100] * 3 + [130] * 6, list(range(90, 140, 4))):
        steps = list(cut_by_frames(lengths, 2, 1, 400))
        assert sum(map(sum, steps)) == len(lengths) and all(max(step) * 140 <= 560 for step in steps)


def test_nothing_to_plan() -> None:
    with pytest.raises(UserError, match="no clip is left"):
        Planner([10, 20], BucketSettings(short="drop"), Layout(1, 1, 1), 0)


def test_a_frame_budget_counts_every_row_of_a_clip() -> None:
    """Eight clips of 300 frames in 1,800 padded frames: six one-row clips a step, or two clips of three rows."""
    by_rows = {
        timesteps: [len(step.clips) for step in planner([300] * 8, Layout(1, 1, 0, 1800), timesteps).epoch(0)]
        for timesteps in (1, 3)
    }
    assert sorted(by_rows[1]) == [2, 6] and by_rows[3] == [2, 2, 2, 2]
    with pytest.raises(UserError, match="200 does not hold one clip: one row of the canvas, 300 frames.* at least 300"):
        planner([100], Layout(1, 1, 0, frames=200))
    with pytest.raises(UserError, match="899 .* 3 rows .*timesteps_per_sample.* at least 900"):
        planner([100], Layout(1, 1, 0, frames=899), timesteps=3)
    old = [(Layout(2, 1, 0, frames=600), 1)]
    with pytest.raises(UserError, match="600 does not hold one clip"):
        planner([100], Layout(1, 1, 0, frames=900), timesteps=3).epoch(0, old)

"""Visits: every clip its number of times an epoch, in turn, on any number of ranks."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.plan import Layout, Planner, Position
from ds_hymotion.data.visits import Ration, Visits

TIMES = st.one_of(
    st.integers(1, 4).map(Fraction),
    st.decimals("0.05", "3.5", places=2).map(Fraction),
)


@st.composite
def planned(draw: st.DrawFn) -> tuple[list[int], list[Ration]]:
    """Lengths and rations: a main corpus in whole visits, up to two mixed ones, perhaps a replayed one."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    lengths = draw(st.lists(st.integers(1, 320), min_size=sum(sizes), max_size=sum(sizes)))
    rations = [Ration("--data_dir", sizes[0], Fraction(draw(st.integers(1, 3))))]
    rations += [Ration(f"mix.{number}", size, draw(TIMES)) for number, size in enumerate(sizes[1:3])]
    rations += [Ration("replay", size, share=Fraction(draw(st.integers(1, 9)), 10)) for size in sizes[3:]]
    return lengths, rations


def planner(lengths: list[int], rations: list[Ration], layout: Layout) -> Planner:
    return Planner(lengths, BucketSettings(), layout, 3, rations=rations)


def test_epochs_of_a_quarter() -> None:
    """Ten clips at 0.25: two or three an epoch, all of them in every four epochs; three at twice: each in each."""
    visits = Visits([Ration("own", 3, Fraction(2)), Ration("base", 10, Fraction(1, 4))], range(13), 7)
    assert visits.per_epoch == [6, Fraction(5, 2)]
    epochs = [visits.epoch(epoch) for epoch in range(8)]
    own = [0, 1, 2, 13, 14, 15]
    assert all([number for number in epoch if number % 13 < 3] == own for epoch in epochs)
    drawn = [[number for number in epoch if number % 13 >= 3] for epoch in epochs]
    assert [len(numbers) for numbers in drawn] == [2, 3, 2, 3, 2, 3, 2, 3]
    assert sorted(sum(drawn[:4], [])) == sorted(sum(drawn[4:], [])) == list(range(3, 13))
    other = Visits(visits.rations, range(13), 8)
    assert [other.epoch(epoch) for epoch in range(4)] != epochs[:4]


def test_a_replayed_share() -> None:
    """Nine visits of three clips, and a quarter of all from two others: three, so one of the two comes twice."""
    visits = Visits([Ration("own", 3, Fraction(3)), Ration("base", 2, share=Fraction(1, 4))], range(5), 0)
    assert visits.per_epoch == [9, 3]
    counts = [Counter(number % 5 for number in visits.epoch(epoch)) for epoch in (0, 1)]
    assert sorted(counts[0][clip] for clip in (3, 4)) == [1, 2]
    assert counts[0][3] + counts[1][3] == counts[0][4] + counts[1][4] == 3
    with pytest.raises(ValueError, match="leave nothing"):
        Visits([Ration("own", 1), Ration("a", 1, share=Fraction(1, 2)), Ration("b", 1, share=Fraction(1, 2))], [0], 0)


@settings(deadline=None)
@given(st.integers(1, 12), TIMES, st.integers(0, 5), st.integers(1, 40))
def test_no_clip_returns_before_all_others_had_their_turn(clips: int, times: Fraction, first: int, epochs: int) -> None:
    visits = Visits([Ration("a", clips, times)], range(clips), 1)
    counts = Counter(number % clips for epoch in range(first, first + epochs) for number in visits.epoch(epoch))
    taken = [counts[clip] for clip in range(clips)]
    assert max(taken) - min(taken) <= 1, "over any stretch of epochs, clips are visited equally often"
    assert abs(sum(taken) - epochs * times * clips) <= 1


@settings(deadline=None)
@given(planned(), st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_has_every_visit_once_and_no_step_a_clip_twice(
    given_: tuple[list[int], list[Ration]], ranks: int, epoch: int
) -> None:
    lengths, rations = given_
    plan = planner(lengths, rations, Layout(ranks, 1, 2))
    steps = plan.epoch(epoch)
    seen = [row.visit * len(lengths) + row.clip for step in steps for row in step.visits]
    assert sorted(seen) == plan.visits.epoch(epoch)
    assert all(len(set(step.clips)) == len(step.clips) for step in steps)
    counts = Counter(clip for step in steps for clip in step.clips)
    for ration, members in zip(rations, plan.visits.members):
        if not ration.share:
            assert {counts[clip] for clip in members} <= {int(ration.times), -int(-ration.times // 1)}
    assert steps == planner(lengths, rations, Layout(ranks, 1, 2)).epoch(epoch)


@settings(deadline=None)
@given(planned(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12), st.integers(0, 12))
def test_another_number_of_ranks_inside_an_epoch_loses_and_repeats_no_visit(
    given_: tuple[list[int], list[Ration]], first: int, second: int, before: int, between: int
) -> None:
    lengths, rations = given_
    position = Position()
    seen: list[tuple[int, int]] = []
    for ranks, count in ((first, before), (second, between), (first, 10**6)):
        position = Position.from_state(json.loads(json.dumps(position.state())))
        plan = planner(lengths, rations, Layout(ranks, 1, 2))
        for step in islice(plan.walk(position), count):
            if step.epoch > 0:
                break
            seen += [(row.clip, row.visit) for row in step.visits]
        if position.epoch > 0:
            break
    n = len(lengths)
    assert sorted(seen) == sorted((number % n, number // n) for number in plan.visits.epoch(0))


def test_visits_of_a_clip_lie_far_apart() -> None:
    """One clip four times and forty once: one visit in each quarter of the epoch."""
    rations = [Ration("own", 1, Fraction(4)), Ration("base", 40)]
    steps = planner([100] * 41, rations, Layout(1, 1, 1)).epoch(0)
    rounds = [len(list(numbers)) for numbers in Visits(rations, range(41), 3).rounds(0, range(41))]
    assert sum(rounds) == 41 and len(rounds) == 4 and max(rounds) < 20
    places = [step.index for step in steps if step.clips == [0]]
    assert len(steps) == 44 and len(places) == 4
    assert [row.visit for step in steps for row in step.visits if row.clip == 0] == [0, 1, 2, 3]

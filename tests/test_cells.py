"""Steps drawn by cell: every visit once, every clip on a rank that holds its expert, dropped experts not drawn."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.cells import ExpertPlan, Phase
from ds_hymotion.data.plan import Layout, Planner, Position, Step

LENGTHS = [20 + 7 * clip % 90 for clip in range(41)]
EXPERTS = tuple([0] * 20 + [1] * 3 + [2] * 12 + [3] * 6)


def planner(
    owners: int = 2,
    ranks: int = 4,
    phases: tuple[Phase, ...] = (),
    clips: int = 2,
    weights: tuple[Fraction, ...] = (),
) -> Planner:
    plan = ExpertPlan(EXPERTS, 4, owners, phases, weights)
    layout = Layout(ranks, 1, clips, owners=owners)
    return Planner(LENGTHS, BucketSettings((60, 120)), layout, seed=3, experts=plan)


def experts_of(step: Step, rank: int) -> set[int]:
    return {EXPERTS[row.clip] for micro in step.micro_batches[rank] for row in micro}


@pytest.mark.parametrize("owners", [1, 2, 4])
def test_an_epoch_has_every_clip_once_where_its_expert_is(owners: int) -> None:
    plan = planner(owners)
    steps = plan.epoch(0)
    assert sorted(clip for step in steps for clip in step.clips) == list(range(41))
    for step in steps:
        assert step.experts == tuple(sorted({EXPERTS[clip] for clip in step.clips}))
        assert len({LENGTHS[clip] < 60 for clip in step.clips}) == 1
        assert max(map(len, (micro for rank in step.micro_batches for micro in rank))) <= 2
        for rank in range(4):
            assert {plan.experts.owner(expert) for expert in experts_of(step, rank)} <= {rank % owners}  # type: ignore[union-attr]


def test_an_owners_clips_last_as_many_steps_as_the_dearest_owners() -> None:
    """23 clips of owner 0 on 2 ranks x 2: in no bucket is the other owner's smaller share used up early."""
    steps = planner(2).epoch(0)
    sizes = [sum(expert < 2 and (length < 60) == short for expert, length in zip(EXPERTS, LENGTHS)) for short in (0, 1)]
    assert len(steps) == sum(-(-size // 4) for size in sizes)
    assert all(len({expert // 2 for expert in step.experts}) == 2 for step in steps)


def test_dropped_experts_are_not_drawn_and_nothing_is_lost() -> None:
    phases = (Phase(3), Phase(100, trunk=False, drop=2))
    plan = planner(2, phases=phases)
    steps = plan.epoch(0)
    assert sorted(clip for step in steps for clip in step.clips) == list(range(41))
    assert [step.trunk for step in steps[:5]] == [True, True, True, False, False]
    counts = Counter(len(step.experts) for step in steps[3:])
    assert max(counts) <= 2
    for number in range(200):
        dropped = plan.experts.dropped(3, number)  # type: ignore[union-attr]
        assert len(dropped) == (2 if number >= 3 else 0)
        if dropped:
            assert {expert // 2 for expert in dropped} == {0, 1}, "one of every owner"


def test_a_phase_may_train_the_trunk_alone() -> None:
    steps = planner(1, phases=(Phase(100, experts=False),)).epoch(0)
    assert all(step.trunk and step.experts == () for step in steps)


@pytest.mark.parametrize("owners", [1, 2])
def test_weights_are_visits_of_a_types_clips(owners: int) -> None:
    """A type of three clips at 4 is visited as often as twelve at 1; of twenty at 0.5, ten come in every epoch."""
    plan = planner(owners, weights=(Fraction(1, 2), Fraction(4), Fraction(1), Fraction(1)))
    assert plan.visits.per_epoch == [10 + 12 + 12 + 6]
    epochs = [Counter(clip for step in plan.epoch(epoch) for clip in step.clips) for epoch in (0, 1)]
    for seen in epochs:
        assert Counter(EXPERTS[clip] for clip in seen.elements()) == {0: 10, 1: 12, 2: 12, 3: 6}
        assert {seen[clip] for clip in range(20, 23)} == {4}
    assert all((epochs[0] + epochs[1])[clip] == 1 for clip in range(20))
    for step in plan.epoch(0):
        for rank in range(4):
            assert all(expert * owners // 4 == rank % owners for expert in experts_of(step, rank)) or owners == 1


def test_phases_count_steps_of_the_whole_run() -> None:
    plan, position = planner(2, phases=(Phase(9), Phase(100, trunk=False, drop=1))), Position()
    walk = plan.walk(position)
    steps = [next(walk) for _ in range(12)]
    assert [step.trunk for step in steps] == [True] * 9 + [False] * 3
    assert steps[11].epoch > 0 and position.step == 12


def test_a_walk_goes_on_where_a_saved_position_stands() -> None:
    phases = (Phase(4), Phase(100, trunk=False, drop=1))
    plan, position = planner(2, phases=phases), Position()
    walk = plan.walk(position)
    whole = [next(walk) for _ in range(20)]
    for done in (3, 6, 11):
        part = Position()
        walk = plan.walk(part)
        for _ in range(done):
            next(walk)
        again = planner(2, phases=phases).walk(Position.from_state(part.state()))
        assert [next(again) for _ in range(20 - done)] == whole[done:]


def test_twice_the_ranks_have_the_same_steps() -> None:
    """Of the same owners, whatever the ranks: a run goes on with its clips as they were planned."""
    few, many = planner(2, ranks=2, clips=4).epoch(0), planner(2, ranks=4, clips=2).epoch(0)
    assert [sorted(step.clips) for step in few] == [sorted(step.clips) for step in many]


def test_another_number_of_owners_plans_what_is_left() -> None:
    plan = planner(4)
    done = planner(2).epoch(0)[:3]
    rest = plan.epoch(0, [(planner(2).layout, 3)])
    seen = [clip for step in [*done, *rest] for clip in step.clips]
    assert sorted(seen) == list(range(41))


@pytest.mark.parametrize("seed", range(4))
def test_a_rare_type_is_spread_over_the_epoch(seed: int) -> None:
    """Six clips of one type among 194 of its owner's, over some fifty steps: not all of them late."""
    of = tuple([0] * 194 + [1] * 6 + [2] * 100 + [3] * 100)
    plan = ExpertPlan(of, 4, 2)
    layout = Layout(2, 1, 4, owners=2)
    steps = Planner([50] * 400, BucketSettings((60, 120)), layout, seed=seed, experts=plan).epoch(0)
    places = [number / len(steps) for number, step in enumerate(steps) for clip in step.clips if of[clip] == 1]
    assert len(places) == 6 and min(places) < 0.5 and 0.2 < sum(places) / 6 < 0.8

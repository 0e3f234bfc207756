"""Warnings of experts that do not learn: of rare types, not of phases in which none should."""

from __future__ import annotations

from typing import Any, cast

from ds_hymotion.config.experts import ExpertsSection
from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.cells import ExpertPlan, Phase
from ds_hymotion.data.plan import Layout, Planner, Position
from ds_hymotion.training.expert_log import ExpertLog

EXPERTS = (0,) * 15 + (1,)  # the second type has one clip of sixteen


def warnings(phases: tuple[Phase, ...], steps: int, resumed_at: int = -1) -> list[tuple[int, str]]:
    """Numbers of the steps with a warning, and the warnings, of a run that starts anew before step ``resumed_at``."""
    plan = Planner([40] * 16, BucketSettings((60,)), Layout(1, 1, 1), seed=1, experts=ExpertPlan(EXPERTS, 2, 1, phases))
    section = ExpertsSection(number=2, names=["WALK", "SIT"], starving_steps=6)
    log = ExpertLog(cast(Any, None), plan, section, plan.buckets.frames)
    found, walk = [], plan.walk(Position())
    for number in range(1, steps + 1):
        if number == resumed_at:
            state, log = log.state(), ExpertLog(cast(Any, None), plan, section, plan.buckets.frames)
            log.restore(state)
        found += [(number, line) for line in log.count(number, next(walk))]
    assert sum(log.clips) == steps and sum(log.frames) == 40 * steps
    return found


def test_a_rare_type_starves_once_until_it_learns_again() -> None:
    found = warnings((), 16)
    assert 1 <= len(found) <= 2
    assert all(line.startswith("warning: expert SIT has not learnt for 6 steps; 1 of 16 clips") for _, line in found)
    assert len({number for number, _ in found}) == len(found)
    for at in range(2, 16):
        assert warnings((), 16, resumed_at=at) == found


def test_steps_without_learning_experts_do_not_count() -> None:
    assert warnings((Phase(40, experts=False),), 32) == []


def test_counts_of_a_checkpoint_without_waits_go_on() -> None:
    plan = Planner([40] * 16, BucketSettings((60,)), Layout(1, 1, 1), seed=1, experts=ExpertPlan(EXPERTS, 2))
    log = ExpertLog(cast(Any, None), plan, ExpertsSection(number=2, names=["WALK", "SIT"]), plan.buckets.frames)
    log.restore({"clips": [3, 1], "frames": [120, 40]})
    assert log.state() == {"clips": [3, 1], "frames": [120, 40], "waits": [0, 0]}

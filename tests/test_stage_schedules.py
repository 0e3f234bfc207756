"""Simulated schedules against what their papers say."""

from __future__ import annotations

import pytest

from ds_hymotion.reports.measuring.stage_schedules import (
    Costs,
    Operation,
    bubble,
    by_time,
    dual_pipe_v,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)

GRID = [(stages, micro) for stages in (2, 4, 5, 8) for micro in (4, 8, 16)]


@pytest.mark.parametrize(("stages", "micro"), GRID)
def test_one_forward_one_backward_waits_for_p_minus_one_of_its_passes(stages: int, micro: int) -> None:
    share = bubble(one_forward_one_backward(stages, micro, Costs()))
    assert share == pytest.approx((stages - 1) / (micro + stages - 1))


@pytest.mark.parametrize(("stages", "micro"), [pair for pair in GRID if pair[1] % pair[0] == 0])
def test_interleaving_halves_the_wait(stages: int, micro: int) -> None:
    share = bubble(interleaved(stages, micro, Costs()))
    assert share == pytest.approx((stages - 1) / (2 * micro + stages - 1))


@pytest.mark.parametrize(("stages", "micro"), [pair for pair in GRID if pair[1] >= pair[0]])
def test_zero_bubble_h1_waits_for_forward_plus_input_minus_weight(stages: int, micro: int) -> None:
    wait = stages - 1  # (p − 1)(F + I − W) with all three 1
    assert bubble(zero_bubble(stages, micro, Costs())) == pytest.approx(wait / (3 * micro + wait))


@pytest.mark.parametrize(("stages", "micro"), [pair for pair in GRID if pair[1] >= 2 * pair[0]])
def test_dual_pipe_v_runs_everything_once_and_waits_less(stages: int, micro: int) -> None:
    devices = dual_pipe_v(stages, micro, Costs())
    made = [key for operations in devices for operation in operations for key in operation.keys]
    for kind in "FB":
        assert sorted(key[1:] for key in made if key[0] == kind) == [
            (stage, number) for stage in range(2 * stages) for number in range(micro)
        ]
    assert 0 <= bubble(devices) < bubble(one_forward_one_backward(stages, micro, Costs()))
    with pytest.raises(ValueError, match="fewer than"):
        dual_pipe_v(stages, 2 * stages - 1, Costs())


def test_by_time_waits_for_states_alone() -> None:
    assert bubble(by_time(4, 4, Costs(state=0.0))) == 0
    shares = [bubble(by_time(stages, 4, Costs())) for stages in (2, 4, 5, 8)]
    assert shares == sorted(shares) and shares[0] < 0.02 and shares[-1] < 0.06


def test_a_deadlock_is_an_error() -> None:
    first = Operation((("F", 0, 0),), 1.0, (("F", 1, 0),))
    second = Operation((("F", 1, 0),), 1.0, (("F", 0, 0),))
    with pytest.raises(ValueError, match="for ever"):
        bubble([[first], [second]])

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ds_hymotion.metrics.skating import skating_ratio

LEFT, RIGHT, FPS = 10, 11, 20.0


def standing(frames: int) -> Tensor:
    """Both feet on the ground, at rest."""
    return torch.zeros(frames, 22, 3)


def sliding(frames: int, speed: float, foot: int = LEFT, axis: int = 2) -> Tensor:
    positions = standing(frames)
    positions[:, foot, axis] = speed * torch.arange(frames) / FPS
    return positions


@pytest.mark.parametrize("foot", [LEFT, RIGHT])
@pytest.mark.parametrize("axis", [0, 2])
def test_a_foot_that_slides_all_the_time(foot: int, axis: int) -> None:
    assert skating_ratio(sliding(21, 1.0, foot, axis), FPS) == 1.0


def test_both_feet_sliding_count_once() -> None:
    assert skating_ratio(sliding(21, 1.0, LEFT) + sliding(21, 1.0, RIGHT), FPS) == 1.0


def test_a_slow_foot_and_a_standing_body_do_not_skate() -> None:
    assert skating_ratio(sliding(21, 0.49), FPS) == 0.0
    assert skating_ratio(standing(21), FPS) == 0.0


def test_a_foot_in_the_air_does_not_skate() -> None:
    positions = sliding(21, 1.0)
    positions[:, LEFT, 1] = 0.06
    assert skating_ratio(positions, FPS) == 0.0


def test_contact_needs_both_frames_of_a_pair() -> None:
    positions = sliding(21, 2.0)
    positions[10, LEFT, 1] = 0.06  # breaks the pairs (9, 10) and (10, 11) of 20
    assert skating_ratio(positions, FPS) == pytest.approx(18 / 20)


def test_moving_up_is_not_sliding() -> None:
    positions = standing(21)
    positions[::2, LEFT, 1] = 0.04  # 0.8 m/s, vertical
    assert skating_ratio(positions, FPS) == 0.0


def test_a_single_jump_is_no_skating_but_a_long_one_is() -> None:
    positions = standing(21)
    positions[10:, LEFT, 0] = 0.1  # 2 m/s in one pair, 0.4 m/s over five
    assert skating_ratio(positions, FPS) == 0.0
    positions[10:, LEFT, 0] = 0.15  # 3 m/s in one pair, 0.6 m/s over five: that one pair
    assert skating_ratio(positions, FPS) == pytest.approx(1 / 20)


def test_pairs_beyond_the_clip_count_as_standing() -> None:
    # At 0.8 m/s the mean over five pairs is 0.48 in the first and last pair and 0.64 or 0.8 elsewhere.
    assert skating_ratio(sliding(21, 0.8), FPS) == pytest.approx(18 / 20)


@pytest.mark.parametrize("shape", [(1, 22, 3), (10, 11, 3), (10, 22, 2)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="positions"):
        skating_ratio(torch.zeros(shape), FPS)

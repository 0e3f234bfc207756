from __future__ import annotations

import math

import pytest
import torch
from pytorch3d.transforms import axis_angle_to_matrix
from torch import Tensor

from ds_hymotion.flow.losses import (
    channel_sums,
    foot_contact,
    foot_contact_sum,
    joint_position_sum,
    joint_positions,
)
from ds_hymotion.flow.matching import interpolate, predicted_data
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.motion.statistics import normalise

KINDS = ["hymotion-201", "smpl24-rotmat"]


def test_the_path_starts_at_noise_and_ends_at_data() -> None:
    data, noise = torch.full((3, 2, 1), 5.0), torch.full((3, 2, 1), 1.0)
    x_t, velocity = interpolate(data, noise, torch.tensor([0.0, 0.25, 1.0]))
    assert x_t[:, 0, 0].tolist() == [1.0, 2.0, 5.0]
    assert (velocity == 4).all()
    assert torch.equal(predicted_data(x_t, velocity, torch.tensor([0.0, 0.25, 1.0])), data)


def test_channel_sums_count_valid_frames_only() -> None:
    target = torch.zeros(2, 3, 2)
    prediction = torch.tensor([[[1.0, 2.0], [3.0, 0.5], [9.0, 9.0]], [[0.0, 4.0], [7.0, 7.0], [7.0, 7.0]]])
    lengths = torch.tensor([2, 1])
    assert channel_sums(prediction, target, lengths, "mse").tolist() == [10.0, 20.25]
    assert channel_sums(prediction, target, lengths, "smooth_l1").tolist() == [0.5 + 2.5, 1.5 + 0.125 + 3.5]


@pytest.mark.parametrize("kind", ["mse", "smooth_l1"])
def test_padding_may_hold_anything(kind: str) -> None:
    prediction = torch.tensor([[[1.0], [math.nan], [math.inf]], [[math.nan], [2.0], [2.0]]], requires_grad=True)
    sums = channel_sums(prediction, torch.zeros(2, 3, 1), torch.tensor([1, 0]), kind)  # type: ignore[arg-type]
    sums.sum().backward()
    assert sums.tolist() == [1.0 if kind == "mse" else 0.5]
    assert prediction.grad is not None
    assert prediction.grad.flatten().tolist() == [2.0 if kind == "mse" else 1.0, 0, 0, 0, 0, 0]


def test_sums_are_fp32_for_16_bit_predictions() -> None:
    prediction = torch.ones(1, 1001, 1, dtype=torch.bfloat16)
    for target in (torch.zeros(1, 1001, 1), torch.zeros_like(prediction)):
        sums = channel_sums(prediction, target, torch.tensor([1001]))
        assert sums.dtype == torch.float32 and sums.item() == 1001


def test_an_empty_batch_sums_to_zero_with_a_gradient() -> None:
    prediction = torch.zeros(0, 4, 3, requires_grad=True)
    sums = channel_sums(prediction, torch.zeros(0, 4, 3), torch.zeros(0, dtype=torch.long))
    assert sums.tolist() == [0, 0, 0]
    sums.sum().backward()
    assert prediction.grad is not None


def test_parts_add_up_to_the_whole() -> None:
    random = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(2, 4, 6, 3, generator=random).unbind()
    lengths = torch.tensor([6, 1, 3, 4])
    whole = channel_sums(prediction, target, lengths)
    parts = [channel_sums(prediction[rows], target[rows], lengths[rows]) for rows in ([0, 2], [1, 3])]
    assert torch.allclose(parts[0] + parts[1], whole)
    with pytest.raises(ValueError, match="'l1' is unknown; use mse or smooth_l1"):
        channel_sums(prediction, target, lengths, "l1")  # type: ignore[arg-type]


def clip(frames: int = 6, shift: float = 0.0, seed: int = 0) -> Motion:
    random = torch.Generator().manual_seed(seed)
    rotations = axis_angle_to_matrix(0.3 * torch.randn(frames, 24, 3, generator=random))
    translation = torch.randn(frames, 3, generator=random) * 0.1 + torch.tensor([0.0, shift, 0.0])
    return Motion(rotations, translation, 30.0)


def statistics(space: Representation) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(8)
    return 0.1 * torch.randn(space.channels, generator=random), 0.5 + torch.rand(space.channels, generator=random)


@pytest.mark.parametrize("kind", KINDS)
def test_decoded_joints_are_the_motions(kind: str) -> None:
    space = representation(kind)
    mean, std = statistics(space)
    motion = clip()
    features = normalise(space.encode(motion), mean, std)[None]
    positions = joint_positions(
        torch.cat([features, torch.full_like(features, 50.0)], 1), torch.tensor([6]), space, mean, std
    )
    assert positions.shape == (1, 12, space.joints, 3)
    assert torch.allclose(positions[0, :6], motion.joints()[:, : space.joints], atol=1e-5)
    assert torch.equal(positions[0, 6:], positions[0, 5:6].expand(6, -1, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shifted_body_costs_its_shift_squared_per_joint(kind: str) -> None:
    space = representation(kind)
    mean, std = statistics(space)
    true, moved = (normalise(space.encode(clip(shift=shift)), mean, std).expand(2, -1, -1) for shift in (0.0, 0.1))
    lengths = torch.tensor([6, 2])
    total = joint_position_sum(moved, true, lengths, space, mean, std)
    assert float(total) == pytest.approx(0.1**2 * space.joints * 8, rel=1e-3)
    assert float(joint_position_sum(true, true, lengths, space, mean, std)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_body_losses_have_finite_gradients_inside_the_length_only(kind: str) -> None:
    space = representation(kind)
    mean, std = statistics(space)
    true = normalise(space.encode(clip()), mean, std).expand(3, -1, -1)
    predicted = torch.randn(3, 6, space.channels, generator=torch.Generator().manual_seed(3)).bfloat16()
    predicted.requires_grad_()
    lengths = torch.tensor([6, 2, 0])
    total = joint_position_sum(predicted, true, lengths, space, mean, std)
    total = total + foot_contact_sum(predicted, true * 0 + true[:, :1], lengths, space, mean, std, 30.0)
    total.backward()
    assert total.dtype == torch.float32
    assert predicted.grad is not None and predicted.grad.isfinite().all()
    assert predicted.grad[0].any() and predicted.grad[1, :2].any()
    assert not predicted.grad[1, 2:].any() and not predicted.grad[2].any()


@pytest.mark.parametrize("frames", [0, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_no_body_loss(kind: str, frames: int) -> None:
    space = representation(kind)
    mean, std = statistics(space)
    empty = torch.zeros(0, frames, space.channels, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    total = joint_position_sum(empty, empty.detach(), none, space, mean, std)
    total = total + foot_contact_sum(empty, empty.detach(), none, space, mean, std, 30.0)
    assert total.item() == 0
    total.backward()
    assert empty.grad is not None


def test_a_foot_stands_while_low_and_slow() -> None:
    # six frames at 10 fps: foot 0 rests, slides, rises and sinks; foot 1 is high all the time
    path = [
        [0.0, 0.0, 0.0],
        [0.04, 0.02, 0.0],
        [0.14, 0.0, 0.0],
        [0.14, 0.04, 0.0],
        [0.14, 0.06, 0.0],
        [0.14, 0.04, 0.0],
    ]
    foot = torch.tensor(path)
    feet = torch.stack([foot, foot + torch.tensor([0.0, 0.3, 0.0])], 1)[None]
    assert foot_contact(feet, torch.tensor([6]), 10.0)[0].tolist() == [
        [True, False],
        [False, False],
        [True, False],
        [False, False],
        [False, False],
    ]
    lifted = feet + torch.tensor([0.0, 2.0, 0.0])
    assert torch.equal(foot_contact(lifted, torch.tensor([6]), 10.0), foot_contact(feet, torch.tensor([6]), 10.0))
    assert foot_contact(feet, torch.tensor([3]), 10.0)[0, :, 0].tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_sliding_feet_cost_their_speed_squared(kind: str) -> None:
    space = representation(kind)
    mean, std = statistics(space)
    rest = Motion(torch.eye(3).expand(4, 24, 3, 3), torch.zeros(4, 3), 30.0)
    sliding = Motion(rest.rotations, torch.arange(4.0)[:, None] * torch.tensor([0.02, 0.0, 0.0]), 30.0)
    true, predicted = (normalise(space.encode(motion), mean, std)[None] for motion in (rest, sliding))
    total = foot_contact_sum(predicted, true, torch.tensor([4]), space, mean, std, 30.0)
    assert float(total) == pytest.approx(3 * 2 * 0.6**2, rel=1e-4)
    assert float(foot_contact_sum(true, true, torch.tensor([4]), space, mean, std, 30.0)) == pytest.approx(0, abs=1e-6)
    assert float(foot_contact_sum(predicted, true, torch.tensor([3]), space, mean, std, 30.0)) < float(total)

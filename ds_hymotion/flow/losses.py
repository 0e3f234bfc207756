"""Sums over valid frames. The caller divides by the global number of valid elements, which the batch plan knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ds_hymotion.motion.kinematics import forward_kinematics
from ds_hymotion.motion.representation import Representation
from ds_hymotion.motion.skeleton import smpl24
from ds_hymotion.motion.statistics import denormalise

LossKind = Literal["mse", "smooth_l1"]
Completion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From decoded rotations [..., 24, 3, 3] and translation [..., 3], of which a caller has a part, to the whole."""
FEET = (10, 11)
CONTACT_HEIGHT = 0.05
CONTACT_SPEED = 0.5


def valid_frames(lengths: Tensor, frames: int) -> Tensor:
    """[B, frames] bool, true inside each row's length."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]


def channel_sums(prediction: Tensor, target: Tensor, lengths: Tensor, kind: LossKind = "mse") -> Tensor:
    """Loss [C] per channel, summed over batch and valid frames, in fp32 whatever the prediction's dtype.

    Args:
        prediction: [B, L, C] velocity; padded frames may hold anything, NaN included.
        target: [B, L, C] velocity.
        lengths: [B] valid frames.
        kind: ``mse`` (squared error) or ``smooth_l1`` (½ d² below |d| = 1, |d| − ½ above).

    Raises:
        ValueError: an unknown kind.
    """
    valid = valid_frames(lengths.to(prediction.device), prediction.shape[1])[..., None]
    error = torch.where(valid, prediction.float() - target.float(), 0.0)
    if kind == "mse":
        return error.square().sum((0, 1))
    if kind == "smooth_l1":
        return F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none", beta=1.0).sum((0, 1))
    raise ValueError(f"loss {kind!r} is unknown; use mse or smooth_l1")


def joint_positions(
    features: Tensor,
    lengths: Tensor,
    representation: Representation,
    mean: Tensor,
    std: Tensor,
    complete: Completion | None = None,
) -> Tensor:
    """World positions [B, L, J, 3] in metres of normalised features [B, L, C], differentiable, in fp32.

    J is the representation's number of joints. Padded frames repeat the last valid one, because what stands there
    need not be a rotation. ``complete`` may replace what was decoded before it is used.
    """
    last = (lengths.to(features.device) - 1).clamp(min=0)[:, None]
    frame = torch.arange(features.shape[1], device=features.device).minimum(last)
    whole = features.float().gather(1, frame[..., None].expand_as(features))
    rotations, translation = representation.decode(denormalise(whole, mean, std))
    if complete is not None:
        rotations, translation = complete(rotations, translation)
    return forward_kinematics(rotations, translation, smpl24())[..., : representation.joints, :]


def joint_position_sum(
    predicted: Tensor,
    true: Tensor,
    lengths: Tensor,
    representation: Representation,
    mean: Tensor,
    std: Tensor,
    complete: Completion | None = None,
) -> Tensor:
    """Squared distance between decoded joints, summed over batch, valid frames and joints, in m².

    Divide by valid frames · ``representation.joints`` for the mean squared joint error.

    Args:
        predicted: [B, L, C] normalised data that the network predicts, x_t + (1 − t) · v.
        true: [B, L, C] normalised data.
        lengths: [B] valid frames.
        mean, std: [C] statistics of the normalisation.
        complete: applied to what is decoded from ``predicted``.
    """
    error = joint_positions(predicted, lengths, representation, mean, std, complete)
    error = error - joint_positions(true, lengths, representation, mean, std)
    valid = valid_frames(lengths.to(error.device), error.shape[1])[..., None, None]
    return torch.where(valid, error, 0.0).square().sum()


def foot_contact_sum(
    predicted: Tensor,
    true: Tensor,
    lengths: Tensor,
    representation: Representation,
    mean: Tensor,
    std: Tensor,
    fps: float,
    feet: Sequence[int] = FEET,
    complete: Completion | None = None,
) -> Tensor:
    """Squared speed of predicted feet where the true feet stand, summed over batch, frames and feet, in (m/s)².

    Frames without contact count as zero, so valid frames · ``len(feet)`` is a divisor that is known before the data
    are. Arguments as in :func:`joint_position_sum`; ``fps`` turns metres per frame into metres per second.
    """
    feet = list(feet)
    standing = foot_contact(joint_positions(true, lengths, representation, mean, std)[..., feet, :], lengths, fps)
    bodies = joint_positions(predicted, lengths, representation, mean, std, complete)
    steps = bodies[..., feet, :].diff(dim=1) * fps
    return torch.where(standing[..., None], steps, 0.0).square().sum()


def foot_contact(feet: Tensor, lengths: Tensor, fps: float) -> Tensor:
    """[B, L−1, F] bool: which of the feet [B, L, F, 3] (metres) stand from a frame to the next.

    A foot stands while it is less than 5 cm above the lowest foot of the clip in both frames and slower than 0.5 m/s:
    the bounds by which GMD (Karunratanakul et al. 2023) tells a sliding foot.
    """
    valid = valid_frames(lengths.to(feet.device), feet.shape[1])
    height = feet[..., 1]
    if not height.numel():  # a rank without clips: amin has no value for nothing
        return torch.zeros_like(height[:, 1:], dtype=torch.bool)
    floor = torch.where(valid[..., None], height, torch.inf).amin((1, 2), keepdim=True)
    low = (height < floor + CONTACT_HEIGHT) & valid[..., None]
    slow = feet.diff(dim=1).norm(dim=-1) * fps < CONTACT_SPEED
    return low[:, 1:] & low[:, :-1] & slow

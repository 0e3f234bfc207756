"""What the action network sees of a motion: joints about the pelvis, in the frame of the body's heading."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ds_hymotion.motion.kinematics import forward_kinematics
from ds_hymotion.motion.representation import Representation, Smpl24RotationMatrices
from ds_hymotion.motion.skeleton import BODY_JOINTS, MIRROR_24, Skeleton, smpl24

RATE = 15.0
"""Frames per second of the features, whatever the corpus has."""
VALUES = 3 * BODY_JOINTS
CHANNELS = 2 * VALUES + 1
"""Positions, velocities and the turning rate."""
_LEANING = 0.2
"""A right-to-left direction within 12 degrees of the vertical gives no heading; the last one stays."""


def action_features(features: Tensor, representation: Representation, fps: float, skeleton: Skeleton) -> Tensor:
    """Features [T, C] of a corpus at ``fps`` -> [T', 133] at 15 frames per second, float32.

    Of the 22 body joints the position (x and z from the pelvis, y from the floor; metres) and the velocity (m/s), then
    the turning rate (rad/s). x points to the body's left, z ahead, so neither the place nor the heading matters.
    """
    return _features(joint_track(features, representation, fps, skeleton))


def joint_track(features: Tensor, representation: Representation, fps: float, skeleton: Skeleton) -> Tensor:
    """World positions [T', 22, 3] in metres at 15 frames per second, by time, linearly between frames."""
    last = len(features) - 1
    count = math.floor(last / fps * RATE + 1e-6) + 1
    place = (torch.arange(count, dtype=torch.float64) * (fps / RATE)).clamp(max=last)
    before = (place + 1e-6).long()
    weight = (place - before).clamp(min=0).float()[:, None, None]
    first = _positions(features[before], representation, skeleton)
    if float(weight.max()) < 1e-5:
        return first
    return torch.lerp(first, _positions(features[(before + 1).clamp(max=last)], representation, skeleton), weight)


def _positions(features: Tensor, representation: Representation, skeleton: Skeleton) -> Tensor:
    if isinstance(representation, Smpl24RotationMatrices):  # decoding would project what is a rotation
        split = 9 * representation.joints
        rotations = features[:, :split].unflatten(1, (representation.joints, 3, 3))
        translation = features[:, split:]
    else:
        rotations, translation = representation.decode(features)
    body = skeleton.first(BODY_JOINTS)
    return forward_kinematics(rotations[:, :BODY_JOINTS], translation, body)


def _features(track: Tensor) -> Tensor:
    frames = len(track)
    yaw = _heading(track)
    place = torch.arange(frames)
    after, before = (place + 1).clamp(max=frames - 1), (place - 1).clamp(min=0)
    seconds = (after - before).clamp(min=1).float() / RATE
    velocity = (track[after] - track[before]) / seconds[:, None, None]
    turned = yaw[after] - yaw[before]
    rate = torch.atan2(torch.sin(turned), torch.cos(turned)) / seconds
    about = track - track[:, :1] * torch.tensor([1.0, 0.0, 1.0])
    return torch.cat([_facing(about, yaw).flatten(1), _facing(velocity, yaw).flatten(1), rate[:, None]], dim=1)


def _heading(track: Tensor) -> Tensor:
    """Yaw [T] in radians; 0 faces +Z, pi/2 faces +X."""
    names = smpl24()
    left_hip, right_hip, left_shoulder, right_shoulder = (
        track[:, names.index(name)] for name in ("left_hip", "right_hip", "left_shoulder", "right_shoulder")
    )
    across = left_hip - right_hip + left_shoulder - right_shoulder
    yaw = torch.atan2(-across[:, 2], across[:, 0])
    sure = across[:, [0, 2]].norm(dim=1) > _LEANING * across.norm(dim=1)
    if not bool(sure.any()):
        return torch.zeros_like(yaw)
    known = torch.where(sure, torch.arange(len(track)), -1).cummax(0).values
    return yaw[torch.where(known < 0, sure.int().argmax(), known)]


def _facing(vectors: Tensor, yaw: Tensor) -> Tensor:
    sine, cosine = torch.sin(yaw)[:, None], torch.cos(yaw)[:, None]
    x, y, z = vectors.unbind(-1)
    return torch.stack([cosine * x - sine * z, y, sine * x + cosine * z], dim=-1)


def mirrored(features: Tensor) -> Tensor:
    """Left and right exchanged, of features [..., 133]."""
    joints = MIRROR_24[:BODY_JOINTS]
    order = torch.tensor([3 * joint + axis for joint in joints for axis in range(3)])
    order = torch.cat([order, order + VALUES, torch.tensor([CHANNELS - 1])])
    sign = torch.ones(CHANNELS)
    sign[0 : 2 * VALUES : 3] = -1.0
    sign[-1] = -1.0
    return features[..., order] * sign

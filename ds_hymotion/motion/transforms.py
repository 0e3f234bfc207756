"""Changes of a motion's frame, rate and side; each returns a new motion."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ds_hymotion.motion.kinematics import forward_kinematics
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import (
    axis_angle_to_matrix,
    compose,
    matrix_to_quaternion,
    quaternion_to_matrix,
    rotate,
    slerp,
)
from ds_hymotion.motion.skeleton import MIRROR_24, smpl24

_FRAME_TOLERANCE = 1e-6
_LYING = 0.2
"""Sine of the angle to the vertical within which the right-to-left direction gives no heading (the body lies)."""


def z_up_to_y_up(motion: Motion) -> Motion:
    """AMASS's world (z up) to this package's (y up): a quarter turn about x, (x, y, z) -> (x, z, -y)."""
    return _turned(motion, torch.tensor([-math.pi / 2, 0.0, 0.0], dtype=torch.float64))


def resample(motion: Motion, fps: float) -> Motion:
    """The motion at another rate, sampled by time: frame k shows the time k / fps of the source.

    Rotations by slerp along the shorter arc, translations linearly; frames at a source frame's own time are copied.
    The last frame lies within the source. Raises :class:`ValueError` if ``fps`` is not positive.
    """
    if not (math.isfinite(fps) and fps > 0):
        raise ValueError(f"fps {fps}, expected a positive number, for example 30")
    if fps == motion.fps:
        return motion
    last = motion.frames - 1
    frames = math.floor(last / motion.fps * fps + _FRAME_TOLERANCE) + 1
    position = (torch.arange(frames, dtype=torch.float64) / fps * motion.fps).clamp(max=last)
    nearest = position.round()
    position = torch.where((position - nearest).abs() < _FRAME_TOLERANCE, nearest, position)
    before = position.long()
    after = (before + 1).clamp(max=last)
    weight = position - before
    source = motion.rotations
    rotations = source[before]
    between = weight > 0
    if bool(between.any()):
        start, end = (matrix_to_quaternion(source[index[between]].double()) for index in (before, after))
        rotations[between] = quaternion_to_matrix(slerp(start, end, weight[between, None])).to(source.dtype)
    moved = torch.lerp(motion.translation[before].double(), motion.translation[after].double(), weight[:, None])
    return Motion(rotations, moved.to(motion.translation.dtype), fps)


def to_floor(motion: Motion) -> Motion:
    """The lowest joint of the whole clip at y = 0: the ground of a recording is not defined."""
    lowest = motion.joints()[..., 1].min()
    return replace(motion, translation=motion.translation - torch.stack([lowest * 0, lowest, lowest * 0]))


def heading(motion: Motion, frame: int = 0) -> float:
    """Yaw in radians of the body's forward direction at ``frame``: 0 faces +Z, pi/2 faces +X.

    Forward is the direction from right to left, over hips and shoulders, crossed with up (the rest body, not quite
    symmetric, has a heading of 0.24 degrees). A body on its side, where right to left is within 12 degrees of the
    vertical, faces where the front of its pelvis points.
    """
    rotations = motion.rotations[frame].double()
    joints = forward_kinematics(rotations, None, smpl24())
    left_hip, right_hip, left_shoulder, right_shoulder = (
        joints[smpl24().index(name)] for name in ("left_hip", "right_hip", "left_shoulder", "right_shoulder")
    )
    across = left_hip - right_hip + left_shoulder - right_shoulder
    forward = torch.linalg.cross(across, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    if float(forward.norm()) <= _LYING * float(across.norm()):
        forward = rotations[0, :, 2]
    return math.atan2(float(forward[0]), float(forward[2]))


def face_forward(motion: Motion) -> Motion:
    """At frame 0 the body faces +Z and the pelvis is over the origin (x = z = 0); heights stay."""
    turned = _turned(motion, torch.tensor([0.0, -heading(motion), 0.0], dtype=torch.float64))
    pelvis = turned.translation[0] + smpl24().offsets[0]
    return replace(turned, translation=turned.translation - pelvis * torch.tensor([1.0, 0.0, 1.0]))


def canonical(motion: Motion) -> Motion:
    """On the floor, over the origin, facing +Z: where every prepared motion starts."""
    return face_forward(to_floor(motion))


def mirror(motion: Motion) -> Motion:
    """Left and right exchanged: the reflection across the plane x = 0.

    The pelvis path and all joint rotations are exact reflections; joint positions are so up to the small left-right
    difference of the rest offsets.
    """
    flip = torch.tensor([-1.0, 1.0, 1.0])
    rotations = motion.rotations[:, list(MIRROR_24)] * torch.outer(flip, flip)
    rest = smpl24().offsets[0]
    return replace(motion, rotations=rotations, translation=(motion.translation + rest) * flip - rest)


def _turned(motion: Motion, axis_angle: Tensor) -> Motion:
    """The world turned about its origin: orientation and pelvis, the latter being ``translation + J0``."""
    turn = axis_angle_to_matrix(axis_angle)
    rest = smpl24().offsets[0].double()
    translation = rotate(turn, motion.translation.double() + rest) - rest
    root = compose(turn, motion.rotations[:, :1].double())
    rotations = torch.cat([root.to(motion.rotations.dtype), motion.rotations[:, 1:]], dim=1)
    return replace(motion, rotations=rotations, translation=translation)

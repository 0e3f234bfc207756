"""Limbs of two bones: inverse kinematics in closed form, and the turns of collar, shoulder and elbow."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from ds_hymotion.data.builtin.curves import Array, minimum_jerk

FORWARD = np.array([0.0, 0.0, 1.0])


def about(axis: str, degrees: Array) -> Rotation:
    """Turns about one axis, ``X``, ``Y`` or ``Z``, by angles [T]."""
    return Rotation.from_euler(axis, degrees[:, None], degrees=True)


def unit(vectors: Array) -> Array:
    """Vectors [..., 3] at length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def across(vectors: Array, axis: Array) -> Array:
    """The unit part of ``vectors`` [..., 3] at right angles to the unit ``axis`` [..., 3]."""
    return unit(vectors - (vectors * axis).sum(-1, keepdims=True) * axis)


def within(distance: Array, limit: float, softness: float) -> Array:
    """``distance`` [T], bent smoothly from ``limit`` − ``softness`` on so that it never passes ``limit``."""
    knee = limit - softness
    beyond = np.maximum(distance - knee, 0.0)
    return np.where(distance < knee, distance, limit - softness * np.exp(-beyond / softness))


def two_bones(
    root: Array, target: Array, bend: Array, first: float, second: float, softness: float
) -> tuple[Array, Array, Array]:
    """The middle and the end [T, 3] of a limb from ``root`` towards ``target``, its middle joint pushed along ``bend``.

    The third result is the part of ``bend`` at right angles to the line from root to end, which both bones face.
    Law of cosines; a target out of reach is approached along its line, and from ``softness`` metres before the limit
    on ever more slowly, because the middle joint moves infinitely fast where a limb snaps straight.
    """
    line = target - root
    distance = np.linalg.norm(line, axis=-1)
    along = line / distance[:, None]
    distance = within(np.maximum(distance, abs(first - second) + 0.05), 0.9995 * (first + second), softness)
    cosine = np.clip((first**2 + distance**2 - second**2) / (2.0 * first * distance), -1.0, 1.0)[:, None]
    side = across(bend, along)
    middle = root + first * (cosine * along + np.sqrt(1.0 - cosine**2) * side)
    return middle, root + distance[:, None] * along, side


def bone_turn(rest: Array, bone: Array, facing: Array) -> Rotation:
    """The turn that lays the rest direction ``rest`` [3] along ``bone`` [T, 3], its forward side along ``facing``."""
    start = _frame(rest[None], FORWARD[None])
    return Rotation.from_matrix(_frame(bone, facing) @ start.transpose(0, 2, 1))


def _frame(bone: Array, facing: Array) -> Array:
    first = unit(bone)
    third = across(np.broadcast_to(facing, first.shape), first)
    return np.stack([first, np.cross(third, first), third], axis=-1)


def hanging_arm(rest: Array, sign: float, flexion: Array, abduction: Array, twist: Array) -> Rotation:
    """The upper arm's turn in the chest's frame from its angles in degrees [T]; ``rest`` [3] is the T-pose bone."""
    hang = bone_turn(rest, np.array([[0.0, -1.0, 0.0]]), FORWARD[None])
    angles = np.stack([sign * abduction, -flexion, -sign * twist], axis=-1)
    return Rotation.from_euler("ZXY", angles, degrees=True) * hang


def elbow_turn(sign: float, angle: Array) -> Rotation:
    """The elbow's own turn by a flexion in degrees [T]."""
    return about("Y", -sign * angle)


def collar_turn(upper_arm: Array, sign: float) -> Rotation:
    """How the collar follows an upper arm [T, 3] (unit, chest's frame): forward, and up from 50° below the horizon."""
    elevation = np.degrees(np.arcsin(np.clip(upper_arm[:, 1], -1.0, 1.0)))
    lift = 22.0 * minimum_jerk((elevation + 50.0) / 140.0)
    ahead = 9.0 * upper_arm[:, 2]
    return Rotation.from_euler("YZ", np.stack([-sign * ahead, sign * lift], axis=-1), degrees=True)


def blend(first: Rotation, second: Rotation, weight: Array) -> Rotation:
    """From ``first`` to ``second`` along the shortest turn, by ``weight`` [T]."""
    difference = (first.inv() * second).as_rotvec()
    return first * Rotation.from_rotvec(weight[:, None] * difference)

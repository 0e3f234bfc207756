"""From a :class:`Body` over time to joint rotations: the trunk, arms and legs that meet its wishes, in balance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d, maximum_filter1d
from scipy.spatial.transform import Rotation

from ds_hymotion.data.builtin import limbs
from ds_hymotion.data.builtin.body import SIDES, SIGN, Body
from ds_hymotion.data.builtin.curves import Array
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.skeleton import smpl24

PASSES = 4  # of balance and leg length; the centre of mass is within 5 mm after three
SETTLE_SECONDS = 0.05
SUPPORT_SECONDS = 0.12
ARM_SOFTNESS, LEG_SOFTNESS = 0.04, 0.002  # metres; a standing foot must be met, a hand need not
LEAST_HEIGHT = 0.12  # metres of a hip over its ankle; a foot further away is out of reach

# Share of the body's mass between two joints (Winter, Biomechanics and Motor Control, table 4.1); a trunk in three.
SEGMENTS: dict[tuple[str, str], float] = {
    ("pelvis", "spine1"): 0.170,
    ("spine1", "spine3"): 0.160,
    ("spine3", "neck"): 0.167,
    ("neck", "head"): 0.081,
} | {
    (f"{side}_{upper}", f"{side}_{lower}"): share
    for side in SIDES
    for upper, lower, share in [
        ("hip", "knee", 0.100),
        ("knee", "ankle", 0.0465),
        ("ankle", "foot", 0.0145),
        ("shoulder", "elbow", 0.028),
        ("elbow", "wrist", 0.016),
        ("wrist", "hand", 0.006),
    ]
}
SPINE_SHARES = {"spine1": 0.35, "spine2": 0.35, "spine3": 0.3}
HEAD_SHARES = {"neck": 0.5, "head": 0.5}


@dataclass(frozen=True)
class Bones:
    """Names, parents and rest offsets [24, 3] of the skeleton in double precision."""

    names: tuple[str, ...]
    parents: tuple[int, ...]
    offsets: Array

    def __getitem__(self, name: str) -> Array:
        return self.offsets[self.names.index(name)]

    def length(self, name: str) -> float:
        """Metres from a joint's parent to it."""
        return float(np.linalg.norm(self[name]))


@lru_cache(maxsize=1)
def bones() -> Bones:
    """The built-in set's body: the neutral SMPL-24 skeleton."""
    skeleton = smpl24()
    return Bones(skeleton.names, skeleton.parents, skeleton.offsets.double().numpy())


class Solution:
    """Local turns and world positions of all joints for one place of the pelvis."""

    def __init__(self, body: Body, pelvis: Array) -> None:
        self.bones = bones()
        self.local: dict[str, Rotation] = {}
        self.turns: dict[str, Rotation] = {}
        self.places: dict[str, Array] = {}
        self.count = len(body.times)
        self._add("pelvis", Rotation.from_euler("YXZ", body.hips, degrees=True), pelvis)
        for name, share in SPINE_SHARES.items():
            self._add(name, Rotation.from_euler("YXZ", share * body.spine, degrees=True))
        for name, share in HEAD_SHARES.items():
            self._add(name, Rotation.from_euler("YXZ", share * body.head, degrees=True))
        for side in SIDES:
            self._arm(body, side)
            self._leg(body, side)

    def _add(self, name: str, local: Rotation, place: Array | None = None) -> None:
        index = self.bones.names.index(name)
        self.local[name] = local
        if index == 0:
            assert place is not None
            self.turns[name], self.places[name] = local, place
            return
        parent = self.bones.names[self.bones.parents[index]]
        self.turns[name] = self.turns[parent] * local
        self.places[name] = self.places[parent] + self.turns[parent].apply(self.bones.offsets[index])

    def _arm(self, body: Body, side: str) -> None:
        arm, sign, rig = body.arms[side], SIGN[side], self.bones
        chest = self.turns["spine3"]
        upper = limbs.hanging_arm(rig[f"{side}_elbow"], sign, arm.flexion, arm.abduction, arm.twist)
        collar = limbs.collar_turn(limbs.unit(upper.apply(rig[f"{side}_elbow"])), sign)
        local = [collar, collar.inv() * upper, limbs.elbow_turn(sign, arm.elbow)]
        if np.any(arm.weight > 0.0):
            target = arm.target if arm.in_chest else chest.inv().apply(arm.target - self.places["spine3"])
            reached = self._reaching_arm(side, target, arm.hint)
            local = [limbs.blend(free, held, arm.weight) for free, held in zip(local, reached, strict=True)]
        angles = arm.wrist * np.array([sign, -sign, 1.0])
        wrist = Rotation.from_euler("ZYX", angles, degrees=True)
        hand = limbs.about("Z", -sign * arm.grip)
        for joint, turn in zip(("collar", "shoulder", "elbow", "wrist", "hand"), [*local, wrist, hand], strict=True):
            self._add(f"{side}_{joint}", turn)

    def _reaching_arm(self, side: str, target: Array, hint: Array) -> list[Rotation]:
        """Collar, shoulder and elbow that bring the wrist to ``target`` [T, 3] in the chest's frame."""
        rig, sign = self.bones, SIGN[side]
        lengths = rig.length(f"{side}_elbow"), rig.length(f"{side}_wrist")
        collar = Rotation.identity(self.count)
        for _ in range(3):
            shoulder = rig[f"{side}_collar"] + collar.apply(rig[f"{side}_shoulder"])
            elbow, wrist, outside = limbs.two_bones(shoulder, target, hint, *lengths, ARM_SOFTNESS)
            collar = limbs.collar_turn(limbs.unit(elbow - shoulder), sign)
        shoulder = rig[f"{side}_collar"] + collar.apply(rig[f"{side}_shoulder"])
        elbow, wrist, outside = limbs.two_bones(shoulder, target, hint, *lengths, ARM_SOFTNESS)
        upper = limbs.bone_turn(rig[f"{side}_elbow"], elbow - shoulder, -outside)
        lower = limbs.bone_turn(rig[f"{side}_wrist"], wrist - elbow, -outside)
        return [collar, collar.inv() * upper, upper.inv() * lower]

    def _leg(self, body: Body, side: str) -> None:
        foot, rig = body.feet[side], self.bones
        hip = self.places["pelvis"] + self.turns["pelvis"].apply(rig[f"{side}_hip"])
        knee_side = limbs.about("Y", foot.yaw).apply(foot.knee)
        knee, ankle, front = limbs.two_bones(
            hip,
            ankle_place(body, side),
            knee_side,
            rig.length(f"{side}_knee"),
            rig.length(f"{side}_ankle"),
            LEG_SOFTNESS,
        )
        thigh = limbs.bone_turn(rig[f"{side}_knee"], knee - hip, front)
        shin = limbs.bone_turn(rig[f"{side}_ankle"], ankle - knee, front)
        self._add(f"{side}_hip", self.turns["pelvis"].inv() * thigh)
        self._add(f"{side}_knee", thigh.inv() * shin)
        self._add(f"{side}_ankle", shin.inv() * foot.rotation())
        on_floor = np.exp(-((foot.ball[:, 1] / 0.04) ** 2))
        toes = np.clip(foot.pitch, -50.0, 0.0) * on_floor
        self._add(f"{side}_foot", limbs.about("X", toes))

    def centre_of_mass(self) -> Array:
        """[T, 3] in the world."""
        total = sum(SEGMENTS.values())
        middles = [share / 2.0 * (self.places[a] + self.places[b]) for (a, b), share in SEGMENTS.items()]
        return np.sum(middles, axis=0) / total


def ankle_place(body: Body, side: str) -> Array:
    """The ankle [T, 3] that a foot's ball and orientation ask for."""
    foot = body.feet[side]
    return foot.placed_ball() - foot.rotation().apply(bones()[f"{side}_foot"])


def perform(body: Body, heading: float, origin: tuple[float, float], fps: float) -> Motion:
    """The motion of ``body``, turned by ``heading`` (radians, to the left) about the vertical and moved to ``origin``.

    The lowest joint over the clip touches y = 0.
    """
    moved = body.pelvis.copy()
    balance = body.balance[:, None]
    moved[:, [0, 2]] += balance * _balancing(body, fps) + (1.0 - balance) * body.shift
    solution = Solution(body, _settle(body, moved, fps))

    lowest = min(place[:, 1].min() for place in solution.places.values())
    world = Rotation.from_rotvec([0.0, heading, 0.0])
    local = solution.local | {"pelvis": world * solution.local["pelvis"]}
    rotations = np.stack([local[name].as_matrix() for name in solution.bones.names], axis=1)
    pelvis = world.apply(solution.places["pelvis"]) + np.array([origin[0], -lowest, origin[1]])
    translation = pelvis - solution.bones.offsets[0]
    return Motion(torch.from_numpy(rotations).float(), torch.from_numpy(translation).float(), fps)


def _balancing(body: Body, fps: float) -> Array:
    """By how much, [T, 2], the wished pelvis must move for the centre of mass to be where it belongs."""
    offset = np.zeros((len(body.times), 2))
    if not np.any(body.balance > 0.0):
        return offset
    support = _support(body, fps)
    pelvis = _settle(body, body.pelvis, fps)
    for _ in range(PASSES):
        offset += support - Solution(body, pelvis).centre_of_mass()[:, [0, 2]]
        balanced = body.pelvis.copy()
        balanced[:, [0, 2]] += offset
        pelvis = _settle(body, balanced, fps)
    return offset


def _support(body: Body, fps: float) -> Array:
    """Where the centre of mass belongs, [T, 2]: between the feet by the load they carry."""
    loads = np.stack([body.feet[side].load for side in SIDES]) + 0.02
    centres = np.stack([body.feet[side].centre() for side in SIDES])
    between = (loads[..., None] * centres).sum(0) / loads.sum(0)[:, None]
    return gaussian_filter1d(between, SUPPORT_SECONDS * fps, axis=0, mode="nearest") + body.shift


def _settle(body: Body, pelvis: Array, fps: float) -> Array:
    """Lower the pelvis [T, 3] smoothly where a leg would not reach its foot."""
    rig = bones()
    turn = Rotation.from_euler("YXZ", body.hips, degrees=True)
    drop = np.zeros(len(pelvis))
    for side in SIDES:
        hip = pelvis + turn.apply(rig[f"{side}_hip"])
        line = hip - ankle_place(body, side)
        longest = body.stretch * (rig.length(f"{side}_knee") + rig.length(f"{side}_ankle"))
        room = np.maximum(longest**2 - line[:, 0] ** 2 - line[:, 2] ** 2, LEAST_HEIGHT**2)
        drop = np.maximum(drop, line[:, 1] - np.sqrt(room))
    sigma = SETTLE_SECONDS * fps
    highest = maximum_filter1d(drop, 2 * int(np.ceil(1.5 * sigma)) + 1, mode="nearest")
    smooth = gaussian_filter1d(highest, sigma, mode="nearest")
    return pelvis - np.stack([np.zeros_like(smooth), smooth, np.zeros_like(smooth)], axis=-1)

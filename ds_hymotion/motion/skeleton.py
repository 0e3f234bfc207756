"""The body: joint names, their tree, and the rest offsets of the neutral SMPL body."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from ds_hymotion.errors import UserError

JOINTS_24: tuple[str, ...] = (
    "pelvis", "left_hip", "right_hip", "spine1", "left_knee", "right_knee", "spine2", "left_ankle", "right_ankle",
    "spine3", "left_foot", "right_foot", "neck", "left_collar", "right_collar", "head", "left_shoulder",
    "right_shoulder", "left_elbow", "right_elbow", "left_wrist", "right_wrist", "left_hand", "right_hand",
)  # fmt: skip
PARENTS_24: tuple[int, ...] = (-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19, 20, 21)
BODY_JOINTS = 22
"""SMPL-H's body is SMPL's without the two hands."""


def _other_side(name: str) -> str:
    side, _, rest = name.partition("_")
    return {"left": f"right_{rest}", "right": f"left_{rest}"}.get(side, name)


MIRROR_24: tuple[int, ...] = tuple(JOINTS_24.index(_other_side(name)) for name in JOINTS_24)
"""For each joint, the joint of the other side (itself on the midline)."""

_REST_OFFSETS_24 = (
    (-0.0018, -0.1908, 0.0282),
    (0.070, -0.091, -0.007),
    (-0.068, -0.091, -0.004),
    (-0.003, 0.109, -0.027),
    (0.034, -0.375, -0.004),
    (-0.038, -0.383, -0.009),
    (0.005, 0.135, 0.001),
    (-0.014, -0.398, -0.044),
    (0.016, -0.398, -0.042),
    (0.001, 0.053, 0.025),
    (0.026, -0.056, 0.119),
    (-0.025, -0.048, 0.123),
    (-0.003, 0.214, -0.043),
    (0.079, 0.122, -0.034),
    (-0.082, 0.119, -0.039),
    (0.005, 0.065, 0.051),
    (0.091, 0.030, -0.009),
    (-0.096, 0.033, -0.009),
    (0.260, -0.013, -0.027),
    (-0.254, -0.013, -0.021),
    (0.249, 0.009, -0.001),
    (-0.255, 0.008, -0.006),
    (0.084, -0.008, -0.015),
    (-0.085, -0.006, -0.010),
)


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A tree of joints, parents before children, in the rest pose (y up, facing +Z, left at +X).

    ``offsets`` [J, 3] holds metres from the parent to the joint; ``offsets[0]`` is J0, the rest position of the
    pelvis relative to the origin that SMPL's ``trans`` moves. Raises :class:`ValueError` for a malformed tree.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    offsets: Tensor

    def __post_init__(self) -> None:
        joints = len(self.names)
        if len(self.parents) != joints or tuple(self.offsets.shape) != (joints, 3):
            raise ValueError(
                f"{joints} names, {len(self.parents)} parents and offsets {tuple(self.offsets.shape)} disagree"
            )
        if not joints or self.parents[0] != -1 or any(not 0 <= p < j for j, p in enumerate(self.parents[1:], start=1)):
            raise ValueError(f"parents {self.parents} are not one tree with parents before children, root first (-1)")

    @property
    def joints(self) -> int:
        return len(self.names)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Joints by their distance from the root, nearest first."""
        depth = [0]
        for parent in self.parents[1:]:
            depth.append(depth[parent] + 1)
        return tuple(tuple(j for j in range(self.joints) if depth[j] == d) for d in range(max(depth) + 1))

    def children(self, joint: int) -> tuple[int, ...]:
        return tuple(j for j, parent in enumerate(self.parents) if parent == joint)

    def first(self, joints: int) -> Skeleton:
        """The skeleton of the first ``joints`` joints."""
        if not 1 <= joints <= self.joints:
            raise ValueError(f"first({joints}): the skeleton has 1..{self.joints} joints")
        return Skeleton(self.names[:joints], self.parents[:joints], self.offsets[:joints])

    def index(self, name: str) -> int:
        """The joint of exactly this name; :class:`ValueError` if there is none."""
        if name not in self.names:
            raise ValueError(f"no joint {name!r} among {', '.join(self.names)}")
        return self.names.index(name)


@lru_cache(maxsize=1)
def smpl24() -> Skeleton:
    """SMPL's 24 joints with the neutral body's rest offsets to the millimetre (float32)."""
    return Skeleton(JOINTS_24, PARENTS_24, torch.tensor(_REST_OFFSETS_24, dtype=torch.float32))


@lru_cache(maxsize=1)
def smplh22() -> Skeleton:
    """SMPL-H's 22 body joints: SMPL's 24 without the hands."""
    return smpl24().first(BODY_JOINTS)


def part_of(name: str) -> str:
    """A joint's name without its side and without the number of its segment: ``left_hip`` -> ``hip``."""
    return re.sub(r"\d+$", "", re.sub(r"^(left|right)_", "", name))


def joints_named(name: str, names: Sequence[str]) -> tuple[int, ...]:
    """Indices in ``names`` of the joints that ``name`` means.

    A joint's full name means that joint. A name without a side means both sides, and without a number every segment:
    ``hip`` is left_hip and right_hip, ``spine`` is spine1..3. Raises :class:`UserError` for any other name.
    """
    if name in names:
        return (list(names).index(name),)
    found = tuple(j for j, joint in enumerate(names) if part_of(joint) == name)
    if not found:
        parts = dict.fromkeys([part_of(joint) for joint in names])
        both = ", ".join(part for part in parts if part not in names)
        raise UserError(f"joint {name!r} is unknown: legal are {both} (every side and segment) or {', '.join(names)}")
    return found

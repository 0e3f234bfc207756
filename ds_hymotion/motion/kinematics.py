"""Forward kinematics: from local rotations to rotations and positions in the world."""

from __future__ import annotations

import torch
from torch import Tensor

from ds_hymotion.motion.rotation import compose, rotate
from ds_hymotion.motion.skeleton import Skeleton


def global_rotations(rotations: Tensor, skeleton: Skeleton) -> Tensor:
    """Local rotations [..., J, 3, 3] -> rotations [..., J, 3, 3] from each joint's rest frame to the world."""
    turns, _ = _walk(rotations, skeleton)
    return turns


def forward_kinematics(rotations: Tensor, translation: Tensor | None, skeleton: Skeleton) -> Tensor:
    """Local rotations [..., J, 3, 3] and SMPL translations [..., 3] (metres) -> joint positions [..., J, 3] (metres).

    The pelvis is at ``translation + skeleton.offsets[0]``, and at ``skeleton.offsets[0]`` without a translation.
    Differentiable. Raises :class:`ValueError` if the number of joints is not the skeleton's.
    """
    _, positions = _walk(rotations, skeleton)
    return positions if translation is None else positions + translation.unsqueeze(-2)


def _walk(rotations: Tensor, skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """Down the tree, all joints of one depth at once."""
    if rotations.shape[-3:] != (skeleton.joints, 3, 3):
        raise ValueError(f"rotations {tuple(rotations.shape)}, expected [..., {skeleton.joints}, 3, 3]")
    offsets = skeleton.offsets.to(device=rotations.device, dtype=rotations.dtype)
    turns = [rotations[..., :1, :, :]]
    places = [offsets[:1].expand(*rotations.shape[:-3], 1, 3)]
    for above, level in zip(skeleton.levels, skeleton.levels[1:], strict=False):
        parents = [above.index(skeleton.parents[joint]) for joint in level]
        joints = list(level)
        carried = turns[-1][..., parents, :, :]
        places.append(places[-1][..., parents, :] + rotate(carried, offsets[joints]))
        turns.append(compose(carried, rotations[..., joints, :, :]))
    visited = [joint for level in skeleton.levels for joint in level]
    back = [visited.index(joint) for joint in range(skeleton.joints)]
    return torch.cat(turns, dim=-3)[..., back, :, :], torch.cat(places, dim=-2)[..., back, :]

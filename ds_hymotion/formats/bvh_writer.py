"""Motions written as BVH: SMPL's joints, T-pose rest, y-up, centimetres."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
from scipy.spatial.transform import Rotation

from ds_hymotion.formats.files import replace_file
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.skeleton import Skeleton, smpl24

END_SITE_SHARE = 0.5
"""Length of an End Site as a share of its joint's own bone, whose direction it continues."""
_ORDER: Final = "ZXY"


def write_bvh(
    path: str | Path, motion: Motion, skeleton: Skeleton | None = None, units_per_metre: float = 100.0
) -> None:
    """Write a BVH file.

    The root has three position channels and OFFSET 0 (readers differ on whether an OFFSET adds to them), every other
    joint three rotations, in the order Z, X, Y. Angles run on from frame to frame and may pass ±180°.

    Args:
        skeleton: SMPL-24 unless given; its joints must be the first of SMPL's 24 (``smplh22`` leaves the hands out).
        units_per_metre: 100 writes centimetres.

    Raises:
        UserError: the place cannot be written.
        ValueError: the skeleton has more joints than the motion.
    """
    skeleton = smpl24() if skeleton is None else skeleton
    if skeleton.joints > motion.rotations.shape[1]:
        raise ValueError(f"skeleton has {skeleton.joints} joints, the motion {motion.rotations.shape[1]}")
    order: list[int] = []
    lines = [
        "HIERARCHY",
        *_node(skeleton, 0, units_per_metre, 0, order),
        "MOTION",
        f"Frames: {motion.frames}",
        f"Frame Time: {1.0 / motion.fps:.8f}",
    ]
    rotations = motion.rotations[:, : skeleton.joints].detach().double().cpu().numpy()
    angles = continuous_euler(rotations)[:, order].reshape(motion.frames, -1)
    root = (motion.translation.detach().cpu() + skeleton.offsets[0]).double().numpy() * units_per_metre
    lines += [" ".join(f"{value:.6f}" for value in row) for row in np.concatenate([root, angles], axis=1)]
    content = ("\n".join(lines) + "\n").encode()

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_file(path, write)


def continuous_euler(rotations: np.ndarray) -> np.ndarray:
    """Intrinsic Z, X, Y angles in degrees [T, J, 3] of rotations [T, J, 3, 3], each frame nearest to the one before.

    Every rotation has two triples, (z, x, y) and (z + 180°, 180° - x, y + 180°), each up to whole turns.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Gimbal lock")
        first = Rotation.from_matrix(rotations.reshape(-1, 3, 3)).as_euler(_ORDER).reshape(*rotations.shape[:2], 3)
    second = np.stack([first[..., 0] + np.pi, np.pi - first[..., 1], first[..., 2] + np.pi], axis=-1)
    result = first.copy()
    for frame in range(1, len(result)):
        before = result[frame - 1]
        choices = np.stack([first[frame], second[frame]])
        choices += 2 * np.pi * np.round((before - choices) / (2 * np.pi))
        nearest = np.abs(choices - before).sum(-1).argmin(0)
        result[frame] = np.take_along_axis(choices, nearest[None, :, None], axis=0)[0]
    return np.degrees(result)


def _node(skeleton: Skeleton, joint: int, scale: float, depth: int, order: list[int]) -> list[str]:
    """The lines of a joint and all below it; ``order`` collects joints as the file has them."""
    order.append(joint)
    outer, inner = "\t" * depth, "\t" * (depth + 1)
    offset = (skeleton.offsets[joint].double() * scale).tolist()
    turns = " ".join(f"{axis}rotation" for axis in _ORDER)
    if depth == 0:
        lines = [
            f"ROOT {skeleton.names[joint]}",
            "{",
            f"{inner}OFFSET 0.000000 0.000000 0.000000",
            f"{inner}CHANNELS 6 Xposition Yposition Zposition {turns}",
        ]
    else:
        lines = [
            f"{outer}JOINT {skeleton.names[joint]}",
            f"{outer}{{",
            f"{inner}OFFSET {_triple(offset)}",
            f"{inner}CHANNELS 3 {turns}",
        ]
    children = skeleton.children(joint)
    for child in children:
        lines += _node(skeleton, child, scale, depth + 1, order)
    if not children:
        end = [END_SITE_SHARE * value for value in offset]
        lines += [f"{inner}End Site", f"{inner}{{", f"{inner}\tOFFSET {_triple(end)}", f"{inner}}}"]
    return [*lines, f"{outer}}}"]


def _triple(values: list[float]) -> str:
    return " ".join(f"{value:.6f}" for value in values)

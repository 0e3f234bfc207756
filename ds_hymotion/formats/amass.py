"""AMASS recordings (``.npz``): SMPL-H, SMPL-X "stageii", plain SMPL.

Layouts, as the AMASS releases have them: ``poses`` (N, 156) axis-angle of SMPL-H's 52 joints, (N, 165) of SMPL-X's 55
or (N, 72) of SMPL's 24, or ``root_orient`` (N, 3) beside ``pose_body`` (N, 63); ``trans`` (N, 3) in metres; z-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from ds_hymotion.formats.files import FormatError, NotAMotion, replace_file
from ds_hymotion.formats.npz import Archive
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import geodesic_angle
from ds_hymotion.motion.skeleton import smpl24
from ds_hymotion.motion.transforms import z_up_to_y_up

__all__ = [
    "AmassClip",
    "FormatError",
    "NotAMotion",
    "read_amass",
    "recorded_seconds",
    "velocity_outliers",
    "write_amass",
]

RATE_KEYS = ("mocap_framerate", "mocap_frame_rate")
FPS_LIMITS = (1.0, 1000.0)
MAX_ANGLE = 100.0
"""Largest axis-angle entry in radians; genuine files stay under 2π."""
MAX_DISTANCE = 10_000.0
"""Largest translation in metres."""
HANDS = (22, 23)
SMPLH_HANDS = (22, 37)
"""The two hand joints of SMPL-24 among the 52 of SMPL-H."""
_BLOCK = 512
_COSINE_ERROR = 1e-5
"""More than float32 loses in the cosine of an angle between two rotation matrices."""
OUTLIER_SPEED = 3000.0
"""Degrees per second; running reaches about 1,500 in a genuine recording, a one-frame jump of 55° at 120 fps 6,600."""


@dataclass(frozen=True)
class AmassClip:
    """A recording as read.

    Attributes:
        motion: y-up, at the file's own rate.
        rate: frames per second as the file (or the override) says.
        gender: "female", "male", "neutral", or what the file says, in lower case.
        betas: body shape [B] float32; empty if the file has none.
    """

    motion: Motion
    rate: float
    gender: str
    betas: Tensor


def read_amass(path: str | Path, fps: float | None = None) -> AmassClip:
    """Read one recording.

    The hands (joints 22, 23) come from SMPL-H's joints 22 and 37 or from SMPL; SMPL-X has none: identity.

    Args:
        fps: replaces the file's own rate, for data sets whose rate is known to be wrong.

    Raises:
        NotAMotion: a healthy file without poses (``shape.npz``, ``*_stagei.npz``).
        FormatError: anything else; ``reason`` says what.
    """
    path = Path(path)
    with Archive(path) as archive:
        rotations = _axis_angles(archive)
        frames = len(rotations)
        if "trans" not in archive.names:
            raise FormatError(path, "no trans")
        translation = archive.numbers("trans")
        if translation.shape != (frames, 3):
            raise FormatError(path, "wrong shape of trans", f"{translation.shape}; legal: ({frames}, 3)")
        for name, values, limit in (("poses", rotations, MAX_ANGLE), ("trans", translation, MAX_DISTANCE)):
            if np.abs(values).max() > limit:
                raise FormatError(path, f"absurd values in {name}", f"{np.abs(values).max():.4g}; at most {limit:g}")
        rate = _rate(archive, fps)
        gender = archive.text("gender").strip().lower() if "gender" in archive.names else "neutral"
        betas = archive.numbers("betas").reshape(-1) if "betas" in archive.names else np.zeros(0)
    motion = Motion(_matrices(rotations), torch.tensor(translation, dtype=torch.float32), rate)
    return AmassClip(z_up_to_y_up(motion), rate, gender, torch.tensor(betas, dtype=torch.float32))


def recorded_seconds(path: str | Path) -> float:
    """The length of a recording by what its headers claim; neither poses nor translation are read.

    Raises:
        FormatError: it cannot be told.
    """
    with Archive(path) as archive:
        name = next((name for name in ("poses", "pose_body") if name in archive.names), None)
        if name is None:
            raise NotAMotion(path, detail="no poses")
        shape = archive.shape(name)
        if not shape:
            raise FormatError(path, f"wrong shape of {name}", f"{shape}")
        return shape[0] / _rate(archive, None)


def write_amass(path: str | Path, motion: Motion, gender: str = "neutral") -> None:
    """Write a recording in SMPL-H's layout, z-up, with zero ``betas``; ``read_amass`` gives the motion back.

    The fingers other than the two hand joints are at rest. A file at ``path`` is replaced whole.

    Raises:
        UserError: the place cannot be written.
    """
    to_z_up = Rotation.from_euler("x", 90, degrees=True)
    pelvis = smpl24().offsets[0].double().numpy()
    turned = motion.rotations.detach().double().cpu().numpy().copy()
    turned[:, 0] = to_z_up.as_matrix() @ turned[:, 0]
    vectors = Rotation.from_matrix(turned.reshape(-1, 3, 3)).as_rotvec().reshape(-1, 24, 3)
    translation = to_z_up.apply(motion.translation.detach().double().cpu().numpy() + pelvis) - pelvis
    poses = np.zeros((motion.frames, 52, 3))
    poses[:, :22] = vectors[:, :22]
    poses[:, list(SMPLH_HANDS)] = vectors[:, list(HANDS)]
    arrays: dict[str, Any] = {
        "poses": poses.reshape(motion.frames, 156),
        "trans": translation,
        "betas": np.zeros(16),
        "dmpls": np.zeros((motion.frames, 8)),
        "gender": np.array(gender),
        "mocap_framerate": np.array(float(motion.fps)),
    }

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    replace_file(path, write)


def velocity_outliers(motion: Motion, threshold: float = OUTLIER_SPEED) -> list[tuple[int, int, float]]:
    """Frames in which a joint's local rotation jumps.

    Args:
        threshold: degrees per second between a frame and the one before it.

    Returns:
        (frame, joint, degrees) for every step into ``frame`` faster than the threshold, by frame, then joint.
    """
    limit = math.radians(threshold / motion.fps)
    if motion.frames < 2 or limit >= math.pi:
        return []
    found: list[tuple[int, int, float]] = []
    for start in range(0, motion.frames - 1, _BLOCK):
        rotations = motion.rotations[start : start + _BLOCK + 1]
        # The trace of aᵀb is their scalar product: it finds the few pairs whose angle is then worked out.
        cosine = ((rotations[:-1] * rotations[1:]).flatten(2).sum(dim=-1) - 1) / 2
        step, joint = (cosine < math.cos(limit) + _COSINE_ERROR).nonzero(as_tuple=True)
        angles = geodesic_angle(rotations[step, joint].double(), rotations[step + 1, joint].double())
        steps = zip(step.tolist(), joint.tolist(), torch.rad2deg(angles).tolist(), strict=True)
        found += [
            (start + frame + 1, turned, angle) for frame, turned, angle in steps if angle * motion.fps > threshold
        ]
    return found


def _matrices(axis_angles: np.ndarray) -> Tensor:
    """[N, 24, 3] in float64, of any length -> rotation matrices [N, 24, 3, 3] in float32.

    Scipy's conversion, which works number by number: a third of the time that whole-tensor steps take.
    """
    matrices = np.empty((*axis_angles.shape, 3), np.float32)
    for start in range(0, len(axis_angles), _BLOCK):
        block = axis_angles[start : start + _BLOCK]
        matrices[start : start + _BLOCK] = (
            Rotation.from_rotvec(block.reshape(-1, 3)).as_matrix().reshape(*block.shape, 3)
        )
    return torch.from_numpy(matrices)


def _axis_angles(archive: Archive) -> np.ndarray:
    """[N, 24, 3] axis-angles in SMPL-24 order, root first, unchecked beyond shape and finiteness."""
    if "poses" in archive.names:
        poses = archive.numbers("poses")
        if poses.ndim != 2 or poses.shape[1] not in (72, 156, 165):
            raise FormatError(
                archive.path,
                "wrong shape of poses",
                f"{poses.shape}; legal: (frames, 72), (frames, 156) or (frames, 165)",
            )
    elif "pose_body" in archive.names:
        if "root_orient" not in archive.names:
            raise FormatError(archive.path, "no root_orient")
        root, body = archive.numbers("root_orient"), archive.numbers("pose_body")
        if root.ndim != 2 or root.shape[1] != 3 or body.shape != (len(root), 63):
            raise FormatError(
                archive.path,
                "wrong shape of pose_body",
                f"root_orient {root.shape}, pose_body {body.shape}; legal: (frames, 3) and (frames, 63)",
            )
        poses = np.concatenate([root, body], axis=1)
    else:
        raise NotAMotion(archive.path, detail="no poses")
    frames, width = poses.shape
    if frames == 0:
        raise FormatError(archive.path, "no frames")
    joints = poses.reshape(frames, width // 3, 3)
    result = np.zeros((frames, 24, 3))
    result[:, :22] = joints[:, :22]
    if width == 72:
        result[:, list(HANDS)] = joints[:, list(HANDS)]
    elif width == 156:
        result[:, list(HANDS)] = joints[:, list(SMPLH_HANDS)]
    return result


def _rate(archive: Archive, override: float | None) -> float:
    if override is None:
        key = next((key for key in RATE_KEYS if key in archive.names), None)
        if key is None:
            raise FormatError(archive.path, "no frame rate", f"legal keys: {', '.join(RATE_KEYS)}")
        values = archive.numbers(key)
        if values.size != 1:
            raise FormatError(archive.path, "frame rate is not one number", f"{key} has shape {values.shape}")
        rate = float(values.reshape(()))
    else:
        rate = float(override)
    low, high = FPS_LIMITS
    if not (math.isfinite(rate) and low <= rate <= high):
        raise FormatError(archive.path, f"fps {rate} is not in {low:g}..{high:g}")
    return rate

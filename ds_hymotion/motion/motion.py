"""What a motion is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ds_hymotion.motion.kinematics import forward_kinematics
from ds_hymotion.motion.skeleton import JOINTS_24, Skeleton, smpl24


@dataclass(frozen=True, eq=False)
class Motion:
    """A clip of the SMPL body, y up.

    ``rotations`` [T, 24, 3, 3]: local rotations in SMPL-24 order; joint 0 is the body's orientation in the world.
    ``translation`` [T, 3]: SMPL's ``trans`` in metres; the pelvis is at ``translation + J0``.
    ``fps``: frames per second. Both tensors are held in float32. Raises :class:`ValueError` for other shapes, no
    frames, or a rate that is not positive.
    """

    rotations: Tensor
    translation: Tensor
    fps: float

    def __post_init__(self) -> None:
        frames = self.rotations.shape[0] if self.rotations.ndim else 0
        if frames == 0 or tuple(self.rotations.shape[1:]) != (len(JOINTS_24), 3, 3):
            raise ValueError(f"rotations {tuple(self.rotations.shape)}, expected [T >= 1, {len(JOINTS_24)}, 3, 3]")
        if tuple(self.translation.shape) != (frames, 3):
            raise ValueError(f"translation {tuple(self.translation.shape)}, expected [{frames}, 3]")
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps {self.fps}, expected a positive number, for example 30")
        object.__setattr__(self, "rotations", self.rotations.to(torch.float32))
        object.__setattr__(self, "translation", self.translation.to(torch.float32))

    @property
    def frames(self) -> int:
        return self.rotations.shape[0]

    def crop(self, start: int, end: int) -> Motion:
        """Frames start..end-1; :class:`ValueError` unless 0 <= start < end <= frames."""
        if not 0 <= start < end <= self.frames:
            raise ValueError(f"crop({start}, {end}) of {self.frames} frames")
        return replace(self, rotations=self.rotations[start:end], translation=self.translation[start:end])

    def joints(self, skeleton: Skeleton | None = None) -> Tensor:
        """World positions [T, 24, 3] of the joints in metres, on :func:`smpl24` unless another body is given."""
        return forward_kinematics(self.rotations, self.translation, skeleton or smpl24())

"""Motion representations: how a motion becomes channels, and which joint every channel belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.motion.kinematics import forward_kinematics
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import matrix_to_rot6d_columns, project_to_rotation, rot6d_columns_to_matrix
from ds_hymotion.motion.skeleton import JOINTS_24, smpl24, smplh22

ROOT_TRANSLATION = -1
_AXES = "xyz"


class Representation(ABC):
    """A channel layout. Features are in metres and unitless matrix entries, not normalised."""

    name: str
    channels: int
    joints: int

    @property
    def joint_names(self) -> tuple[str, ...]:
        return JOINTS_24[: self.joints]

    @abstractmethod
    def encode(self, motion: Motion) -> Tensor:
        """Features [T, C], float32."""

    @abstractmethod
    def decode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features [..., T, C] -> local rotations [..., T, 24, 3, 3] and translation [..., T, 3]; differentiable.

        Rotations are proper for any features; joints that the representation lacks (hands) are at rest. Half
        precision is decoded in float32. Raises :class:`ValueError` for another number of channels.
        """

    @abstractmethod
    def layout(self) -> list[tuple[int, str]]:
        """For every channel its joint (:data:`ROOT_TRANSLATION` for the translation) and its name."""

    def to_motion(self, features: Tensor, fps: float) -> Motion:
        """Features [T, C] -> the motion that they show at ``fps``."""
        return Motion(*self.decode(features), fps)

    def channel_joint(self) -> Tensor:
        """The joint [C] (int64) of every channel; :data:`ROOT_TRANSLATION` (-1) for the root's translation."""
        return torch.tensor([joint for joint, _ in self.layout()])

    def channel_names(self) -> list[str]:
        """Such as ``left_hip.rotation[2,1]``, ``left_hip.position.x`` and ``translation.y``."""
        return [name for _, name in self.layout()]

    def joint_channels(self, joint: int) -> Tensor:
        """The channels (int64, ascending) of a joint, or of the root's translation (-1)."""
        return (self.channel_joint() == joint).nonzero().flatten()

    def _checked(self, features: Tensor) -> Tensor:
        if features.shape[-1] != self.channels:
            raise ValueError(f"{features.shape[-1]} channels, but {self.name} has {self.channels}")
        return features.float() if features.dtype in (torch.float16, torch.bfloat16) else features

    def _matrix_names(self, joint: int, columns: int) -> list[tuple[int, str]]:
        entries = [(row, column) for row in range(3) for column in range(columns)]
        return [(joint, f"{self.joint_names[joint]}.rotation[{row},{column}]") for row, column in entries]


class HyMotion201(Representation):
    """The 201 channels of the released HY-Motion networks, on SMPL-H's 22 joints.

    [0:3] root translation; [3:9] root orientation and [9:135] 21 local rotations as the first two matrix columns;
    [135:201] joint positions by forward kinematics without the translation, which decoding ignores. Those are relative
    to the ``"pelvis"``, or with ``"rest_root"`` to the point that the translation moves (the pelvis is then at J0);
    the first entries of a checkpoint's mean tell which it was trained with: zeros for the pelvis.
    """

    name = "hymotion-201"
    channels = 201
    joints = 22

    def __init__(self, positions_relative_to: str = "pelvis") -> None:
        if positions_relative_to not in ("pelvis", "rest_root"):
            raise UserError(f"positions_relative_to {positions_relative_to!r} is unknown: legal are pelvis, rest_root")
        self.positions_relative_to = positions_relative_to

    def encode(self, motion: Motion) -> Tensor:
        skeleton = smplh22()
        rotations = motion.rotations[:, : self.joints]
        positions = forward_kinematics(rotations, None, skeleton)
        if self.positions_relative_to == "pelvis":
            positions = positions - skeleton.offsets[0]
        six = matrix_to_rot6d_columns(rotations)
        return torch.cat([motion.translation, six.flatten(1), positions.flatten(1)], dim=1)

    def decode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        features = self._checked(features)
        rotations = rot6d_columns_to_matrix(features[..., 3:135].unflatten(-1, (self.joints, 6)))
        missing = smpl24().joints - self.joints
        rest = torch.eye(3, dtype=rotations.dtype, device=rotations.device).expand(*rotations.shape[:-3], missing, 3, 3)
        return torch.cat([rotations, rest], dim=-3), features[..., :3]

    def layout(self) -> list[tuple[int, str]]:
        translation = [(ROOT_TRANSLATION, f"translation.{axis}") for axis in _AXES]
        rotations = [entry for joint in range(self.joints) for entry in self._matrix_names(joint, columns=2)]
        positions = [
            (joint, f"{self.joint_names[joint]}.position.{axis}") for joint in range(self.joints) for axis in _AXES
        ]
        return translation + rotations + positions


class Smpl24RotationMatrices(Representation):
    """219 channels: 24 local rotation matrices row by row, then the root translation.

    Decoding takes the nearest rotation of every 3×3 block.
    """

    name = "smpl24-rotmat"
    channels = 219
    joints = 24

    def encode(self, motion: Motion) -> Tensor:
        return torch.cat([motion.rotations.flatten(1), motion.translation], dim=1)

    def decode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        features = self._checked(features)
        blocks = features[..., : self.joints * 9].unflatten(-1, (self.joints, 3, 3))
        return project_to_rotation(blocks), features[..., self.joints * 9 :]

    def layout(self) -> list[tuple[int, str]]:
        rotations = [entry for joint in range(self.joints) for entry in self._matrix_names(joint, columns=3)]
        return rotations + [(ROOT_TRANSLATION, f"translation.{axis}") for axis in _AXES]


REPRESENTATIONS: tuple[str, ...] = (HyMotion201.name, Smpl24RotationMatrices.name)


def representation(name: str, positions_relative_to: str | None = None) -> Representation:
    """The representation of this name.

    ``positions_relative_to`` belongs to hymotion-201 (default pelvis). Raises :class:`UserError` for an unknown name,
    or for the option where it has no meaning.
    """
    if name == HyMotion201.name:
        return HyMotion201(positions_relative_to or "pelvis")
    if name != Smpl24RotationMatrices.name:
        raise UserError(f"representation {name!r} is unknown: legal are {', '.join(REPRESENTATIONS)}")
    if positions_relative_to is not None:
        raise UserError(f"positions_relative_to {positions_relative_to!r} has no meaning for {name}: leave it out")
    return Smpl24RotationMatrices()

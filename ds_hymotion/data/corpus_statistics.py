"""Mean, standard deviation and joint variance of a corpus's training split, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ds_hymotion.data.workers import Workers
from ds_hymotion.motion.representation import Representation, Smpl24RotationMatrices
from ds_hymotion.motion.rotation import geodesic_angle, project_to_rotation
from ds_hymotion.motion.statistics import RunningStatistics

VARIANCE_STRIDE = 4
"""Joint variance looks at every fourth frame: neighbours differ little."""
PART = 64
"""Samples that a process takes at a time."""


@dataclass(frozen=True)
class _Part:
    """Some samples of a shard."""

    path: Path
    ids: tuple[str, ...]
    representation: Representation
    mean_rotation: Tensor | None = None

    def features(self) -> Iterator[Tensor]:
        with safe_open(str(self.path), framework="pt", device="cpu") as file:
            for name in self.ids:
                yield file.get_tensor(name)

    def rotations(self) -> Iterator[Tensor]:
        """[T / 4, J, 3, 3] float64 of every sample."""
        joints = self.representation.joints
        for features in self.features():
            if isinstance(self.representation, Smpl24RotationMatrices):  # decoding would project what is a rotation
                yield features[::VARIANCE_STRIDE, : joints * 9].unflatten(1, (joints, 3, 3)).double()
            else:
                yield self.representation.decode(features[::VARIANCE_STRIDE])[0][:, :joints].double()


def corpus_statistics(
    folder: Path, samples: Mapping[str, Sequence[str]], representation: Representation, workers: Workers
) -> dict[str, Tensor]:
    """``mean`` [C], ``std`` [C] and ``joint_variance`` [J] (rad²), all float32, and ``frames`` [1] int64.

    The joint variance is the mean squared angle to the joint's chordal mean rotation. The result does not depend on
    ``workers``.

    Args:
        samples: the training samples of every shard in ``folder``.
    """
    parts = [
        _Part(folder / shard, tuple(ids[start : start + PART]), representation)
        for shard, ids in sorted(samples.items())
        for start in range(0, len(ids), PART)
    ]
    total = RunningStatistics(representation.channels)
    matrix = torch.zeros(representation.joints, 3, 3, dtype=torch.float64)
    looked_at = 0
    for statistics, rotation_sum, count in workers.map(_sums, parts):
        total.merge(statistics)
        matrix = matrix + rotation_sum
        looked_at += count
    mean_rotation = project_to_rotation(matrix / looked_at)
    squares = torch.zeros(representation.joints, dtype=torch.float64)
    turned = [replace(part, mean_rotation=mean_rotation) for part in parts]
    for angles in workers.map(_squared_angles, turned):
        squares = squares + angles
    return {
        "mean": total.mean.float(),
        "std": total.std.float(),
        "joint_variance": (squares / looked_at).float(),
        "frames": torch.tensor([total.frames]),
    }


def _sums(part: _Part) -> tuple[RunningStatistics, Tensor, int]:
    statistics = RunningStatistics(part.representation.channels)
    for features in part.features():
        statistics.update(features)
    matrix, count = torch.zeros(part.representation.joints, 3, 3, dtype=torch.float64), 0
    for rotations in part.rotations():
        matrix = matrix + rotations.sum(dim=0)
        count += len(rotations)
    return statistics, matrix, count


def _squared_angles(part: _Part) -> Tensor:
    assert part.mean_rotation is not None
    squares = torch.zeros(part.representation.joints, dtype=torch.float64)
    for rotations in part.rotations():
        squares = squares + geodesic_angle(part.mean_rotation, rotations).square().sum(dim=0)
    return squares

"""Statistics of a corpus, accumulated clip by clip in float64, and normalisation by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ds_hymotion.motion.rotation import geodesic_angle, project_to_rotation

LEAST_STD = 1e-3
"""A channel that varies less is constant: it normalises to 0 and decodes to its mean, as in HY-Motion's release."""


class RunningStatistics:
    """Mean and population standard deviation of feature channels.

    Blocks are merged by the pairwise update of Chan, Golub and LeVeque (1979), so that any split of the same frames
    gives the same result up to float64 rounding.
    """

    def __init__(self, channels: int) -> None:
        self.frames = 0
        self._mean = torch.zeros(channels, dtype=torch.float64)
        self._squares = torch.zeros(channels, dtype=torch.float64)

    def update(self, features: Tensor) -> None:
        """Add frames [T, C]. Raises :class:`ValueError`, and adds nothing, if a value is not finite."""
        if features.ndim != 2 or features.shape[1] != self._mean.shape[0]:
            raise ValueError(f"features {tuple(features.shape)}, expected [T, {self._mean.shape[0]}]")
        _require_finite(features)
        values = features.detach().to(device="cpu", dtype=torch.float64)
        if values.shape[0]:
            mean = values.mean(dim=0)
            self._merge(values.shape[0], mean, (values - mean).square().sum(dim=0))

    def merge(self, other: RunningStatistics) -> None:
        """Add all frames of ``other``, which stays as it is."""
        if other._mean.shape != self._mean.shape:
            raise ValueError(f"{other._mean.shape[0]} channels, expected {self._mean.shape[0]}")
        if other.frames:
            self._merge(other.frames, other._mean, other._squares)

    @property
    def mean(self) -> Tensor:
        """[C], float64; :class:`ValueError` before the first frame."""
        self._require_frames()
        return self._mean.clone()

    @property
    def std(self) -> Tensor:
        """[C], float64, not corrected for the sample's size; :class:`ValueError` before the first frame."""
        self._require_frames()
        return (self._squares / self.frames).sqrt()

    def _merge(self, frames: int, mean: Tensor, squares: Tensor) -> None:
        total = self.frames + frames
        delta = mean - self._mean
        self._mean = self._mean + delta * (frames / total)
        self._squares = self._squares + squares + delta.square() * (self.frames * frames / total)
        self.frames = total

    def _require_frames(self) -> None:
        if not self.frames:
            raise ValueError("statistics of no frames")


def joint_variance(clips: Iterable[Tensor]) -> Tensor:
    """How much each joint turns: mean squared angle to the joint's mean rotation, [J] in rad², float64.

    ``clips`` holds local rotations [T, J, 3, 3]. It is gone through twice, for the mean (the chordal one: the rotation
    nearest to the mean matrix) and for the angles, so it may be a list or any object that loads clips each time it is
    iterated. Raises :class:`ValueError` for a one-time iterator, no frames, or a value that is not finite.
    """
    if isinstance(clips, Iterator):
        raise ValueError("clips are gone through twice: give a list or an object that can be iterated again")
    frames, total = 0, torch.zeros(())
    for rotations in clips:
        _require_finite(rotations)
        frames += rotations.shape[0]
        total = total + rotations.double().sum(dim=0)
    if not frames:
        raise ValueError("joint variance of no frames")
    mean = project_to_rotation(total / frames)
    squares = sum(geodesic_angle(mean, rotations.double()).square().sum(dim=0) for rotations in clips)
    return torch.as_tensor(squares) / frames


def normalise(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(features - mean) / std over the last dim, in the features' precision; 0 where std < :data:`LEAST_STD`."""
    constant = (std < LEAST_STD).to(features.device)
    mean, std = mean.to(features), std.to(features)
    return ((features - mean) / std.masked_fill(constant, 1.0)).masked_fill(constant, 0.0)


def denormalise(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """features · std + mean over the last dim; the mean where std < :data:`LEAST_STD`."""
    return features * std.masked_fill(std < LEAST_STD, 0.0).to(features) + mean.to(features)


def _require_finite(values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise ValueError(f"{int((~values.isfinite()).sum())} values are NaN or infinite")

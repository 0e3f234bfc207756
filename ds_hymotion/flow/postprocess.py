"""Smoothing of sampled motions, as the release does it after decoding."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from pytorch3d.transforms import matrix_to_quaternion, quaternion_to_matrix
from scipy.ndimage import gaussian_filter1d
from scipy.signal import savgol_filter
from torch import Tensor

from ds_hymotion.motion.motion import Motion

SIGMA_FRAMES = 1.0
WINDOW_FRAMES = 11
POLYNOMIAL_ORDER = 5


def smooth_motion(motion: Motion) -> Motion:
    """A Gaussian of σ = 1 frame over rotations and a Savitzky–Golay filter (11, 5) over the translation.

    Clips shorter than 11 frames take the largest odd window that fits; below 7 frames a window cannot smooth with a
    polynomial of order 5, and the translation stays as it is.
    """
    return dataclasses.replace(
        motion, rotations=smooth_rotations(motion.rotations), translation=smooth_translation(motion.translation)
    )


def smooth_rotations(rotations: Tensor, sigma: float = SIGMA_FRAMES) -> Tensor:
    """Rotations [T, J, 3, 3] whose quaternions, brought to one hemisphere over time, are Gauss-filtered."""
    quaternions = align_hemispheres(matrix_to_quaternion(rotations.double()))
    smooth = torch.from_numpy(gaussian_filter1d(quaternions.cpu().numpy(), sigma, axis=0, mode="nearest"))
    return quaternion_to_matrix(torch.nn.functional.normalize(smooth, dim=-1)).to(rotations)


def align_hemispheres(quaternions: Tensor) -> Tensor:
    """Quaternions [T, ..., 4] with signs such that neighbours in time have a non-negative product."""
    turns = (quaternions[1:] * quaternions[:-1]).sum(-1, keepdim=True) < 0
    signs = torch.cumprod(torch.where(turns, -1.0, 1.0).to(quaternions), dim=0)
    return torch.cat([quaternions[:1], quaternions[1:] * signs])


def smooth_translation(translation: Tensor, window: int = WINDOW_FRAMES, order: int = POLYNOMIAL_ORDER) -> Tensor:
    """Translation [T, 3] after a Savitzky–Golay filter along time, ends by polynomial fit."""
    frames = len(translation)
    window = min(window, frames - 1 + frames % 2)
    if window <= order + 1:
        return translation.clone()
    smooth = savgol_filter(translation.double().cpu().numpy(), window, order, axis=0)
    return torch.from_numpy(np.ascontiguousarray(smooth)).to(translation)

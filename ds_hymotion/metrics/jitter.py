"""Jitter: how much motion shakes."""

from __future__ import annotations

import torch
from torch import Tensor


def jitter(positions: Tensor, fps: float) -> float:
    """Mean jerk over joints and frames of positions [T, J, 3] (metres), in units of 10 m/s³.

    The norm of the third difference times fps³, divided by 10, as GVHMR (Shen et al. 2024) reports it at 30 fps; other
    rates are not comparable with it, since noise grows with the cube of the rate. Raises :class:`ValueError` for fewer
    than four frames.
    """
    if positions.ndim != 3 or positions.shape[-1] != 3 or positions.shape[0] < 4:
        raise ValueError(f"positions {tuple(positions.shape)}, expected [T >= 4, J, 3]")
    jerk = torch.diff(positions.double(), n=3, dim=0)
    return float(torch.linalg.vector_norm(jerk, dim=-1).mean()) * fps**3 / 10

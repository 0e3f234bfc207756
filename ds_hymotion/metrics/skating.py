"""Skating: how often a foot slides while it stands."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import uniform_filter1d
from torch import Tensor

_FEET = (10, 11)
_CONTACT_HEIGHT = 0.05
_SLIDING_SPEED = 0.5
_WINDOW = 5


def skating_ratio(positions: Tensor, fps: float = 20.0) -> float:
    """Share of frame pairs in which a foot of positions [T, J >= 12, 3] (metres, y up, floor at 0) skates.

    A foot (joint 10 or 11) skates between two frames if it is below 0.05 m in both and moves horizontally faster than
    0.5 m/s, by itself and in the mean over five pairs around it (pairs beyond the clip count as 0). That is the
    definition of GMD (Karunratanakul et al. 2023) at 20 fps; resample to that rate to compare. Raises
    :class:`ValueError` for fewer than two frames or without feet.
    """
    if positions.ndim != 3 or positions.shape[-1] != 3 or positions.shape[0] < 2 or positions.shape[1] <= max(_FEET):
        raise ValueError(f"positions {tuple(positions.shape)}, expected [T >= 2, J > {max(_FEET)}, 3]")
    feet = positions[:, list(_FEET)].detach().cpu().double().numpy()
    speed = np.linalg.norm(np.diff(feet[..., [0, 2]], axis=0), axis=-1) * fps
    lasting = uniform_filter1d(speed, size=_WINDOW, axis=0, mode="constant")
    low = feet[..., 1] < _CONTACT_HEIGHT
    skates = low[:-1] & low[1:] & (speed > _SLIDING_SPEED) & (lasting > _SLIDING_SPEED)
    return float(skates.any(axis=1).mean())

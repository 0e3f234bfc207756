"""The straight path from noise to data."""

from __future__ import annotations

from torch import Tensor


def interpolate(data: Tensor, noise: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Point x_t = (1 − t) · noise + t · data and its velocity data − noise, for data, noise [B, L, C] and t [B]."""
    t = t.view(-1, 1, 1)
    return (1 - t) * noise + t * data, data - noise


def predicted_data(x_t: Tensor, velocity: Tensor, t: Tensor) -> Tensor:
    """The path's end x_t + (1 − t) · velocity, [B, L, C] in fp32."""
    return x_t.float() + (1 - t.float().view(-1, 1, 1)) * velocity.float()

"""The action network: a small CNN from a stretch of motion to a point in the space that KMeans divides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn import functional

from ds_hymotion.data.actions.features import CHANNELS, RATE

MOST_PARAMETERS = 2_000_000
FRAMES = 64
"""A stretch is seen at so many frames, whatever its length; velocities stay those of real time."""
LONGEST = round(10 * RATE)
"""Longer clips are cut into equal stretches of at most ten seconds, whose points are averaged."""
_WIDTH = 96


class ActionNetwork(nn.Module):
    """Three convolutions over time, pooled to mean, spread and the step from beginning to end, then one linear layer.

    Args:
        outputs: coordinates of a point.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(CHANNELS, _WIDTH, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(_WIDTH, _WIDTH, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1),
            nn.GELU(),
        )
        self.out = nn.Linear(3 * _WIDTH, outputs)
        assert sum(parameter.numel() for parameter in self.parameters()) <= MOST_PARAMETERS

    def forward(self, stretches: Tensor) -> Tensor:
        """Standardised features [B, 133, 64] -> points [B, E]."""
        hidden = self.convolutions(stretches)
        spread = (hidden.var(dim=-1, unbiased=False) + 1e-4).sqrt()
        step = (hidden[..., -3:].mean(dim=-1) - hidden[..., :3].mean(dim=-1)).abs()
        return self.out(torch.cat([hidden.mean(dim=-1), spread, step], dim=1))


def stretches_of(features: Tensor) -> list[Tensor]:
    """A clip's action features [T, 133], cut into equal stretches of at most ten seconds."""
    parts = -(-len(features) // LONGEST)
    return list(features.tensor_split(parts))


def at_network_length(stretch: Tensor) -> Tensor:
    """[T, 133] -> [1, 133, 64], linearly."""
    return functional.interpolate(stretch.T[None], size=FRAMES, mode="linear", align_corners=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order: with one thread, training, clustering and points are the same bits in every run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)

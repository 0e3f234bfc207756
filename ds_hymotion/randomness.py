"""Counted randomness: a draw depends on the run's seed and on what it is for, never on what was drawn before."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor


def seed_of(seed: int, *key: int | str) -> int:
    """64-bit seed from the SHA-256 of the run's seed and a key; ``1`` and ``"1"`` differ."""
    digest = hashlib.sha256(json.dumps([seed, *key]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator of its own for one purpose."""
    return torch.Generator().manual_seed(seed_of(seed, *key))


def sample_noise(
    seed: int, epoch: int, sample_id: str, visit: int, timestep_index: int, frames: int, channels: int
) -> Tensor:
    """Normal noise [frames, channels], fp32.

    Drawn for the clip's own frames and never for a canvas: ``torch.randn`` of a longer tensor is not a continuation.
    """
    random = generator(seed, "noise", epoch, sample_id, visit, timestep_index)
    return torch.randn(frames, channels, generator=random)

"""At which time a training row is noised."""

from __future__ import annotations

from typing import Literal

import torch

TimeKind = Literal["uniform", "stratified", "logit_normal"]


def draw_time(kind: TimeKind, generator: torch.Generator, stratum: int = 0, strata: int = 1) -> float:
    """One t in [0, 1], 0 = noise and 1 = data.

    ``uniform``; ``stratified``: uniform in part ``stratum`` of ``strata`` equal parts, so that the rows of a step
    cover all times; ``logit_normal``: the sigmoid of a standard normal (Esser et al. 2024, section 3.1).

    Raises:
        ValueError: an unknown kind, or a stratum outside 0..strata−1.
    """
    if kind == "logit_normal":
        return float(torch.sigmoid(torch.randn((), generator=generator, dtype=torch.float64)))
    uniform = float(torch.rand((), generator=generator, dtype=torch.float64))
    if kind == "uniform":
        return uniform
    if kind == "stratified":
        if not 0 <= stratum < strata:
            raise ValueError(f"stratum {stratum} must be in 0..{strata - 1}")
        return (stratum + uniform) / strata
    raise ValueError(f"time kind {kind!r} is unknown; use uniform, stratified or logit_normal")

"""Small layers that all parts of the network share.

Statistics, sinusoids and rotations are computed in fp32 whatever dtype the weights have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6


def normalise(x: Tensor) -> Tensor:
    """LayerNorm over the last dim without affine parameters; torch's kernel keeps its statistics in fp32."""
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x · (1 + scale) + shift, with shift and scale [B, 1, C]."""
    return x * (1 + scale) + shift


def sinusoid(t: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """fp32 features [B, 1, width] of times [B]: all cosines, then all sines."""
    half = width // 2
    rates = torch.exp(-math.log(base) / half * torch.arange(half, dtype=torch.float32, device=t.device))
    angles = t.float()[:, None, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def dtype_of(module: nn.Module) -> torch.dtype:
    """The dtype of a module's weights, to which its input is cast."""
    return next(module.parameters()).dtype


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dim, in fp32; the result is fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), EPS)


class LayerNorm(nn.LayerNorm):
    """LayerNorm with weight and bias, computed in fp32 and returned in the dtype of its input."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), x.shape[-1:], self.weight.float(), self.bias.float(), EPS).to(x.dtype)


class Modulation(nn.Module):
    """``count`` vectors [B, 1, C] from the adapter [B, 1, C]: Linear(SiLU(adapter))."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.linear = nn.Linear(width, count * width)

    def forward(self, adapter: Tensor) -> tuple[Tensor, ...]:
        return self.linear(F.silu(adapter)).chunk(self.count, dim=-1)


class Mlp(nn.Module):
    """fc2(activation(fc1(x))) with a hidden width of its own."""

    def __init__(self, width: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.activation = activation
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class VectorEncoder(nn.Module):
    """Linear, SiLU, Linear on a vector of features [B, 1, D]."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.linears = nn.Sequential(nn.Linear(input_width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.linears(x.to(dtype_of(self)))


class TimeEncoder(nn.Module):
    """Times [B] in [0, 1] to [B, 1, C]: sinusoid of t · factor, then Linear, SiLU, Linear."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.width = width
        self.blocks = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        return self.blocks(sinusoid(t.float() * self.factor, self.width).to(dtype_of(self)))

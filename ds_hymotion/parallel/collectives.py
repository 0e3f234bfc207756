"""Collectives over the model axis that autograd knows, each the other's backward.

A tensor is *whole* where every rank holds the same values, and *partial* where the ranks' values add up to it.
Every function takes the group last; all ranks of the group must call it in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx


def copy_to_parts(x: Tensor, group: Any) -> Tensor:
    """``x`` for use by every rank's own part: identity forward, sum of the partial gradients backward ("f")."""
    return _CopyToParts.apply(x, group)


def sum_of_parts(x: Tensor, group: Any) -> Tensor:
    """The whole of partial ``x``: sum forward, identity backward ("g"). What follows must be computed alike by all."""
    return _SumOfParts.apply(x, group)


def join_parts(x: Tensor, widths: Sequence[int], group: Any) -> Tensor:
    """Ranks' slices [..., width of the rank] joined to [..., sum of widths]; backward, every rank takes its slice.

    What follows must be computed alike by all ranks.
    """
    return _JoinParts.apply(x, tuple(widths), group)


def gather_last(x: Tensor, widths: Sequence[int], group: Any) -> Tensor:
    """Without gradient: ranks' slices [..., width of the rank] joined to [..., sum of widths]."""
    if x.numel() == 0 and x.shape[-1] != 0:
        return x.new_empty(*x.shape[:-1], sum(widths))
    widest = max(widths)
    padded = torch.nn.functional.pad(x, (0, widest - x.shape[-1])).contiguous()
    parts = padded.new_empty(len(widths) * padded.numel())
    # torch 2.13 renamed all_gather_into_tensor.
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    gather(parts, padded.view(-1), group=group)
    stacked = parts.view(len(widths), *padded.shape)
    return torch.cat([part[..., :width] for part, width in zip(stacked, widths)], dim=-1)


def summed(x: Tensor, group: Any) -> Tensor:
    """Without gradient: the sum of all ranks' ``x`` as a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    if total.numel():
        dist.all_reduce(total, group=group)
    return total


class _CopyToParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, group: Any) -> Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return summed(gradient, ctx.group), None


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, group: Any) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _JoinParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: tuple[int, ...], group: Any) -> Tensor:
        rank = dist.get_rank(group)
        ctx.start, ctx.width = sum(widths[:rank]), widths[rank]
        return gather_last(x, widths, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.narrow(-1, ctx.start, ctx.width), None, None

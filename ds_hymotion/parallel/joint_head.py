"""The motion head cut by joints: every rank predicts the channels of its own joints, and keeps them to itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ds_hymotion.parallel.collectives import gather_last, join_parts


class JointHead(nn.Module):
    """Linear from the whole stream [B, L, C] to this rank's motion channels [B, L, own].

    The stream's gradient needs all channels. Instead of summing it over the ranks, which moves C values per frame
    twice, the backward pass gathers the predictions' gradients and the head's rows (all motion channels per frame,
    and once per call C rows more) and computes it whole on every rank.

    Args:
        weight: [own, C], the rows of this rank's channels.
        bias: [own], or None.
        channels: the channels of every rank.
        group: the model axis' process group.
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, channels: Sequence[Sequence[int]], group: Any
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.group = weight, bias, group
        self.widths = [len(part) for part in channels]
        self.order = torch.tensor([channel for part in channels for channel in part])
        self.whole = False

    def forward(self, x: Tensor) -> Tensor:
        own = _HeadProduct.apply(x, self.weight, self.bias, self.widths, self.group)
        if not self.whole:
            return own
        return join_parts(own, self.widths, self.group).index_select(-1, self.order.argsort().to(own.device))


class _HeadProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, widths: list[int], group: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.widths, ctx.group = widths, group
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        whole = gather_last(torch.cat([rows, weight.T]), ctx.widths, ctx.group)
        of_x = whole[: len(rows)] @ whole[len(rows) :].T
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return of_x.view_as(x), rows.T @ x.flatten(0, -2), of_bias, None, None


@contextmanager
def whole_velocity(network: nn.Module) -> Iterator[None]:
    """Inside, a cut network returns all motion channels on every rank, as a sampler needs; a plain one always does."""
    heads = [module for module in network.modules() if isinstance(module, JointHead)]
    for head in heads:
        head.whole = True
    try:
        yield
    finally:
        for head in heads:
            head.whole = False


class RotationGather:
    """Completes decoded bodies over the ranks, for losses on joint positions.

    Every rank knows the rotations of its own joints. Two columns of each matrix travel, 6 values per joint, and the
    root translation; the third column is their cross product. The gradient of each value returns to its owner.

    Args:
        joints: the joints of every rank.
        translation: the rank that predicts the root translation.
        group: the model axis' process group.
    """

    def __init__(self, joints: Sequence[Sequence[int]], translation: int, group: Any) -> None:
        self.joints = [torch.tensor(list(part)) for part in joints]
        self.translation = translation
        self.group = group
        self.widths = [6 * len(part) + 3 * (rank == translation) for rank, part in enumerate(joints)]

    def __call__(self, rotations: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
        """Rotations [..., 24, 3, 3] and translation [..., 3], of which only this rank's own are right, made whole."""
        rank = dist.get_rank(self.group)
        own = rotations.index_select(-3, self.joints[rank].to(rotations.device))[..., :2].flatten(-3)
        if rank == self.translation:
            own = torch.cat([own, translation], dim=-1)
        parts = join_parts(own, self.widths, self.group).split(self.widths, dim=-1)
        for other, part in enumerate(parts):
            joints = self.joints[other].to(rotations.device)
            columns = part[..., : 6 * len(joints)].unflatten(-1, (len(joints), 3, 2))
            first, second = columns.unbind(-1)
            whole = torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)
            rotations = rotations.index_copy(-3, joints, whole)
            if other == self.translation:
                translation = part[..., 6 * len(joints) :]
        return rotations, translation

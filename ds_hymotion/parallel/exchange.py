"""Dispatch by all-to-all: whole clips' valid frames go to the data rank that holds their expert, velocities come back.

Nothing is padded on the way: of every row travel one adapter vector, its valid frames and its valid text tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ds_hymotion.data.expert_owners import owner_of_expert
from ds_hymotion.model.blocks import Stream
from ds_hymotion.model.experts import Clips


class Splits(NamedTuple):
    """How many vectors this rank sends to and receives from every rank of the group."""

    sent: list[int]
    received: list[int]


class Exchange:
    """Sends clips to their experts' ranks inside a group of data ranks that together hold every expert once.

    All ranks of the group must call it in the same order, those without a clip too.

    Args:
        group: the process group; its rank o is owner o of :mod:`ds_hymotion.data.expert_owners`.
        number: how many experts there are.
    """

    def __init__(self, group: Any, number: int) -> None:
        self.group = group
        self.number = number
        self.size = dist.get_world_size(group)

    def send(self, clips: Clips) -> tuple[Clips, Return]:
        """The clips whose experts this rank holds, from all ranks, and the way back. Rows without a frame stay."""
        rows = (clips.lengths > 0).nonzero()[:, 0]
        owners = owner_of_expert(clips.expert[rows], self.number, self.size)
        order = owners.argsort(stable=True)
        rows, owners = rows[order], owners[order]
        counts = torch.bincount(owners, minlength=self.size)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        splits = Splits(counts.tolist(), arriving.tolist())
        facts = torch.stack([clips.lengths, clips.text_lengths, clips.expert], 1)[rows]
        got = self._integers(facts, splits)
        lengths, text_lengths, expert = got.unbind(1)

        out, back = _per_rank(facts[:, 0], splits.sent), _per_rank(lengths, splits.received)
        whole = Splits(
            _per_rank(1 + facts[:, 0] + facts[:, 1], splits.sent),
            _per_rank(1 + lengths + text_lengths, splits.received),
        )
        frames, tokens = clips.stream.motion.shape[1], clips.stream.text.shape[1]
        packed = torch.cat(list(clips.stream), 1)[rows]
        valid = torch.cat([_ones(facts), _valid(facts[:, 0], frames), _valid(facts[:, 1], tokens)], 1)
        vectors = exchanged(packed[valid], whole, self.group)

        frames, tokens = (int(value.max()) if len(got) else 0 for value in (lengths, text_lengths))
        valid = torch.cat([_ones(got), _valid(lengths, frames), _valid(text_lengths, tokens)], 1)
        padded = vectors.new_zeros(*valid.shape, vectors.shape[-1]).masked_scatter(valid[..., None], vectors)
        stream = Stream(*padded.split([1, frames, tokens], dim=1))
        way = Return(self.group, Splits(back, out), lengths, rows, clips.lengths, clips.stream.motion.shape[1])
        return Clips(stream, lengths, text_lengths, expert), way

    def _integers(self, values: Tensor, splits: Splits) -> Tensor:
        received = values.new_empty(sum(splits.received), values.shape[1])
        dist.all_to_all_single(received, values, splits.received, splits.sent, group=self.group)
        return received


@dataclass(frozen=True)
class Return:
    """The way of velocities back to the rows that clips came from."""

    group: Any
    splits: Splits
    lengths: Tensor
    rows: Tensor
    row_lengths: Tensor
    frames: int

    def __call__(self, velocity: Tensor) -> Tensor:
        """[B, L, D] in the rows' order, zero behind their last frames, from the clips' velocities [N, L', D]."""
        vectors = exchanged(velocity[_valid(self.lengths, velocity.shape[1])], self.splits, self.group)
        own = _valid(self.row_lengths[self.rows], self.frames)
        padded = vectors.new_zeros(*own.shape, vectors.shape[-1]).masked_scatter(own[..., None], vectors)
        return vectors.new_zeros(len(self.row_lengths), *padded.shape[1:]).index_copy(0, self.rows, padded)


def exchanged(vectors: Tensor, splits: Splits, group: Any) -> Tensor:
    """[sum of received, C] from [sum of sent, C], ranks in order; gradients travel back the same way."""
    return _Exchange.apply(vectors, splits, group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, splits: Splits, group: Any) -> Tensor:
        ctx.splits, ctx.group = splits, group
        received = vectors.new_empty(sum(splits.received), vectors.shape[1])
        dist.all_to_all_single(received, vectors.contiguous(), splits.received, splits.sent, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        back = Splits(ctx.splits.received, ctx.splits.sent)
        received = gradient.new_empty(sum(back.received), gradient.shape[1])
        dist.all_to_all_single(received, gradient.contiguous(), back.received, back.sent, group=ctx.group)
        return received, None, None


def _valid(lengths: Tensor, most: int) -> Tensor:
    """[N, most] bool: places before each length."""
    return torch.arange(most, device=lengths.device) < lengths[:, None]


def _ones(facts: Tensor) -> Tensor:
    return torch.ones(len(facts), 1, dtype=torch.bool, device=facts.device)


def _per_rank(vectors: Tensor, rows: list[int]) -> list[int]:
    """Sums of ``vectors`` over stretches of so many rows."""
    return [int(part.sum()) for part in vectors.split(rows)]

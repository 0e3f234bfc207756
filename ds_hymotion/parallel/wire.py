"""What crosses a stage boundary: one packed float tensor, and one integer tensor after it.

DeepSpeed runs a stage's backward once per float tensor that it sends, and reuses its receive buffers by size alone,
which an integer tensor between floats breaks (tdrussell/diffusion-pipe#544). So all floats travel as one tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ds_hymotion.model.blocks import Stream


class Wire(NamedTuple):
    """The stream between two blocks with the lengths from which every stage rebuilds RoPE tables and masks.

    On the wire: floats [B, 1 + L + T, C] = adapter, L frames, T text tokens; integers [B, 1 + T] int32 = a row's valid
    frames, then for each token 1 where it is valid, and with experts [B, 2 + T] with a row's expert in the last
    place. The shapes alone tell L and T, so no stage waits for its device to learn them. B, L and single lengths may be
    0.

    Attributes:
        stream: adapter [B, 1, C], motion [B, L, C], text [B, T, C], of one dtype.
        lengths: [B] valid frames.
        text_lengths: [B] valid tokens, at most T.
        expert: [B] each row's expert, in a network that has them.
    """

    stream: Stream
    lengths: Tensor
    text_lengths: Tensor
    expert: Tensor | None = None

    def pack(self) -> tuple[Tensor, Tensor]:
        """The two tensors that are sent, contiguous.

        Raises:
            TypeError: the stream's parts differ in dtype, which one tensor cannot hold.
        """
        if len({part.dtype for part in self.stream}) != 1:
            raise TypeError(f"a stream of {', '.join(str(part.dtype) for part in self.stream)} cannot be packed")
        token = torch.arange(self.stream.text.shape[1], device=self.text_lengths.device)
        valid = token < self.text_lengths[:, None]
        expert = [] if self.expert is None else [self.expert[:, None].int()]
        integers = torch.cat([self.lengths[:, None].int(), valid.int(), *expert], dim=1)
        return torch.cat(list(self.stream), dim=1), integers

    @classmethod
    def unpack(cls, floats: Tensor, integers: Tensor, experts: bool = False) -> Wire:
        """The inverse of :meth:`pack`; the stream's parts are views of ``floats``. ``experts``: rows have theirs."""
        expert = integers[:, -1].long() if experts else None
        integers = integers[:, :-1] if experts else integers
        tokens = integers.shape[1] - 1
        frames = floats.shape[1] - 1 - tokens
        adapter, motion, text = floats.split([1, frames, tokens], dim=1)
        return cls(Stream(adapter, motion, text), integers[:, 0].long(), integers[:, 1:].sum(1), expert)

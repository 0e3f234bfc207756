"""Packing and unpacking of what crosses a stage boundary."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.model.blocks import Stream
from ds_hymotion.parallel.wire import Wire


def wire(rows: int, frames: int, tokens: int, dtype: torch.dtype = torch.float32) -> Wire:
    random = torch.Generator().manual_seed(rows * 10007 + frames * 101 + tokens)
    stream = Stream(*(torch.randn(rows, n, 4, generator=random).to(dtype) for n in (1, frames, tokens)))
    lengths = torch.randint(0, frames + 1, (rows,), generator=random)
    return Wire(stream, lengths, torch.randint(0, tokens + 1, (rows,), generator=random))


@settings(deadline=None)
@given(st.integers(0, 4), st.integers(0, 9), st.integers(0, 6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_unpack_undoes_pack(rows: int, frames: int, tokens: int, dtype: torch.dtype) -> None:
    sent = wire(rows, frames, tokens, dtype)
    floats, integers = sent.pack()
    assert floats.shape == (rows, 1 + frames + tokens, 4) and floats.dtype == dtype and floats.is_contiguous()
    assert integers.shape == (rows, 1 + tokens) and not integers.is_floating_point() and integers.is_contiguous()
    received = Wire.unpack(floats, integers)
    assert all(torch.equal(a, b) for a, b in zip(sent.stream, received.stream))
    assert torch.equal(sent.lengths, received.lengths)
    assert torch.equal(sent.text_lengths, received.text_lengths)


def test_rows_take_their_experts_along() -> None:
    sent = wire(3, 5, 2)._replace(expert=torch.tensor([2, 0, 5]))
    floats, integers = sent.pack()
    received = Wire.unpack(floats, integers, experts=True)
    assert received.expert is not None and received.expert.tolist() == [2, 0, 5]
    assert torch.equal(sent.text_lengths, received.text_lengths) and torch.equal(sent.stream.text, received.stream.text)


def test_the_layout_is_adapter_motion_text() -> None:
    stream = Stream(torch.full((1, 1, 2), 1.0), torch.full((1, 3, 2), 2.0), torch.full((1, 2, 2), 3.0))
    floats, integers = Wire(stream, torch.tensor([2]), torch.tensor([1])).pack()
    assert floats[0, :, 0].tolist() == [1, 2, 2, 2, 3, 3]
    assert integers.tolist() == [[2, 1, 0]]


def test_one_backward_reaches_every_part() -> None:
    parts = [torch.randn(2, n, 4, requires_grad=True) for n in (1, 5, 3)]
    floats, _ = Wire(Stream(*parts), torch.tensor([5, 1]), torch.tensor([3, 0])).pack()
    gradient = torch.randn_like(floats)
    floats.backward(gradient)
    assert torch.equal(torch.cat([part.grad for part in parts if part.grad is not None], 1), gradient)


def test_a_stream_of_mixed_precision_is_an_error() -> None:
    mixed = wire(1, 2, 2)
    stream = mixed.stream._replace(text=mixed.stream.text.bfloat16())
    with pytest.raises(TypeError, match="bfloat16"):
        Wire(stream, mixed.lengths, mixed.text_lengths).pack()

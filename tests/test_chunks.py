"""Motions cut along time: where chunks go, and that cutting and joining are inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.model.chunks import NOWHERE, aligned, cut, join, own_frames, packed


def test_packed_chunks_of_three_motions_on_two_stages() -> None:
    first, second = packed([7, 4, 9], 4, 2)
    assert first.rows.tolist() == [[0, 0, 1]] and first.starts.tolist() == [[0, 4, 0]]
    assert second.rows.tolist() == [[2, 2, 2]] and second.starts.tolist() == [[0, 4, 8]]
    lengths = torch.tensor([7, 4, 9])
    assert own_frames(lengths, first, 4).tolist() == [4, 3, 4]
    assert own_frames(lengths, second, 4).tolist() == [4, 4, 1]


def test_a_motion_may_cross_stages() -> None:
    stages = packed([9, 3], 3, 3)
    assert [pieces.starts.tolist() for pieces in stages] == [[[0, NOWHERE]], [[3, NOWHERE]], [[6, 0]]]


def test_aligned_chunks_leave_places_empty() -> None:
    first, second = aligned([7, 4], 4, 2)
    assert first.rows.tolist() == [[0], [1]] and first.starts.tolist() == [[0], [0]]
    assert second.starts.tolist() == [[4], [NOWHERE]]
    with pytest.raises(ValueError, match="9 frames has more than 2 chunks of 4"):
        aligned([9], 4, 2)


def test_a_halo_is_zero_before_the_first_frame() -> None:
    motion = torch.arange(1.0, 9).view(1, 8, 1)
    (pieces,) = packed([8], 4, 1)
    assert cut(motion, pieces, -2, 6)[..., 0].tolist() == [[0, 0, 1, 2, 3, 4], [3, 4, 5, 6, 7, 8]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), max_size=5), st.integers(1, 7), st.integers(1, 4), st.booleans())
def test_every_frame_is_in_exactly_one_chunk(lengths: list[int], frames: int, stages: int, pack: bool) -> None:
    if not pack:
        stages = max(1, -(-max(lengths, default=1) // frames))
    motion = torch.rand(max(1, len(lengths)), 20, 2) + 1
    valid = torch.zeros(len(motion), 20, 1)
    for row, length in enumerate(lengths):
        valid[row, :length] = 1
    divided = (packed if pack else aligned)(lengths, frames, stages)
    assert len(divided) == stages
    if not lengths:
        return
    own = sum(int(own_frames(torch.tensor(lengths), pieces, frames).sum()) for pieces in divided)
    assert own == sum(lengths)
    whole = sum(join(cut(motion, pieces, 0, frames), pieces, motion) for pieces in divided)
    assert torch.equal(whole * valid, motion * valid)
    if pack:
        counts = [int((pieces.starts < NOWHERE).sum()) for pieces in divided]
        assert max(counts) - min(counts) <= 1

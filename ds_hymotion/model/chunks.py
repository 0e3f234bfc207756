"""Motions cut along time: which chunk of which motion is computed where. Integers and copies, no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NOWHERE = 1 << 30


class Pieces(NamedTuple):
    """Chunks as rows of one batch: ``lanes`` sequences of ``depth`` chunks, along which states are handed on.

    Attributes:
        rows: [lanes, depth] the row of the batch that a chunk is cut from.
        starts: [lanes, depth] its first frame there; 0 begins a motion and resets the state, NOWHERE is no chunk.
    """

    rows: Tensor
    starts: Tensor

    def to(self, device: torch.device) -> Pieces:
        """The same on another device."""
        return Pieces(self.rows.to(device), self.starts.to(device))


def packed(lengths: Sequence[int], frames: int, stages: int) -> list[Pieces]:
    """All chunks, motion after motion, in one lane that is divided over ``stages``, as evenly as whole chunks allow.

    A motion may cross from a stage to the next, at most one does, so one state crosses. Every stage has the same
    depth, at least 1.

    Args:
        lengths: valid frames of each row.
        frames: frames of a chunk.
    """
    chunks = [(row, start) for row, length in enumerate(lengths) for start in range(0, length, frames)]
    depth = max(1, -(-len(chunks) // stages))
    bounds = [len(chunks) * stage // stages for stage in range(stages + 1)]
    return [_pieces([chunks[low:high]], depth) for low, high in zip(bounds, bounds[1:])]


def aligned(lengths: Sequence[int], frames: int, stages: int) -> list[Pieces]:
    """Stage i has chunk i of every motion, a lane for each; a motion that ends before it leaves an empty place.

    Raises:
        ValueError: a motion has more chunks than there are stages.
    """
    longest = max(lengths, default=0)
    if longest > frames * stages:
        raise ValueError(f"a motion of {longest} frames has more than {stages} chunks of {frames}")
    return [
        _pieces([[(row, stage * frames)] if length > stage * frames else [] for row, length in enumerate(lengths)], 1)
        for stage in range(stages)
    ]


def _pieces(lanes: Sequence[Sequence[tuple[int, int]]], depth: int) -> Pieces:
    filled = [[*lane, *[(0, NOWHERE)] * (depth - len(lane))] for lane in lanes]
    both = torch.tensor(filled, dtype=torch.long).view(len(lanes), depth, 2)
    return Pieces(both[..., 0], both[..., 1])


def places(pieces: Pieces, first: int, count: int) -> Tensor:
    """[lanes · depth, count] frame numbers in each motion, from ``first`` after a chunk's start on."""
    return pieces.starts.flatten()[:, None] + first + torch.arange(count, device=pieces.starts.device)


def cut(values: Tensor, pieces: Pieces, first: int, count: int) -> Tensor:
    """Frames [lanes · depth, count, C] of motions [B, L, C] at :func:`places`, zero outside the motions."""
    where = places(pieces, first, count)
    inside = (where >= 0) & (where < values.shape[1])
    taken = values[pieces.rows.flatten()[:, None], where.clamp(0, values.shape[1] - 1)]
    return torch.where(inside[..., None], taken, taken.new_zeros(()))


def join(parts: Tensor, pieces: Pieces, like: Tensor) -> Tensor:
    """Motions [B, L, C], shaped as ``like``, from chunks [lanes · depth, frames, C]; zero where no chunk is."""
    where = places(pieces, 0, parts.shape[1])
    inside = where < like.shape[1]
    rows = pieces.rows.flatten()[:, None].expand_as(where)
    whole = torch.zeros(like.shape[:2] + parts.shape[2:], dtype=parts.dtype, device=parts.device)
    return whole.index_put((rows[inside], where[inside]), parts[inside])


def own_frames(lengths: Tensor, pieces: Pieces, frames: int) -> Tensor:
    """[lanes · depth] valid frames of each chunk of motions of ``lengths`` [B]."""
    return (lengths[pieces.rows.flatten()] - pieces.starts.flatten()).clamp(0, frames)

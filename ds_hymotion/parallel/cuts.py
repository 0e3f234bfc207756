"""How whole tensors are cut over the ranks of the model axis, and joined again: data, without a process group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


class Cut(ABC):
    """A tensor divided along ``dim``: every index belongs to exactly one rank."""

    dim: int

    @abstractmethod
    def index(self, rank: int) -> Tensor:
        """The indices (int64) of the whole tensor's ``dim`` that a rank holds, in its order."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Length of ``dim`` in the whole tensor."""

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """A rank's part, as a new tensor.

        Raises:
            ValueError: the tensor has another length along ``dim``.
        """
        if whole.shape[self.dim] != self.length:
            raise ValueError(f"dim {self.dim} of {tuple(whole.shape)} is not {self.length}")
        return whole.index_select(self.dim, self.index(rank).to(whole.device))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from all ranks' parts in rank order: the inverse of :meth:`cut`."""
        whole = parts[0].new_empty(self.whole_shape(parts[0].shape))
        for rank, part in enumerate(parts):
            whole.index_copy_(self.dim, self.index(rank).to(part.device), part)
        return whole

    def part_shape(self, whole: Sequence[int], rank: int) -> tuple[int, ...]:
        """The shape of a rank's part of a tensor of shape ``whole``."""
        return (*whole[: self.dim], len(self.index(rank)), *whole[self.dim + 1 :])

    def whole_shape(self, part: Sequence[int]) -> tuple[int, ...]:
        """The shape of the tensor that a part of shape ``part`` was cut from."""
        return (*part[: self.dim], self.length, *part[self.dim + 1 :])


@dataclass(frozen=True)
class SegmentCut(Cut):
    """``dim`` consists of segments one after another, such as q, k and v; every rank takes its share of each."""

    dim: int
    segments: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        for width in self.segments:
            if width % self.size:
                raise ValueError(f"a segment of {width} cannot be cut into {self.size} equal parts")

    def index(self, rank: int) -> Tensor:
        pieces, start = [], 0
        for width in self.segments:
            share = width // self.size
            pieces.append(torch.arange(start + rank * share, start + (rank + 1) * share))
            start += width
        return torch.cat(pieces)

    @property
    def length(self) -> int:
        return sum(self.segments)


@dataclass(frozen=True)
class ListCut(Cut):
    """Every rank takes the indices of a list of its own; lists may differ in length."""

    dim: int
    lists: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        taken = sorted(index for part in self.lists for index in part)
        if taken != list(range(len(taken))):
            raise ValueError("the lists of a cut must hold every index once")

    def index(self, rank: int) -> Tensor:
        return torch.tensor(self.lists[rank], dtype=torch.long)

    @property
    def length(self) -> int:
        return sum(map(len, self.lists))


@dataclass(frozen=True)
class CutPlan:
    """Which tensors are cut, by released parameter name; every other tensor is held whole by all ranks."""

    size: int = 1
    cuts: Mapping[str, Cut] = field(default_factory=dict)

    def cut(self, name: str, whole: Tensor, rank: int) -> Tensor:
        """What a rank holds of a whole tensor."""
        return self.cuts[name].cut(whole, rank) if name in self.cuts else whole

    def join(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from all ranks' parts in rank order."""
        return self.cuts[name].join(parts) if name in self.cuts else parts[0]

    def whole_shape(self, name: str, part: Sequence[int]) -> tuple[int, ...]:
        """The whole tensor's shape, from that of a rank's part."""
        return self.cuts[name].whole_shape(part) if name in self.cuts else tuple(part)

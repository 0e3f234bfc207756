"""What a text encoder is: captions in; token features, their true lengths and one pooled vector out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class TextFeatures:
    """Features of N captions, right-padded to the longest.

    Attributes:
        tokens: [N, L, D], zero beyond a caption's own length.
        lengths: [N] int64, true token counts, 1 ≤ length ≤ L.
        pooled: [N, V], one vector per caption.
    """

    tokens: Tensor
    lengths: Tensor
    pooled: Tensor

    def __post_init__(self) -> None:
        count = len(self.lengths)
        if self.tokens.ndim != 3 or self.pooled.ndim != 2 or self.lengths.ndim != 1:
            raise ValueError(
                f"text features need tokens [N, L, D], lengths [N] and pooled [N, V]; got {tuple(self.tokens.shape)}, "
                f"{tuple(self.lengths.shape)} and {tuple(self.pooled.shape)}"
            )
        if len(self.tokens) != count or len(self.pooled) != count:
            raise ValueError(
                f"text features of different counts: {len(self.tokens)} token rows, {count} lengths, "
                f"{len(self.pooled)} pooled rows"
            )
        if self.lengths.dtype != torch.int64:
            raise ValueError(f"text lengths must be int64, not {self.lengths.dtype}")

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> TextFeatures:
        """The features on another device and, for tokens and pooled, in another dtype."""
        return TextFeatures(self.tokens.to(device, dtype), self.lengths.to(device), self.pooled.to(device, dtype))

    @staticmethod
    def of_rows(rows: list[Tensor], pooled: Tensor) -> TextFeatures:
        """Pad rows [L_i, D] to the longest; ``pooled`` is [N, V]."""
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return TextFeatures(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths, pooled)


@runtime_checkable
class TextEncoder(Protocol):
    """Anything that turns captions into :class:`TextFeatures`; the name is also the name of its cache folder."""

    name: str
    token_dim: int
    pooled_dim: int

    @property
    def identity(self) -> dict[str, str]:
        """What the features depend on besides the name and the widths: a cache keeps it and refuses others."""
        ...

    def encode(self, captions: list[str]) -> TextFeatures:
        """Features of the captions in their order. The empty caption has at least one token."""
        ...

    def truncated(self, captions: list[str]) -> dict[str, int]:
        """How many of the captions are longer than the encoder reads, by the limit such as "64 words"."""
        ...

"""No text: features for networks that are trained with the null condition alone."""

from __future__ import annotations

import torch

from ds_hymotion.text.encoder import TextFeatures


class NullTextEncoder:
    """One token of zeros per caption, in place of an encoder or its cache; the network puts its null features there.

    Args:
        token_dim, pooled_dim: the network's text widths.
    """

    name = encoder_name = "null"

    def __init__(self, token_dim: int, pooled_dim: int) -> None:
        self.token_dim = token_dim
        self.pooled_dim = pooled_dim

    @property
    def identity(self) -> dict[str, str]:
        """Nothing: there is no model."""
        return {}

    def __contains__(self, caption: str) -> bool:
        return True

    def encode(self, captions: list[str]) -> TextFeatures:
        """Zeros: tokens [N, 1, D] and pooled [N, V]."""
        count = len(captions)
        lengths = torch.ones(count, dtype=torch.int64)
        return TextFeatures(torch.zeros(count, 1, self.token_dim), lengths, torch.zeros(count, self.pooled_dim))

    def lookup(self, captions: list[str], dtype: torch.dtype = torch.float32) -> TextFeatures:
        """As :meth:`encode`; a cache's name for it."""
        return self.encode(captions).to("cpu", dtype)

    def truncated(self, captions: list[str]) -> dict[str, int]:
        """No caption is too long."""
        return {}

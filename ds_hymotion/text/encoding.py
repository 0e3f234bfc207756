"""Encoding a corpus's captions into its feature cache, and what is worth knowing about it afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import torch

from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.encoder import TextEncoder


def encode_captions(
    cache: TextCache, captions: Iterable[str], encoder: TextEncoder, dtype: torch.dtype, progress: bool = False
) -> dict[str, Any]:
    """Give the cache the features it lacks; return the summary of all these captions for the corpus's report.

    Raises:
        UserError: the cache holds features of another encoder, or the features cannot be stored.
    """
    distinct = list(dict.fromkeys(captions))
    cache.write(distinct, encoder, dtype, progress=progress)
    lengths = cache.lengths(distinct)
    return {
        "captions": len(distinct),
        "dtype": str(dtype).removeprefix("torch."),
        "made_with": cache.identity,
        "tokens": {"min": min(lengths), "median": median(lengths), "max": max(lengths)},
        "truncated": encoder.truncated(distinct),
    }


def text_lines(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The summaries by encoder, a line each."""
    lines = []
    for name, found in summaries.items():
        tokens = found["tokens"]
        cut = ", ".join(f"{count:,} over {limit}" for limit, count in found["truncated"].items())
        lines.append(
            f"{name} ({found['dtype']}): {found['captions']:,} distinct captions of {tokens['min']} to {tokens['max']} "
            f"tokens, median {tokens['median']:g}; cut: {cut}"
        )
    return lines

"""Text caches of several corpora, asked as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.text.cache import MERE_NAMES, TextCache
from ds_hymotion.text.encoder import TextFeatures


class CacheGroup:
    """Caches that one encoder made; a caption's features come from the first that has it.

    Args:
        caches: at least one, each with features.

    Raises:
        UserError: a cache is of another encoder, other widths, another system prompt or other models than the first.
    """

    def __init__(self, caches: Sequence[TextCache]) -> None:
        self.caches = tuple(caches)
        first = self.caches[0]
        self.encoder_name = first.encoder_name
        self.token_dim = first.token_dim
        self.pooled_dim = first.pooled_dim
        self.identity: dict[str, str] = {}
        known = _made_by(first)
        for cache in self.caches:
            for key, value in _made_by(cache).items():
                if known.setdefault(key, value) != value:
                    raise UserError(
                        f"the text features in {cache.folder} have {key} = {value:.16}, those in {first.folder} "
                        f"{known[key]:.16}; encode both corpora's captions with the same (launch/prepare.py "
                        "--encode_text)"
                    )
            self.identity = {**cache.identity, **self.identity}

    def __contains__(self, caption: str) -> bool:
        return any(caption in cache for cache in self.caches)

    def lookup(self, captions: list[str], dtype: torch.dtype = torch.float32) -> TextFeatures:
        """Features of the captions, in their order, padded to the longest of them.

        Raises:
            UserError: a caption is in no cache.
        """
        tokens, pooled = [], []
        for caption in captions:
            cache = next((cache for cache in self.caches if caption in cache), None)
            if cache is None:
                folders = ", ".join(str(cache.folder) for cache in self.caches)
                raise UserError(
                    f"no text features for the caption {caption!r} in any of {folders}; run launch/prepare.py again "
                    f"with --encode_text {self.encoder_name}"
                )
            features = cache.lookup([caption], dtype)
            tokens.append(features.tokens[0])
            pooled.append(features.pooled)
        return TextFeatures.of_rows(tokens, torch.cat(pooled))


def _made_by(cache: TextCache) -> dict[str, str]:
    made = {key: value for key, value in cache.identity.items() if key not in MERE_NAMES}
    return {"encoder": cache.encoder_name, "dtype": str(cache.dtype).removeprefix("torch."), **made}

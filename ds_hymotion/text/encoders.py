"""Text encoders by name."""

from __future__ import annotations

from ds_hymotion.errors import UserError
from ds_hymotion.text.encoder import TextEncoder
from ds_hymotion.text.hashed import HashedTextEncoder

ENCODERS = ("hashed",)


def text_encoder(name: str, token_dim: int, pooled_dim: int) -> TextEncoder:
    """The encoder called ``name`` with features of the given widths.

    Raises:
        UserError: an unknown name.
    """
    if name == "hashed":
        return HashedTextEncoder(token_dim, pooled_dim)
    raise UserError(f"text encoder {name!r} is not one of {', '.join(ENCODERS)}")

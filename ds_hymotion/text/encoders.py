"""Text encoders by name."""

from __future__ import annotations

from ds_hymotion.errors import UserError
from ds_hymotion.text.encoder import TextEncoder
from ds_hymotion.text.hashed import HashedTextEncoder
from ds_hymotion.text.null import NullTextEncoder
from ds_hymotion.text.sources import EncoderSources

ENCODERS = ("hashed", "qwen_clip")


def text_encoder(
    name: str, token_dim: int = 128, pooled_dim: int = 128, sources: EncoderSources | None = None
) -> TextEncoder:
    """The encoder called ``name``.

    Args:
        name: one of ``ENCODERS``.
        token_dim, pooled_dim: widths of an encoder that can have any.
        sources: where the parts of an encoder with weights lie.

    Raises:
        UserError: an unknown name, or sources that are not there.
    """
    if name == "hashed":
        return HashedTextEncoder(token_dim, pooled_dim)
    if name == "qwen_clip":
        from ds_hymotion.text.qwen_clip import QwenClipEncoder  # transformers takes seconds to import

        return QwenClipEncoder(sources or EncoderSources())
    if name == NullTextEncoder.name:  # of networks trained without captions; no corpus is encoded with it
        return NullTextEncoder(token_dim, pooled_dim)
    raise UserError(f"text encoder {name!r} is not one of {', '.join(ENCODERS)}")

"""The weights of Qwen3 and CLIP's text tower, loaded through transformers, and the features they give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ds_hymotion.errors import UserError
from ds_hymotion.text.caption_tokens import CaptionTokens
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.sources import PRECISIONS, EncoderSources

QWEN_TYPES = ("qwen3",)
CLIP_TYPES = ("clip", "clip_text_model")


@dataclass(frozen=True)
class TextModels:
    """Both models in evaluation mode, without gradients.

    Attributes:
        qwen: transformers' Qwen3 without its language head; the last hidden state is after its final norm.
        clip: CLIP's text tower in fp32, without its projection.
    """

    qwen: Any
    clip: Any

    @torch.no_grad()
    def features(self, tokens: CaptionTokens) -> TextFeatures:
        """Features of the tokens' rows, on the models' device: tokens in Qwen3's dtype, pooled in fp32."""
        return row_features(tokens, hidden_states(self.qwen, tokens), self.pooled(tokens))

    @torch.no_grad()
    def pooled(self, tokens: CaptionTokens) -> Tensor:
        """CLIP's pooler output [U, V]: neither projected nor normalised."""
        mask = length_mask(tokens.clip_lengths, tokens.clip.shape[1])
        return self.clip(input_ids=tokens.clip, attention_mask=mask).pooler_output

    def fingerprint(self) -> str:
        """A short hash of names, shapes and a few values of every parameter: which models these are."""
        digest = hashlib.sha256()
        for model in (self.qwen, self.clip):
            for name, parameter in sorted(model.named_parameters()):
                flat = parameter.detach().reshape(-1)
                ends = torch.cat([flat[:8], flat[-8:]]).to("cpu", torch.bfloat16).view(torch.int16)
                digest.update(f"{name}{tuple(parameter.shape)}{ends.tolist()}".encode())
        return digest.hexdigest()[:16]


def hidden_states(model: Any, tokens: CaptionTokens, inputs: Tensor | None = None) -> Tensor:
    """The last hidden state [U, W, D], of the token ids or, for upper layers alone, of lower layers' output."""
    mask = length_mask(tokens.qwen_lengths, tokens.qwen.shape[1])
    given = {"input_ids": tokens.qwen} if inputs is None else {"inputs_embeds": inputs}
    return model(**given, attention_mask=mask, use_cache=False).last_hidden_state


def row_features(tokens: CaptionTokens, hidden: Tensor, pooled: Tensor) -> TextFeatures:
    """Features of the rows from those of the distinct captions, [U, W, D] and [U, V].

    Token features begin at the crop and are zero beyond a caption's length.
    """
    cropped = hidden[:, tokens.crop :]
    valid = length_mask(tokens.qwen_lengths - tokens.crop, cropped.shape[1])
    cropped = torch.where(valid[:, :, None], cropped, cropped.new_zeros(()))
    return TextFeatures(cropped[tokens.rows], tokens.lengths, pooled[tokens.rows])


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """True [N, width] at the first ``lengths`` [N] places."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def load_configs(sources: EncoderSources) -> tuple[Any, Any]:
    """The configurations of Qwen3 and of CLIP's text tower; little is read.

    Raises:
        UserError: not there, or of another kind of model.
    """
    from transformers import AutoConfig

    qwen = _load(AutoConfig.from_pretrained, sources, "qwen")
    clip = _load(AutoConfig.from_pretrained, sources, "clip")
    for kind, config, legal in (("qwen", qwen, QWEN_TYPES), ("clip", clip, CLIP_TYPES)):
        if config.model_type not in legal:
            raise UserError(
                f"{sources.prefix}{kind} {getattr(sources, kind)} is a {config.model_type} model, not "
                f"{' or '.join(legal)}; {_example(kind)}"
            )
    return qwen, getattr(clip, "text_config", clip)


def load_tokenizers(sources: EncoderSources) -> tuple[Any, Any]:
    """The tokenizers of both models.

    Raises:
        UserError: not there.
    """
    from transformers import AutoTokenizer

    return _load(AutoTokenizer.from_pretrained, sources, "qwen"), _load(AutoTokenizer.from_pretrained, sources, "clip")


def load_models(sources: EncoderSources) -> TextModels:
    """Both models on the sources' device, Qwen3 in the sources' dtype.

    Raises:
        UserError: not there, damaged, or files that lack weights.
    """
    from transformers import AutoModel, CLIPTextModel

    return TextModels(
        _frozen(_load_weights(AutoModel, sources, "qwen", PRECISIONS[sources.dtype]), sources.place),
        _frozen(_load_weights(CLIPTextModel, sources, "clip", torch.float32), sources.place),
    )


def model_name(place: str) -> str:
    """What to call the model at a folder or hub name: "Qwen3-8B" of "Qwen/Qwen3-8B", also in the hub's cache."""
    parts = Path(place).parts
    cached = [part.split("--")[-1] for part in parts if part.startswith("models--")]
    return cached[-1] if cached else parts[-1] if parts else place


def _frozen(model: nn.Module, place: torch.device) -> nn.Module:
    return model.to(place).eval().requires_grad_(False)


def _load_weights(kind: Any, sources: EncoderSources, which: str, dtype: torch.dtype) -> nn.Module:
    model, info = _load(kind.from_pretrained, sources, which, dtype=dtype, output_loading_info=True)
    wrong = sorted(str(name) for name in [*info["missing_keys"], *info["mismatched_keys"]])
    if wrong:
        raise UserError(
            f"{sources.prefix}{which} {getattr(sources, which)}: its files lack {wrong[0]} ({len(wrong)} tensors); "
            + _example(which)
        )
    return model


def _load(call: Callable[..., Any], sources: EncoderSources, which: str, **more: Any) -> Any:
    place = getattr(sources, which)
    try:
        with _only_errors():
            return call(place, **more)
    except MemoryError:
        raise
    except Exception as error:  # OSError, ValueError, SafetensorError, the hub's and tokenizers' own kinds
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"{sources.prefix}{which} {place} cannot be loaded ({words}); {_example(which)}") from None


@contextmanager
def _only_errors() -> Iterator[None]:
    """Without transformers' report on tensors that are left out on purpose: language head, vision tower."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _example(which: str) -> str:
    models = {"qwen": "Qwen3 model, such as Qwen/Qwen3-8B", "clip": "CLIP model, such as openai/clip-vit-large-patch14"}
    return f"give the folder or hub name of a {models[which]}"

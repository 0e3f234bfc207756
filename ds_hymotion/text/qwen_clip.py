"""The released text conditioning: Qwen3's last hidden state per token, CLIP's pooled vector."""

from __future__ import annotations

from functools import cached_property

from ds_hymotion.text.caption_tokens import CaptionTokenizer
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.sources import EncoderSources
from ds_hymotion.text.text_models import TextModels, load_configs, load_models, load_tokenizers, model_name

NAME = "qwen_clip"


class QwenClipEncoder:
    """Encodes captions as the released network expects them. Weights are loaded when first needed.

    Args:
        sources: where models and system prompt lie.

    Raises:
        UserError: a source is not there, or not what it should be.
    """

    name = NAME

    def __init__(self, sources: EncoderSources) -> None:
        self.sources = sources
        self.prompt = sources.system_prompt()
        qwen, clip = load_configs(sources)
        self.token_dim = int(qwen.hidden_size)
        self.pooled_dim = int(clip.hidden_size)
        self.tokenizer = CaptionTokenizer(*load_tokenizers(sources), self.prompt)
        self._identity = {
            "qwen": model_name(sources.qwen),
            "clip": model_name(sources.clip),
            "system_prompt_sha256": self.prompt.sha256,
            "encoder_dtype": sources.dtype,
        }

    @cached_property
    def models(self) -> TextModels:
        """The models; loading them adds their fingerprint to the identity."""
        models = load_models(self.sources)
        self._identity["weights"] = models.fingerprint()
        return models

    @property
    def identity(self) -> dict[str, str]:
        """Encoder names, system prompt and dtype, and once the weights are loaded what tells them from others."""
        return dict(self._identity)

    def encode(self, captions: list[str]) -> TextFeatures:
        """Features [N, L, token_dim] in the encoder's dtype and [N, pooled_dim] in fp32, on its device."""
        if not captions:
            raise ValueError("no captions to encode")
        return self.models.features(self.tokenizer(captions).to(self.sources.place))

    def truncated(self, captions: list[str]) -> dict[str, int]:
        """How many of the captions are longer than the models read."""
        return self.tokenizer.truncated(captions)

"""Text encoders inside a training run: what is frozen stays outside the module that an engine trains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ds_hymotion.errors import UserError
from ds_hymotion.text.caption_tokens import CaptionTokens
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.text_models import TextModels, hidden_states, row_features


class TextTower(nn.Module):
    """Qwen3 and CLIP as a run holds them: only the layers that are trained are parameters of this module.

    The rest (embeddings, the lower ``frozen_layers`` of Qwen3, all of CLIP; without ``train_upper`` all of both) is
    kept beside it, so that an engine neither casts, broadcasts nor optimizes it, and runs without gradient. The upper
    layers and the final norm are trained in fp32 or in the precision that the engine casts them to.

    Args:
        models: loaded models, on the run's device; Qwen3 is taken apart if ``train_upper``.
        frozen_layers: how many layers of Qwen3 stay frozen, counted from the embeddings.
        train_upper: train the others.

    Raises:
        UserError: no layer would be left to train.
    """

    def __init__(self, models: TextModels, frozen_layers: int = 12, train_upper: bool = False) -> None:
        super().__init__()
        layers = len(models.qwen.layers)
        if train_upper and frozen_layers >= layers:
            raise UserError(
                f"hymotion.text.frozen_layers = {frozen_layers} leaves no layer of this Qwen3 with {layers} layers to "
                f"train; use 0..{layers - 1}, or train_upper_layers false"
            )
        self.frozen_layers = frozen_layers if train_upper else layers
        self.upper: nn.Module | None = None
        if train_upper:
            lower, upper = _split(models.qwen, frozen_layers)
            self.upper = upper.float().requires_grad_(True)
            models = TextModels(lower, models.clip)
        self._frozen = (models,)  # in a tuple: a module would be registered

    @property
    def frozen(self) -> TextModels:
        """The part without gradients."""
        return self._frozen[0]

    def frozen_parameters(self) -> dict[str, nn.Parameter]:
        """What is never trained, by name."""
        parts = {"qwen": self.frozen.qwen, "clip": self.frozen.clip}
        return {f"{part}.{name}": value for part, model in parts.items() for name, value in model.named_parameters()}

    def forward(self, tokens: CaptionTokens) -> TextFeatures:
        """Features of the tokens' rows.

        A rank without rows runs the same graph, with gradients of zero: ZeRO-2 adds up gradients of all ranks in the
        order in which each rank's backward makes them.
        """
        if self.upper is None:
            return self.frozen.features(tokens)
        with torch.no_grad():
            lower = hidden_states(self.frozen.qwen, tokens)
        weight = next(self.upper.parameters())
        hidden = hidden_states(self.upper, tokens, lower.to(weight.device, weight.dtype))
        return row_features(tokens, hidden, self.frozen.pooled(tokens))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TextTower:
        """Casts leave the buffers' precision alone: rotary frequencies rounded to bf16 would turn every position."""
        exact = {name: buffer.dtype for name, buffer in self.named_buffers()}
        values = {name: buffer.clone() for name, buffer in self.named_buffers()}
        super()._apply(fn, recurse)
        for name, buffer in list(self.named_buffers()):
            if buffer.dtype != exact[name]:
                owner, _, key = name.rpartition(".")
                setattr(self.get_submodule(owner), key, values[name].to(buffer.device))
        return self


def _split(qwen: Any, frozen_layers: int) -> tuple[Any, Any]:
    """The model's lower layers with the embeddings, and its upper layers with the final norm, as two models.

    Both run transformers' own forward: the upper one on the lower one's output in place of embeddings.
    """
    with torch.device("meta"):
        upper = type(qwen)(_config_of(qwen.config, frozen_layers, None))
    upper.embed_tokens = nn.Identity()
    upper.layers, upper.norm = qwen.layers[frozen_layers:], qwen.norm
    upper.rotary_emb = copy.deepcopy(qwen.rotary_emb)
    with torch.device("meta"):
        lower = type(qwen)(_config_of(qwen.config, 0, frozen_layers))
    lower.embed_tokens, lower.layers, lower.norm = qwen.embed_tokens, qwen.layers[:frozen_layers], nn.Identity()
    lower.rotary_emb = qwen.rotary_emb
    return lower.eval().requires_grad_(False), upper.eval()


def _config_of(config: Any, first: int, end: int | None) -> Any:
    part = copy.deepcopy(config)
    part.layer_types = list(config.layer_types)[first:end]
    part.num_hidden_layers = len(part.layer_types)
    return part

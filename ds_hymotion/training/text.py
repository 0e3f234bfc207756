"""The text side of a run: features from the corpus's cache, or encoders that the run keeps and may train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config.text import TextSection
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.cache_group import CacheGroup
from ds_hymotion.text.encoder import TextEncoder
from ds_hymotion.text.live import TextTower
from ds_hymotion.text.null import NullTextEncoder
from ds_hymotion.text.qwen_clip import QwenClipEncoder
from ds_hymotion.text.sources import EncoderSources
from ds_hymotion.text.tower_weights import TOWER_FILE, is_tower, put_tower, qwen_names, read_tower, save_tower
from ds_hymotion.training.checkpoint import (
    EMA,
    MASTER,
    checkpoint_folders,
    newest_checkpoint,
    read_kind,
    read_state,
)
from ds_hymotion.training.weights import Provenance, current_export

TextSource = TextCache | CacheGroup | QwenClipEncoder | NullTextEncoder
TRAINED_FROM = "trained_from_layer"


def text_source(
    settings: TextSection, corpus: Corpus | Mixture, config: ModelConfig, device: str = "auto"
) -> TextSource:
    """What gives a run its text features; weights of encoders are not loaded yet.

    Raises:
        UserError: no features or encoders there, of other widths than the network's text inputs, or of mixed corpora
            that were not encoded alike.
    """
    if settings.encoder == NullTextEncoder.name:
        return NullTextEncoder(config.ctxt_input_dim, config.vtxt_input_dim)
    if settings.mode == "cached":
        corpora = corpus.corpora if isinstance(corpus, Mixture) else [corpus]
        caches = [TextCache(each.text_cache_folder(settings.encoder)) for each in corpora]
        for cache in caches:
            cache.require(config.ctxt_input_dim, config.vtxt_input_dim)
        return CacheGroup(caches) if len(caches) > 1 else caches[0]
    encoder = QwenClipEncoder(
        EncoderSources(
            qwen=settings.qwen,
            clip=settings.clip,
            release_dir=settings.release_dir,
            system_prompt_file=settings.system_prompt_file,
            dtype=settings.encoder_dtype,
            device=device,
            prefix="hymotion.text.",
        )
    )
    require_widths(encoder, config)
    return encoder


def require_widths(encoder: QwenClipEncoder, config: ModelConfig) -> None:
    """Check an encoder's widths before its weights are loaded.

    Raises:
        UserError: the network's text inputs have others.
    """
    if (encoder.token_dim, encoder.pooled_dim) != (config.ctxt_input_dim, config.vtxt_input_dim):
        raise UserError(
            f"{encoder.sources.qwen} is {encoder.token_dim} wide per token and {encoder.sources.clip} "
            f"{encoder.pooled_dim} pooled, the model wants {config.ctxt_input_dim} and {config.vtxt_input_dim}: use "
            "text models of those widths, or set the model's ctxt_input_dim and vtxt_input_dim"
        )


def text_tower(settings: TextSection, source: TextSource, init_from: str | None = None) -> TextTower | None:
    """The encoders with their weights, where the run keeps them.

    Raises:
        UserError: they cannot be loaded, or ``init_from`` was trained with text layers that this run does not train.
    """
    tower = trained_text(Path(init_from)) if init_from else None
    trains_the_same = settings.train_upper_layers and tower is not None and tower.first_layer == settings.frozen_layers
    if tower is not None and not trains_the_same:
        raise UserError(
            f"hymotion.model.init_from = {init_from} was trained with Qwen3's layers from {tower.first_layer} on; set "
            f"hymotion.text to mode live, train_upper_layers true and frozen_layers {tower.first_layer}, or start from "
            f"a copy of its weights without {TOWER_FILE}"
        )
    if not isinstance(source, QwenClipEncoder):
        return None
    if tower is not None:
        put_tower(source.models.qwen, tower.tensors, str(tower.source))
    return TextTower(source.models, settings.frozen_layers, settings.train_upper_layers)


def text_provenance(settings: TextSection, source: TextSource) -> dict[str, Any]:
    """What a run's weights expect of the text encoder, for their metadata."""
    made_with: dict[str, Any] = dict(source.identity)
    if settings.train_upper_layers:
        made_with[TRAINED_FROM] = settings.frozen_layers
    return made_with


def require_same_text(made_with: Mapping[str, Any], own: Mapping[str, Any], place: Path) -> None:
    """Check that text features are what the weights at ``place`` were trained with.

    Raises:
        UserError: another system prompt, or other encoders.
    """
    for key in ("system_prompt_sha256", "weights"):
        known, given = made_with.get(key), own.get(key)
        if known and given and known != given:
            raise UserError(
                f"{place} was trained on text features made with {key} = {known:.16}, not {given:.16}; give the models "
                "and the system prompt of its training"
            )


def export_tower(folder: Path, tensors: dict[str, torch.Tensor], made_with: Mapping[str, Any]) -> Path | None:
    """Move trained text weights out of ``tensors`` into a file of their own; None if there are none."""
    tower = {name: tensors.pop(name) for name in list(tensors) if is_tower(name)}
    if not tower:
        return None
    save_tower(folder / TOWER_FILE, qwen_names(tower, int(made_with[TRAINED_FROM])))
    return folder / TOWER_FILE


def fit_encoder(encoder: TextEncoder, provenance: Provenance, model: Path) -> None:
    """Make the encoder that of the weights at ``model``: check what it is made of, put in text weights trained there.

    Raises:
        UserError: other widths, another system prompt or other models than the weights were trained with, or trained
            text weights that are not there.
    """
    if not isinstance(encoder, QwenClipEncoder):
        return
    require_widths(encoder, provenance.config)
    encoder.models  # noqa: B018  loads the weights, which completes the identity
    require_same_text(provenance.text, encoder.identity, model)
    if TRAINED_FROM in provenance.text:
        tower = trained_text(model)
        if tower is None:
            raise UserError(f"{model} was trained with text layers of its own, and {TOWER_FILE} is not beside it")
        put_tower(encoder.models.qwen, tower.tensors, str(tower.source))


def trained_text(model: Path) -> TrainedText | None:
    """The text weights that lie with a run's export, or in the newest checkpoint of an unfinished run; or None."""
    folder = model if model.is_dir() else model.parent
    path = folder / TOWER_FILE
    ended = not model.is_dir() or not checkpoint_folders(model) or current_export(model) is not None
    if ended and path.is_file():
        return TrainedText(read_tower(path), path)
    if ended:
        return None
    checkpoint = newest_checkpoint(model)
    state = read_state(checkpoint)
    first = state["provenance"].get("text", {}).get(TRAINED_FROM)
    if first is None:
        return None
    kind = EMA if EMA in state["kinds"] else MASTER
    tensors = {name: value for name, value in read_kind(checkpoint, kind) if is_tower(name)}
    return TrainedText(qwen_names(tensors, int(first)), checkpoint)


@dataclass(frozen=True)
class TrainedText:
    """Trained text weights by their names in Qwen3, and where they were read."""

    tensors: dict[str, torch.Tensor]
    source: Path

    @property
    def first_layer(self) -> int:
        """The lowest layer among them."""
        return min(int(name.split(".")[1]) for name in self.tensors if name.startswith("layers."))

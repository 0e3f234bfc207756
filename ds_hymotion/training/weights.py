"""Weights as a person takes them away: one safetensors file that says what network and representation it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import save_tensors, tensors_digest
from ds_hymotion.model.adapters import A, B, LowRank, merge_adapters
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import PRESETS, preset
from ds_hymotion.model.released import load_into, load_released
from ds_hymotion.model.temporal import build
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.text.tower_weights import is_tower
from ds_hymotion.training.checkpoint import EMA, FIXED, MASTER, newest_checkpoint, read_kind, read_state

FORMAT = "ds_hymotion weights 1"
ADAPTER_FORMAT = "ds_hymotion adapters 1"
WEIGHTS = "weights.safetensors"
ADAPTERS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Provenance:
    """What a file of weights is for, stored in its metadata.

    ``lora`` is empty for whole weights. Of adapters it holds ``rank``, ``alpha``, ``modules``, and ``base_sha256`` of
    the weights ``base`` that they were trained on.
    """

    model: dict[str, Any]
    representation: str
    fps: float
    text_encoder: str
    preset: str
    steps: int = 0
    base: str = ""
    text: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return ModelConfig(**self.model)


@dataclass(frozen=True)
class TrainedModel:
    """A network ready to sample, with what its channels mean."""

    generator: MotionGenerator
    representation: Representation
    provenance: Provenance


def save_weights(
    path: Path, state: dict[str, torch.Tensor], provenance: Provenance, more: Mapping[str, str] | None = None
) -> None:
    """Write tensors under the released names with their provenance and ``more`` metadata, atomically."""
    save_tensors(path, state, {"format": FORMAT, "provenance": json.dumps(asdict(provenance)), **(more or {})})


def save_adapters(path: Path, adapters: dict[str, torch.Tensor], provenance: Provenance) -> None:
    """Write adapters under peft's names for a file, with their provenance, atomically."""
    named = {PEFT_PREFIX + _without_adapter_name(name): value for name, value in adapters.items()}
    save_tensors(path, named, {"format": ADAPTER_FORMAT, "provenance": json.dumps(asdict(provenance))})


def load_weights(path: Path, base: str | Path | None = None) -> tuple[dict[str, torch.Tensor], Provenance]:
    """Whole weights from a file that :func:`save_weights` wrote, or adapters merged into their base.

    Args:
        base: where the base of adapters is; None = where it was in their training.

    Raises:
        UserError: not such a file, or a base that is gone or another one.
    """
    try:
        with safe_open(path, framework="pt") as reader:
            metadata = reader.metadata() or {}
            state = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        if metadata.get("format") not in (FORMAT, ADAPTER_FORMAT):
            raise UserError(
                f"{path}: format {metadata.get('format')!r} is not {FORMAT!r}; give a weights.safetensors of a run"
            )
        provenance = Provenance(**json.loads(metadata["provenance"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a file of weights ({error})") from None
    if metadata["format"] == FORMAT:
        return state, provenance
    names = {
        PEFT_PREFIX + _without_adapter_name(module + kind): module + kind
        for module in low_rank(provenance).modules
        for kind in (A, B)
    }
    return merged({names.get(name, name): value for name, value in state.items()}, provenance, path, base), provenance


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """Whole tensors by released name from a run folder, a safetensors export, a ``latest.ckpt`` or its folder.

    Raises:
        UserError: nothing there that can be read.
    """
    path = Path(path)
    if path.is_dir() and not (path / "latest.ckpt").is_file():
        return run_weights(path)[0]
    if path.suffix == ".safetensors":
        return load_weights(path)[0]
    return load_released(path / "latest.ckpt" if path.is_dir() else path).state


def trained_experts(path: str | Path) -> tuple[str, ...]:
    """Names of the experts in what :func:`read_weights` reads, in the order of their numbers; () without any."""
    path = Path(path)
    if path.is_dir() and not (path / "latest.ckpt").is_file():
        return tuple(run_weights(path)[1].config.expert_names)
    return tuple(load_weights(path)[1].config.expert_names) if path.suffix == ".safetensors" else ()


def run_weights(run: Path, base: str | Path | None = None) -> tuple[dict[str, torch.Tensor], Provenance]:
    """The weights of a run folder: its final export, or the average (else the weights) of its newest checkpoint.

    Args:
        base: as for :func:`load_weights`.
    """
    for name in (WEIGHTS, ADAPTERS):
        if (run / name).is_file():
            return load_weights(run / name, base)
    return checkpoint_weights(newest_checkpoint(run), base=base)


def checkpoint_weights(
    folder: Path, average: bool = True, base: str | Path | None = None
) -> tuple[dict[str, torch.Tensor], Provenance]:
    """The network's whole weights in a checkpoint: their average where there is one, or the weights themselves."""
    state = read_state(folder)
    kind = EMA if average and EMA in state["kinds"] else MASTER
    tensors = {name: value for name, value in read_kind(folder, kind) if not is_tower(name)}
    provenance = Provenance(**state["provenance"])
    if provenance.lora:
        return merged(tensors, provenance, folder, base), provenance
    tensors.update(read_kind(folder, FIXED))
    return tensors, provenance


def low_rank(provenance: Provenance) -> LowRank:
    """The adapters that a provenance speaks of."""
    lora = provenance.lora
    return LowRank(lora["rank"], lora["alpha"], tuple(lora["modules"]))


def merged(
    adapters: dict[str, torch.Tensor], provenance: Provenance, source: Path, base: str | Path | None = None
) -> dict[str, torch.Tensor]:
    """Adapters, by their names in a network, merged into their base, which is read again from its place.

    Raises:
        UserError: the base is gone or another one.
    """
    place = base or provenance.base
    try:
        whole = read_weights(place)
    except UserError as error:
        raise UserError(f"{source} holds adapters of {place}, which cannot be read: {error}") from None
    found, wanted = tensors_digest(whole), provenance.lora["base_sha256"]
    if found != wanted:
        raise UserError(
            f"{source} holds adapters of base weights with SHA-256 {wanted[:16]}, {place} has {found[:16]}; put the "
            "weights of their training there"
        )
    return merge_adapters(whole, adapters, low_rank(provenance), str(source))


def _without_adapter_name(name: str) -> str:
    return name.replace(".default.", ".")


def load_model(path: str | Path, text_encoder: str | None = None) -> TrainedModel:
    """A network from a run folder, a ``weights.safetensors`` or a released ``latest.ckpt``.

    Args:
        path: the folder or file; a folder may also be a released one that holds ``latest.ckpt``.
        text_encoder: name of the encoder for a released checkpoint, which does not say; by default hashed for the
            preset tiny and qwen_clip for the others.

    Raises:
        UserError: nothing there that can be read, or it fits no preset.
    """
    path = Path(path)
    if path.is_dir() and (path / "latest.ckpt").is_file() and not (path / WEIGHTS).exists():
        path = path / "latest.ckpt"
    if path.is_dir():
        if (path / "corpus.json").is_file():
            raise UserError(f"{path} is a prepared corpus; give the --output_dir of a run, or a file of weights")
        tensors, provenance = run_weights(path)
    elif path.suffix == ".safetensors":
        tensors, provenance = load_weights(path)
    elif path.is_file():
        return _load_released_model(path, text_encoder)
    else:
        raise UserError(f"{path}: no such run folder, weights.safetensors or latest.ckpt")
    generator = build(provenance.config)
    load_into(generator, tensors, source=str(path))
    return TrainedModel(generator.eval(), representation(provenance.representation), provenance)


def _load_released_model(path: Path, text_encoder: str | None) -> TrainedModel:
    released = load_released(path)
    width = released.state["motion_transformer.input_encoder.weight"].shape[0]
    for name in PRESETS:
        config = preset(name, input_dim=201)
        if config.feat_dim == width:
            break
    else:
        raise UserError(f"{path}: width {width} is of no preset; known presets: {', '.join(PRESETS)}")
    generator = MotionGenerator(config)
    load_into(generator, released.state, source=str(path))
    encoder = text_encoder or ("hashed" if name == "tiny" else "qwen_clip")
    provenance = Provenance(asdict(config), "hymotion-201", 30.0, encoder, name, released.global_step, str(path))
    return TrainedModel(generator.eval(), representation("hymotion-201"), provenance)

"""Weights as a person takes them away: one safetensors file that says what network and representation it is for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import save_tensors
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import PRESETS, preset
from ds_hymotion.model.released import load_into, load_released
from ds_hymotion.model.temporal import build
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.text.tower_weights import is_tower
from ds_hymotion.training.checkpoint import EMA, FIXED, MASTER, newest_checkpoint, read_kind, read_state

FORMAT = "ds_hymotion weights 1"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Provenance:
    """What a file of weights is for, stored in its metadata."""

    model: dict[str, Any]
    representation: str
    fps: float
    text_encoder: str
    preset: str
    steps: int = 0
    base: str = ""
    text: dict[str, Any] = field(default_factory=dict)

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


def save_weights(path: Path, state: dict[str, torch.Tensor], provenance: Provenance) -> None:
    """Write tensors under the released names with their provenance, atomically."""
    save_tensors(path, state, {"format": FORMAT, "provenance": json.dumps(asdict(provenance))})


def load_weights(path: Path) -> tuple[dict[str, torch.Tensor], Provenance]:
    """Read a file that :func:`save_weights` wrote.

    Raises:
        UserError: not such a file.
    """
    try:
        with safe_open(path, framework="pt") as reader:
            metadata = reader.metadata() or {}
            state = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        if metadata.get("format") != FORMAT:
            raise UserError(
                f"{path}: format {metadata.get('format')!r} is not {FORMAT!r}; give a weights.safetensors of a run"
            )
        return state, Provenance(**json.loads(metadata["provenance"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a file of weights ({error})") from None


def run_weights(run: Path) -> tuple[dict[str, torch.Tensor], Provenance]:
    """The weights of a run folder: its final export, or the average (else the weights) of its newest checkpoint."""
    if (run / WEIGHTS).is_file():
        return load_weights(run / WEIGHTS)
    folder = newest_checkpoint(run)
    state = read_state(folder)
    kind = EMA if EMA in state["kinds"] else MASTER
    tensors = {name: value for name, value in read_kind(folder, kind) if not is_tower(name)}
    tensors.update(read_kind(folder, FIXED))
    return tensors, Provenance(**state["provenance"])


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

"""Weights as a person takes them away: one safetensors file that says what network and representation it is for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import save_tensors, tensors_digest
from ds_hymotion.model.adapters import A, B, LowRank, merge_adapters
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.release_config import released_sizes
from ds_hymotion.model.released import RELEASED, load_into, load_released
from ds_hymotion.model.temporal import build
from ds_hymotion.motion.representation import REPRESENTATIONS, Representation, representation
from ds_hymotion.text.tower_weights import is_tower
from ds_hymotion.training.checkpoint import EMA, FIXED, MASTER, newest_checkpoint, read_kind, read_state
from ds_hymotion.training.checkpoint_folder import checkpoint_folders, step_of

FORMAT = "ds_hymotion weights 1"
ADAPTER_FORMAT = "ds_hymotion adapters 1"
TRAINING = "training"  # key of the metadata that holds the configuration
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
    metadata, provenance = _read_metadata(path)
    try:
        with safe_open(path, framework="pt") as reader:
            state = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give another file, or make it again") from None
    if metadata["format"] == FORMAT:
        return state, provenance
    names = {
        PEFT_PREFIX + _without_adapter_name(module + kind): module + kind
        for module in low_rank(provenance).modules
        for kind in (A, B)
    }
    return merged({names.get(name, name): value for name, value in state.items()}, provenance, path, base), provenance


def file_provenance(path: Path) -> tuple[Provenance, dict[str, Any]]:
    """What a file of weights says it is for, and the configuration of its training, {} where it does not tell.

    Raises:
        UserError: not such a file.
    """
    metadata, provenance = _read_metadata(path)
    try:
        training = json.loads(metadata.get(TRAINING, "{}"))
    except ValueError as error:
        raise UserError(f"{path}: the configuration in it is damaged ({error})") from None
    return provenance, training


def _read_metadata(path: Path) -> tuple[dict[str, str], Provenance]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the {WEIGHTS} or {ADAPTERS} of a run")
    try:
        with safe_open(path, framework="pt") as reader:
            metadata = reader.metadata() or {}
        if metadata.get("format") not in (FORMAT, ADAPTER_FORMAT):
            raise UserError(
                f"{path}: not a file that a run or launch/export.py wrote (format {metadata.get('format')!r}, not "
                f"{FORMAT!r}); give the {WEIGHTS} of a run, or a latest.ckpt"
            )
        provenance = Provenance(**json.loads(metadata["provenance"]))
        _ = provenance.config, provenance.lora and low_rank(provenance)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a file of weights ({error})") from None
    return metadata, provenance


class Weights(NamedTuple):
    """Whole tensors by released name, and what they are for, where their source tells it."""

    tensors: dict[str, torch.Tensor]
    provenance: Provenance | None

    @property
    def experts(self) -> tuple[str, ...]:
        """Names of the experts in them, in the order of their numbers; () without any, or where it is not told."""
        return tuple(self.provenance.config.expert_names) if self.provenance else ()

    @property
    def origin(self) -> str:
        """What to say of weights that were made of two files; "" of others."""
        if not self.provenance or not self.provenance.lora:
            return ""
        return f" (adapters of rank {self.provenance.lora['rank']} merged into {self.provenance.base})"


def read_weights(path: str | Path) -> Weights:
    """From a run folder, a safetensors export, a ``latest.ckpt`` or its folder.

    Raises:
        UserError: nothing there that can be read.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; give a run, its {WEIGHTS}, or a latest.ckpt")
    if path.is_dir() and not is_release(path):
        return Weights(*run_weights(path))
    if path.suffix == ".safetensors":
        return Weights(*load_weights(path))
    return Weights(load_released(path / RELEASED if path.is_dir() else path).state, None)


def is_release(folder: Path) -> bool:
    """Whether a folder is a release's, not a run's that has also written a ``latest.ckpt``."""
    return (folder / RELEASED).is_file() and not (folder / WEIGHTS).exists() and not checkpoint_folders(folder)


def current_export(run: Path) -> Path | None:
    """The file that a run ended in; None where there is none, or where the run has gone on since."""
    for path in (run / WEIGHTS, run / ADAPTERS):
        if path.is_file():
            saved = checkpoint_folders(run)
            if not saved or file_provenance(path)[0].steps >= step_of(saved[-1]):
                return path
            logging.warning("%s is of an earlier end of the run: %s is newer and is taken", path, saved[-1])
    return None


def run_weights(run: Path, base: str | Path | None = None) -> tuple[dict[str, torch.Tensor], Provenance]:
    """The weights of a run folder: its final export, or the average (else the weights) of its newest checkpoint,
    where it has none or has gone on since.

    Args:
        base: as for :func:`load_weights`.
    """
    if (export := current_export(run)) is not None:
        return load_weights(export, base)
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
        whole = read_weights(place).tensors
    except UserError as error:
        raise UserError(
            f"{source} holds adapters of {place}, which cannot be read: {error}; put them there again, or give "
            "their place to launch/sample.py or launch/export.py by --base"
        ) from None
    found, wanted = tensors_digest(whole), provenance.lora["base_sha256"]
    if found != wanted:
        raise UserError(
            f"{source} holds adapters of base weights with SHA-256 {wanted[:16]}, {place} has {found[:16]}; put the "
            "weights of their training there"
        )
    return merge_adapters(whole, adapters, low_rank(provenance), str(source))


def _without_adapter_name(name: str) -> str:
    return name.replace(".default.", ".")


def load_model(path: str | Path, text_encoder: str | None = None, base: str | Path | None = None) -> TrainedModel:
    """A network from a run folder, a ``weights.safetensors`` or a released ``latest.ckpt``.

    Args:
        path: the folder or file; a folder may also be a released one that holds ``latest.ckpt``.
        text_encoder: name of the encoder for a released checkpoint, which does not say; by default qwen_clip where its
            text tokens are as wide as that one's, or hashed.
        base: as for :func:`load_weights`.

    Raises:
        UserError: nothing there that can be read, or a network of other motions.
    """
    path = Path(path)
    if path.is_dir() and is_release(path):
        path = path / RELEASED
    if path.is_dir():
        if (path / "corpus.json").is_file():
            raise UserError(f"{path} is a prepared corpus; give the --output_dir of a run, or a file of weights")
        tensors, provenance = run_weights(path, base)
    elif path.suffix == ".safetensors":
        tensors, provenance = load_weights(path, base)
    elif path.is_file():
        return _load_released_model(path, text_encoder)
    else:
        raise UserError(f"{path}: no such run folder, weights.safetensors or latest.ckpt")
    generator = build(provenance.config)
    load_into(generator, tensors, source=str(path))
    return TrainedModel(generator.eval(), representation(provenance.representation), provenance)


def _load_released_model(path: Path, text_encoder: str | None) -> TrainedModel:
    released = load_released(path)
    sizes = released_sizes(released)
    config = sizes.network
    spaces = {representation(name).channels: name for name in REPRESENTATIONS}
    if config.input_dim not in spaces:
        raise UserError(f"{path}: {config.input_dim} motion channels; known are {', '.join(map(str, spaces))}")
    generator = MotionGenerator(config)
    load_into(generator, released.state, source=str(path))
    usual = PRESETS["hy-motion-1.0"].ctxt_input_dim
    encoder = text_encoder or ("qwen_clip" if config.ctxt_input_dim == usual else "hashed")
    alike = (name for name, known in PRESETS.items() if known == replace(config, input_dim=known.input_dim))
    space = spaces[config.input_dim]
    provenance = Provenance(asdict(config), space, sizes.fps, encoder, next(alike, ""), released.global_step, str(path))
    return TrainedModel(generator.eval(), representation(space), provenance)

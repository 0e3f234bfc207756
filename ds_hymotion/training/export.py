"""Weights as people and the release's tools take them away: at the end of a run, and from any of its checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.data.expert_ids import expert_number
from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.formats.tensors import write_json
from ds_hymotion.model.experts import merged, merged_config
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.release_config import write_release_config, write_statistics
from ds_hymotion.model.released import RELEASED, write_released
from ds_hymotion.text.tower_weights import TOWER_FILE, is_tower
from ds_hymotion.training.adapters import export_adapters
from ds_hymotion.training.checkpoint import (
    EMA,
    MASTER,
    checkpoint_folders,
    damage,
    newest_checkpoint,
    read_kind,
    read_state,
)
from ds_hymotion.training.checkpoint_folder import require_outside
from ds_hymotion.training.legal_files import copy_legal_files
from ds_hymotion.training.text import TRAINED_FROM, export_tower
from ds_hymotion.training.weights import (
    TRAINING,
    WEIGHTS,
    Provenance,
    checkpoint_weights,
    current_export,
    file_provenance,
    load_weights,
    save_weights,
)

FORMATS = (RELEASED, "safetensors")


def export_weights(
    folder: Path, tensors: dict[str, torch.Tensor], provenance: Provenance, epoch: int, say: Callable[[str], None]
) -> None:
    """At a run's end, write whole ``tensors`` by released name: one safetensors file, trained text layers in one of
    their own, and a ``latest.ckpt`` where the network is a release's; of a run of adapters, those alone. Licence and
    notice files of the base weights are copied beside.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        copy_legal_files(provenance.base, folder)
        if provenance.lora:
            say(f"adapters: {export_adapters(folder, tensors, provenance)}")
            return
        if text := export_tower(folder, tensors, provenance.text):
            say(f"text layers: {text}")
        save_weights(folder / WEIGHTS, tensors, provenance)
        say(f"weights: {folder / WEIGHTS}")
        if provenance.preset.startswith("hy-motion") and provenance.config == PRESETS[provenance.preset]:
            write_released(folder / RELEASED, tensors, epoch, provenance.steps)
            say(f"released format: {folder / RELEASED}")
    except (OSError, UserError) as error:
        raise UserError(f"{folder}: weights not exported ({error}); make room and run again with --resume") from None


@dataclass(frozen=True)
class Source:
    """What weights are taken from: a checkpoint of a run, or a file of a finished one.

    Attributes:
        place: the checkpoint's folder, or the file.
        provenance: what the weights are for.
        training: the configuration of their training; {} where a file does not tell it.
        kind: kind of a checkpoint's tensors that is taken; "" = a file, which has one kind only.
        epoch: where the training stood.
    """

    place: Path
    provenance: Provenance
    training: dict[str, Any]
    kind: str = ""
    epoch: int = 0

    @property
    def weights(self) -> str:
        """What the tensors are, in a word."""
        return {EMA: "average", MASTER: "weights"}.get(self.kind, "weights of the file")

    def whole(self, base: str | None) -> dict[str, torch.Tensor]:
        """The network's whole tensors, adapters merged into their ``base``."""
        if not self.kind:
            return load_weights(self.place, base)[0]
        return checkpoint_weights(self.place, self.kind == EMA, base)[0]


@dataclass(frozen=True)
class Export:
    """What ``launch/export.py`` is asked for.

    Attributes:
        run: folder of a run on any layout, or its file of weights.
        out: folder to write to, made if missing; never the run's own.
        format: ``latest.ckpt`` or ``safetensors``.
        average: take the average of the weights where the run keeps one, else the weights themselves.
        checkpoint: name of a checkpoint; empty = the newest intact one.
        merge_lora: of a run of adapters, write the whole weights with the adapters in them.
        base: where the base of adapters is now; empty = where it was in their training.
        action: of a network with experts, the action type whose expert becomes a plain network with the trunk.
    """

    run: Path
    out: Path
    format: str = RELEASED
    average: bool = True
    checkpoint: str = ""
    merge_lora: bool = False
    base: str = ""
    action: str = ""

    def write(self, say: Callable[[str], None]) -> None:
        """Write weights, ``config.yml``, statistics, provenance, and copies of the base weights' legal files.

        Raises:
            UserError: there is no such checkpoint, it cannot be had in this format, or it cannot be written.
        """
        if self.format not in FORMATS:
            raise UserError(f"--format {self.format!r} is not one of {', '.join(FORMATS)}")
        require_outside(self.out, self.run if self.run.is_dir() else self.run.parent)
        source = self._source()
        self._check(source)
        other = self.out / (WEIGHTS if self.format == RELEASED else RELEASED)
        if other.exists():
            raise UserError(f"--out {self.out} holds {other.name} of another export; give another folder, or remove it")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if source.provenance.lora and not self.merge_lora:
                tensors = dict(read_kind(source.place, source.kind))
                say(f"adapters: {export_adapters(self.out, tensors, source.provenance)}")
            else:
                self._write_whole(source, say)
            origin = {"source": source.place.name, "weights": source.weights, "merged": self.merge_lora}
            more = {**asdict(source.provenance), "training": source.training}
            write_json(self.out / "provenance.json", {**origin, "expert": self.action or None, **more})
        except OSError as error:
            raise UserError(f"--out {self.out}: cannot be written ({error.strerror or error}); make room") from None
        base = source.provenance.base
        if copied := copy_legal_files(self.base or base, self.out):
            say(f"copied from the base weights: {', '.join(copied)}")
        elif base:
            say(f"no licence or notice beside {base}; add the base weights' own before passing these on")

    def _source(self) -> Source:
        if self.run.suffix == ".safetensors":
            if self.checkpoint or not self.average:
                raise UserError(f"{self.run} is a file: --checkpoint and --no_ema want the folder of a run")
            return Source(self.run, *file_provenance(self.run))
        newest = not self.checkpoint and self.average
        if newest and not checkpoint_folders(self.run) and (file := current_export(self.run)) is not None:
            return Source(file, *file_provenance(file))  # a run whose checkpoints were not kept
        folder = self._checkpoint()
        state = read_state(folder)
        kind = EMA if self.average and EMA in state["kinds"] else MASTER
        return Source(folder, Provenance(**state["provenance"]), state["config"], kind, int(state["position"]["epoch"]))

    def _checkpoint(self) -> Path:
        if not self.checkpoint:
            return newest_checkpoint(self.run)
        known = {path.name: path for path in checkpoint_folders(self.run)}
        if self.checkpoint not in known:
            raise UserError(
                f"--checkpoint {self.checkpoint}: not in {self.run / 'checkpoints'}; give one of "
                f"{', '.join(known) or 'a run that has saved one'}"
            )
        if problem := damage(known[self.checkpoint]):
            raise UserError(f"--checkpoint {self.checkpoint}: {problem}; give another, or none for the newest intact")
        return known[self.checkpoint]

    def _check(self, source: Source) -> None:
        provenance, config = source.provenance, source.provenance.config
        if self.merge_lora and not provenance.lora:
            raise UserError(f"--merge_lora: {self.run} trained whole weights, no adapters; leave it out")
        if self.action:
            if not config.expert_names:
                raise UserError(f"--action {self.action}: {self.run} has no experts; leave it out")
            expert_number(self.action, config.expert_names)
        if provenance.lora and not self.merge_lora and (self.format == RELEASED or not source.kind):
            raise UserError(
                f"--format {self.format}: {self.run} trained adapters; add --merge_lora, or take --format safetensors "
                "of the run's folder for the adapters alone"
            )
        if self.format == RELEASED and config.chunk_frames:
            raise UserError(
                f"--format {RELEASED}: {self.run} has a network by time, which the release does not know; use "
                "--format safetensors"
            )
        if self.format == RELEASED and config.expert_names and not self.action:
            raise UserError(
                f"--format {RELEASED}: {self.run} has experts, which the release does not know; take one by --action, "
                f"of {', '.join(config.expert_names)}, or all by --format safetensors"
            )

    def _write_whole(self, source: Source, say: Callable[[str], None]) -> None:
        tensors, provenance = source.whole(self.base or None), source.provenance
        if self.merge_lora:
            provenance = replace(provenance, lora={})
        if self.action:
            tensors = merged(tensors, expert_number(self.action, provenance.config.expert_names))
            provenance = replace(provenance, model=asdict(merged_config(provenance.config)))
        if TRAINED_FROM in provenance.text:
            say(f"text layers: {self._write_text_layers(source)}")
        if self.format == RELEASED:
            path = self.out / RELEASED
            write_released(path, tensors, source.epoch, provenance.steps)
            if provenance.representation != "hymotion-201":
                say(f"note: these are {provenance.representation} motions, the release's tools read hymotion-201")
        else:
            path = self.out / WEIGHTS
            save_weights(path, tensors, provenance, {TRAINING: json.dumps(source.training)})
        if not provenance.config.chunk_frames:
            write_release_config(self.out, provenance.config, provenance.fps)
            write_statistics(self.out, tensors["mean"], tensors["std"])
        say(f"{path}: {len(tensors)} tensors, {source.weights} of step {provenance.steps}")

    def _write_text_layers(self, source: Source) -> Path | None:
        if source.kind:
            tower = {name: value for name, value in read_kind(source.place, source.kind) if is_tower(name)}
            return export_tower(self.out, tower, source.provenance.text)
        beside = source.place.parent / TOWER_FILE
        if not beside.is_file():
            raise UserError(
                f"{source.place} was trained with text layers of its own, and {TOWER_FILE} is not beside it"
            )
        replace_file(self.out / TOWER_FILE, partial(shutil.copyfile, beside))
        return self.out / TOWER_FILE

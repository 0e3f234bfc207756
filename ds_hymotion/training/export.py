"""Weights as people and the release's tools take them away: at the end of a run, and from any of its checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.formats.tensors import write_json
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.release_config import write_release_config, write_statistics
from ds_hymotion.model.released import write_released
from ds_hymotion.text.tower_weights import is_tower
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
from ds_hymotion.training.text import TRAINED_FROM, export_tower
from ds_hymotion.training.weights import WEIGHTS, Provenance, checkpoint_weights, save_weights

RELEASED = "latest.ckpt"
FORMATS = (RELEASED, "safetensors")
LEGAL = ("license", "licence", "notice")


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
class Export:
    """What ``launch/export.py`` is asked for.

    Attributes:
        run: folder of a run on any layout.
        out: folder to write to, made if missing; never the run's own.
        format: ``latest.ckpt`` or ``safetensors``.
        average: take the average of the weights where the run keeps one, else the weights themselves.
        checkpoint: name of a checkpoint; empty = the newest intact one.
        merge_lora: of a run of adapters, write the whole weights with the adapters in them.
        base: where the base of adapters is now; empty = where it was in their training.
    """

    run: Path
    out: Path
    format: str = RELEASED
    average: bool = True
    checkpoint: str = ""
    merge_lora: bool = False
    base: str = ""

    def write(self, say: Callable[[str], None]) -> None:
        """Write weights, ``config.yml``, statistics, provenance, and copies of the base weights' legal files.

        Raises:
            UserError: there is no such checkpoint, it cannot be had in this format, or it cannot be written.
        """
        self._check()
        folder = self._checkpoint()
        state = read_state(folder)
        provenance = Provenance(**state["provenance"])
        self._check_format(provenance)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if provenance.lora and not self.merge_lora:
                say(f"adapters: {export_adapters(self.out, dict(read_kind(folder, self._kind(state))), provenance)}")
            else:
                self._write_whole(folder, state, say)
            self._write_provenance(folder, state)
        except OSError as error:
            raise UserError(f"--out {self.out}: cannot be written ({error.strerror or error}); make room") from None
        copied = copy_legal_files(self.base or provenance.base, self.out)
        if copied:
            say(f"copied from the base weights: {', '.join(copied)}")
        elif provenance.base:
            say(f"no licence or notice beside {provenance.base}; add the base weights' own before passing these on")

    def _check(self) -> None:
        if self.format not in FORMATS:
            raise UserError(f"--format {self.format!r} is not one of {', '.join(FORMATS)}")
        if self.out.resolve() == self.run.resolve():
            raise UserError(f"--out {self.out} is the run itself; give another folder, such as {self.out}-export")

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

    def _check_format(self, provenance: Provenance) -> None:
        if self.merge_lora and not provenance.lora:
            raise UserError(f"--merge_lora: {self.run} trained whole weights, no adapters; leave it out")
        if self.format == RELEASED and provenance.lora and not self.merge_lora:
            raise UserError(
                f"--format {RELEASED}: {self.run} trained adapters; add --merge_lora, or take --format safetensors for "
                "the adapters alone"
            )
        if self.format == RELEASED and provenance.config.chunk_frames:
            raise UserError(
                f"--format {RELEASED}: {self.run} has a network by time, which the release does not know; use "
                "--format safetensors"
            )

    def _kind(self, state: dict[str, Any]) -> str:
        return EMA if self.average and EMA in state["kinds"] else MASTER

    def _write_whole(self, folder: Path, state: dict[str, Any], say: Callable[[str], None]) -> None:
        tensors, provenance = checkpoint_weights(folder, self.average, self.base or None)
        if TRAINED_FROM in provenance.text:
            tower = {name: value for name, value in read_kind(folder, self._kind(state)) if is_tower(name)}
            say(f"text layers: {export_tower(self.out, tower, provenance.text)}")
        if self.format == RELEASED:
            path = self.out / RELEASED
            write_released(path, tensors, int(state["position"]["epoch"]), provenance.steps)
            if provenance.representation != "hymotion-201":
                say(f"note: these are {provenance.representation} motions, the release's tools read hymotion-201")
        else:
            path = self.out / WEIGHTS
            save_weights(path, tensors, provenance, {"training": json.dumps(state["config"])})
        if not provenance.config.chunk_frames:
            write_release_config(self.out, provenance.config, provenance.fps)
            write_statistics(self.out, tensors["mean"], tensors["std"])
        kind = "average" if self._kind(state) == EMA else "weights"
        say(f"{path}: {len(tensors)} tensors, {kind} of step {provenance.steps}")

    def _write_provenance(self, folder: Path, state: dict[str, Any]) -> None:
        weights = "average" if self._kind(state) == EMA else "weights"
        origin = {"checkpoint": folder.name, "weights": weights, "merged": self.merge_lora}
        write_json(self.out / "provenance.json", {**origin, **state["provenance"], "training": state["config"]})


def copy_legal_files(base: str, out: Path) -> list[str]:
    """Copy licence and notice files that lie beside the base weights; returns their names.

    Raises:
        UserError: one cannot be read or written.
    """
    if not base:
        return []
    place = Path(base) if Path(base).is_dir() else Path(base).parent
    if not place.is_dir():
        return []
    found = sorted(path for path in place.iterdir() if path.name.lower().startswith(LEGAL) and path.is_file())
    for path in found:
        replace_file(out / path.name, partial(shutil.copyfile, path))
    return [path.name for path in found]

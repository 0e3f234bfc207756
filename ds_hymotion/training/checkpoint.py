"""Checkpoints that no layout shows in: whole fp32 tensors by released parameter name.

Kinds of state are weights, moments, average, what is not trained, and between two syncs of
:mod:`ds_hymotion.parallel.gradient_sync` each data rank's own gradient sums. The files are
:mod:`ds_hymotion.training.checkpoint_folder`'s.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.model.experts import expert_of
from ds_hymotion.parallel.gradient_sync import GradientSync
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.states import MASTER, ParameterStates
from ds_hymotion.training.accumulators import deferred_state, each_ranks_sums, optimizer_steps, restore_sums
from ds_hymotion.training.checkpoint_folder import (
    VERSION,
    FolderWriter,
    checkpoint_folders,
    damage,
    newest_checkpoint,
    read_kind,
    read_state,
    step_of,
)
from ds_hymotion.training.ema import WeightAverage

__all__ = ["EMA", "FIXED", "MASTER", "Checkpoint", "checkpoint_folders", "damage", "newest_checkpoint", "read_kind"]
__all__ += ["NoRoom", "read_state"]

EMA = "ema"
FIXED = "fixed"


class NoRoom(UserError):
    """The disk has no room for a checkpoint; nothing was written, and earlier checkpoints are untouched."""


class Checkpoint:
    """Saves and restores a run's training state.

    Args:
        run: the run's folder; checkpoints lie in ``run/checkpoints``.
        states: the engine's states by parameter name.
        sync: holds gradients between two syncs, which are part of the state.
        average: the weight average, if the run keeps one.
        fixed: tensors of the released format that are not trained (statistics, special features).
        mesh: this rank's place.
        keep_last: older checkpoints are removed, and those of later steps, which the run has left behind.
        keep_every: but older ones of steps that are multiples of this stay; 0 = none.
    """

    def __init__(
        self,
        run: Path,
        states: ParameterStates,
        sync: GradientSync,
        average: WeightAverage | None,
        fixed: dict[str, Tensor],
        mesh: Mesh,
        keep_last: int,
        keep_every: int = 0,
    ) -> None:
        self.run = run
        self.states = states
        self.sync = sync
        self.average = average
        self.fixed = fixed
        self.mesh = mesh
        self.keep_last = keep_last
        self.keep_every = keep_every

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write the checkpoint of ``step`` (collective).

        Raises:
            NoRoom: it does not fit the disk, on every rank alike; nothing was gathered or written.
            UserError: the first rank could not write, on every rank alike.
        """
        folder = self.run / "checkpoints" / f"step-{step:08d}"
        writer = FolderWriter(folder, self.mesh.is_first)
        expected = self._bytes()
        writer.attempt(lambda: writer.begin(expected))
        if short := self.mesh.agree(writer.no_room):
            raise NoRoom(f"{folder}: not saved: {short}; earlier checkpoints are untouched")
        sources: dict[str, Any] = {kind: self.states.pieces(kind) for kind in self.states.kinds()}
        if self.average:
            sources[EMA] = self.average.pieces()
        for kind, pieces in sources.items():
            for name in self.states.names:
                whole = self.states.gather(name, pieces)
                if self.mesh.is_first:
                    writer.attempt(partial(writer.add, kind, name, whole))
            writer.attempt(writer.flush)
        for kind, name, whole in each_ranks_sums(self.sync, self.states, self.mesh):
            writer.attempt(partial(writer.add, kind, name, whole))
        writer.attempt(writer.flush)
        for name, value in self.fixed.items():
            writer.attempt(partial(writer.add, FIXED, name, value))
        writer.attempt(writer.flush)
        full = {
            "version": VERSION,
            "step": step,
            "optimizer_step": self.states.steps[0],
            "expert_steps": self.states.expert_steps(),
            "deferred": deferred_state(self.sync, self.states, self.mesh),
            "kinds": list(sources),
            "ema_updates": self._updates(),
            "shapes": self._shapes(),
            **state,
        }
        writer.attempt(lambda: writer.finish(full))
        problem = self.mesh.agree(writer.problem)
        if problem:
            raise UserError(f"{folder}: not saved: {problem}; earlier checkpoints are untouched")
        if self.mesh.is_first:
            folders = checkpoint_folders(self.run)
            past = [path for path in folders if path.name <= folder.name]
            every = self.keep_every
            kept = past[-self.keep_last :] + [path for path in past if every and step_of(path) % every == 0]
            for path in folders:
                if path not in kept:
                    shutil.rmtree(path, ignore_errors=True)
        return folder

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore weights, moments and average from a checkpoint and return its state; every rank reads its own part.

        Raises:
            UserError: the checkpoint is damaged or belongs to another network.
        """
        state = read_state(folder)
        own = self._shapes()
        if state["shapes"] != own:
            raise UserError(_other_network(folder, state["shapes"], own))
        shared = optimizer_steps(folder, state, self.sync)
        self.states.prepare(self.states.group_steps(shared, state.get("expert_steps", {})))
        fragments = {fragment.name: fragment for fragment in self.states.fragments()}
        for kind in state["kinds"]:
            if kind == EMA and not self.average:
                continue
            if kind not in (EMA, *self.states.kinds()):
                raise UserError(
                    f"{folder}: holds {kind}, which this optimizer does not keep; use the one it was made with"
                )
            for name, whole in read_kind(folder, kind, self.states.parameters):
                if kind == MASTER:
                    self.states.put_weight(name, whole)
                    if self.average and EMA not in state["kinds"] and name in fragments:
                        self.average.put(fragments[name], whole)  # none was kept: it starts here
                if name not in fragments:
                    continue
                if kind == EMA and self.average:
                    self.average.put(fragments[name], whole)
                else:
                    self.states.put(fragments[name], kind, whole)
        self.states.settle()
        if self.average:
            self.average.restore(state["ema_updates"])
        restore_sums(folder, state, self.sync, self.states, self.mesh)
        return state

    def _updates(self) -> dict[str, int]:
        """How often the average of every parameter was updated (collective)."""
        found = self.mesh.gather_objects(dict(self.average.updates) if self.average else {})
        return {name: count for own in found for name, count in own.items()}

    def _bytes(self) -> int:
        kinds = len(self.states.kinds()) + bool(self.average)
        whole = {name: math.prod(shape) for name, shape in self._shapes().items()}
        deferred = sum(whole[name] for name in self.sync.names) if self.sync.held else 0
        fixed = sum(value.numel() for value in self.fixed.values())
        return 4 * (kinds * sum(whole.values()) + self.mesh.data_size * deferred + fixed)

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(self.states.whole_shape(name)) for name in self.states.names}


def _other_network(folder: Path, theirs: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """In what a checkpoint's tensors are not this run's, and what to do."""
    there, here = (len({expert_of(name) for name in names} - {None}) for names in (theirs, own))
    if there != here:
        fix = (
            f"start with --init_from {folder.parent.parent}, which makes every expert a copy"
            if not there
            else f"resume with {there} experts, or take one out with launch/export.py --action"
        )
        return f"{folder}: has {there} experts, hymotion.experts.number = {here}; {fix}"
    different = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
    name = different[0]
    return (
        f"{folder}: {name} is {theirs.get(name)} in the checkpoint and {own.get(name)} in this run ({len(different)} "
        "tensors differ); resume with the preset, the corpus's representation, the hymotion.gradient_sync.frozen and "
        "the hymotion.lora it was made with"
    )


@torch.no_grad()
def restore_fixed(folder: Path, fixed: dict[str, Tensor]) -> None:
    """Copy statistics and special features from a checkpoint: its weights know no others, whatever the corpus has now.

    Tensors of another shape stay as they are; :meth:`Checkpoint.load` refuses such a checkpoint by its weights.
    """
    for name, whole in read_kind(folder, FIXED):
        if name in fixed and fixed[name].shape == whole.shape:
            fixed[name].copy_(whole)

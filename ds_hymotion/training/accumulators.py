"""Gradient sums between two syncs, as part of a checkpoint.

Every data rank has sums of its own. Their mean is all that the next sync needs, but the order of additions, and so the
last bits of the weights, would change with it: each rank's sums are kept, in files by data rank, and a run resumed on
as many ranks is bit-identical whatever step it stopped at. On another number of ranks each starts from the mean.
A save where ``save_steps`` is a multiple of ``others_every`` finds no sums, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.parallel.gradient_sync import GradientSync
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.states import ParameterStates
from ds_hymotion.training.checkpoint_folder import read_kind


def kind_of(rank: int) -> str:
    """The kind of state that data rank ``rank``'s sums are."""
    return f"sums_rank{rank:05d}"


def deferred_state(sync: GradientSync, states: ParameterStates, mesh: Mesh) -> dict[str, Any] | None:
    """What a checkpoint's ``state.json`` says of the deferred parameters; None without any."""
    if not sync.names:
        return None
    return {
        "names": sync.names,
        "optimizer_step": states.steps[-1],
        "held": sync.held,
        "ranks": mesh.data_size,
    }


def each_ranks_sums(sync: GradientSync, states: ParameterStates, mesh: Mesh) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Kind, name and tensor of every data rank's sums, on the first rank; undefined tensors elsewhere (collective)."""
    if not sync.held:
        return
    for rank in range(mesh.data_size):
        own = sync.accumulated()
        for name in sync.names:
            part = own[name].clone() if name in own else None
            if part is not None and rank != mesh.data_rank:
                part.zero_()
            yield kind_of(rank), name, states.join(name, None if part is None else mesh.reduce_to_first(part))


def optimizer_steps(folder: Path, state: dict[str, Any], sync: GradientSync) -> list[int]:
    """The step count of each of this run's parameter groups.

    Raises:
        UserError: the checkpoint deferred other parameters, so moments of different age would meet in one group.
    """
    saved = state.get("deferred")
    first = int(state["optimizer_step"])
    if saved and set(saved["names"]) != set(sync.names):
        raise UserError(
            f"{folder}: its gradient sync deferred {len(saved['names'])} tensors, this run defers "
            f"{len(sync.names)}; resume with its hymotion.gradient_sync (others_every > 1 and the same always), "
            "or start a new run with --init_from"
        )
    if not sync.deferred:
        return [first]
    return [first, int(saved["optimizer_step"]) if saved else first]


def restore_sums(folder: Path, state: dict[str, Any], sync: GradientSync, states: ParameterStates, mesh: Mesh) -> None:
    """Continue with the checkpoint's sums: this rank's own, or the mean of all on another number of ranks."""
    saved = state.get("deferred")
    if not saved or not saved["held"]:
        return
    ranks = int(saved["ranks"])
    if ranks == mesh.data_size:
        sums = dict(read_kind(folder, kind_of(mesh.data_rank), sync.deferred))
    else:
        sums = {}
        for rank in range(ranks):
            for name, value in read_kind(folder, kind_of(rank), sync.deferred):
                sums[name] = sums[name] + value / ranks if name in sums else value / ranks
    parts = {name: states.plan.cut(name, sums[name], mesh.model_rank) for name in sync.deferred}
    sync.restore(int(saved["held"]), parts)

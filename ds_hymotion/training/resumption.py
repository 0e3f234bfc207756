"""Going on from a checkpoint: which one, and what must be as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_hymotion.data.fingerprint import difference
from ds_hymotion.data.plan import Position
from ds_hymotion.data.steps import Layout
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.training.checkpoint_folder import newest_checkpoint


def resumed_position(
    state: Mapping[str, Any], own: Mapping[str, Any], allow_other_data: bool, checkpoint: Path
) -> Position:
    """Where the plan goes on. A position in an epoch holds for the plan it was made in; other data may go on with the
    next epoch.

    Args:
        own: this run's :func:`ds_hymotion.data.fingerprint.fingerprint`.

    Raises:
        UserError: the checkpoint was made with other data, which is not allowed.
    """
    position = Position.from_state(state["position"])
    if "fingerprint" not in state or not (other := difference(state["fingerprint"], own)):
        return position
    if not allow_other_data:
        raise UserError(
            f"{checkpoint}: made with other data: {other}; give the same, start a new run with --init_from "
            f"{checkpoint.parent.parent}, or go on with the next epoch of the new data by --allow_other_data"
        )
    return Position(position.epoch + 1, first=int(state["step"]))


def require_same_network(made_with: Mapping[str, Any], own: Mapping[str, Any], checkpoint: Path) -> None:
    """Check the settings of a network that no tensor's shape shows, such as the width of the attention's band.

    Args:
        made_with, own: fields of :class:`ds_hymotion.model.config.ModelConfig`.

    Raises:
        UserError: the checkpoint was made with others.
    """
    theirs, ours = (json.loads(json.dumps(fields)) for fields in (made_with, own))
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            raise UserError(
                f"{checkpoint}: made by a network with {key} = {theirs[key]}, this run's has {value}; resume with the "
                f"configuration of its training, {checkpoint.parent.parent / 'config.json'}"
            )


def agreed_checkpoint(resume: Path | None, mesh: Mesh) -> Path | None:
    """The newest intact checkpoint of a run to go on from, seen by every rank; None where there is none to go on from
    (collective).

    Raises:
        UserError: on every rank alike, where it is gone or some rank does not see it.
    """
    asked = mesh.gather_objects(str(resume or ""))
    if different := [rank for rank, place in enumerate(asked) if bool(place) != bool(asked[0])]:
        sees, lacks = (0, different[0]) if asked[0] else (different[0], 0)
        raise UserError(
            f"--resume: rank {sees} finds checkpoints in {asked[sees]}, rank {lacks} finds none; give a folder that "
            "all machines share"
        )
    if resume is None:
        return None
    found = Path(mesh.agree(str(mesh.on_first(lambda: newest_checkpoint(resume)))))  # one rank hashes every file
    seen = mesh.gather_objects((found / "manifest.json").is_file())
    if not all(seen):
        raise UserError(
            f"--resume: {found} is on rank 0, not on rank {seen.index(False)}; give a folder that all machines share"
        )
    return found


def batch_note(before: Layout, now: Layout) -> str:
    """What to say where a step takes another amount of motion than it did; "" where it takes the same."""
    if bool(before.frames) != bool(now.frames):
        return "note: hymotion.data.frames_per_gpu fills steps otherwise than before: rates may want another look"
    unit = "frames" if now.frames else "clips"
    one = (now.frames or now.clips) * now.ranks
    took, takes = before.ranks * before.accumulation * (before.frames or before.clips), one * now.accumulation
    if took == takes:
        return ""
    how = f"; gradient_accumulation_steps = {took // one} keeps {took}" if took % one == 0 else ""
    return f"note: a step takes {takes} {unit} on {now.ranks} data rank(s), before it took {took}{how}"

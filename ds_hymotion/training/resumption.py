"""What a checkpoint's place in the data means to the run that goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_hymotion.data.fingerprint import difference
from ds_hymotion.data.plan import Position
from ds_hymotion.data.steps import Layout
from ds_hymotion.errors import UserError


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

"""Ends a run whose numbers are lost, and names the first tensor that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from ds_hymotion.data.batches import Batch
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.states import MASTER

# DeepSpeed's own words where dynamic loss scaling cannot go lower; every rank meets them in the same step.
AT_MINIMUM = "already at minimum"


@contextmanager
def finite_step(engine: DataEngine, step: int, batches: Sequence[Batch], valid_frames: int) -> Iterator[None]:
    """Run one fp16 step inside; where no loss scale is low enough, the run ends with the reason and with advice.

    Raises:
        UserError: on all ranks alike.
    """
    try:
        yield
    except Exception as error:
        if AT_MINIMUM not in str(error):
            raise
        cause = cause_of(engine, batches, valid_frames)
        raise UserError(
            f"step {step + 1}: gradients overflow at fp16's lowest loss scale, {engine.loss_scale:g}{cause}; use bf16 "
            "(--bf16), or resume from the last checkpoint with a lower optimizer.params.lr or gradient_clipping"
        ) from None


def require_finite(
    engine: DataEngine, step: int, parts: Tensor, batches: Sequence[Batch], valid_frames: int, dtype: str
) -> None:
    """End the run where the loss of step number ``step`` (from 1) is lost.

    Under fp16 an overflow skips its step and lowers the scale; anywhere else the weights are lost.

    Args:
        parts: loss parts of all ranks.

    Raises:
        UserError: on all ranks alike.
    """
    if dtype == "fp16" or bool(parts.isfinite().all()):
        return
    cause = cause_of(engine, batches, valid_frames)
    raise UserError(
        f"step {step}: the loss is {float(parts.sum())}{cause}; nothing was saved since; resume from the last "
        "checkpoint with a lower optimizer.params.lr or gradient_clipping"
    )


def cause_of(engine: DataEngine, batches: Sequence[Batch], valid_frames: int) -> str:
    """``; the first tensor that is not finite: ...`` of any rank, or nothing (collective).

    Pipelines are run forward alone, so that no gradient is looked at there.
    """
    found = lost_at_rest(engine, batches)
    if engine.mesh.pipe_size == 1:
        for batch in batches:
            # All ranks look at as many batches: tensor ranks compute together.
            here = first_nonfinite(engine.objective, engine.readable(batch.to(engine.mesh.device)), valid_frames)
            found = found or here
    else:
        # All stages run, those that have found something too: they wait for each other.
        here = _first_of_stage(engine, batches, valid_frames)
        found = found or here
    every = engine.mesh.gather_objects(found)
    rank = next((rank for rank, text in enumerate(every) if text), None)
    return "" if rank is None else f"; the first tensor that is not finite, on rank {rank}: {every[rank]}"


def lost_at_rest(engine: DataEngine, batches: Sequence[Batch]) -> str:
    """The first of this rank's own weights, their fp32 masters and its batches that is not finite, in words."""
    for name, weight in engine.network_parameters.items():
        held = getattr(weight, "ds_tensor", weight)  # ZeRO-3 keeps a slice there, the weight itself is empty
        if not held.is_meta and _lost(held):
            return f"weight {name}"
    for fragment in engine.states.fragments():
        if _lost(engine.states.local(fragment, MASTER)):
            return f"fp32 weight {fragment.name}"
    return next((f"the batch's {one.name}" for batch in batches for one in fields(batch)
                 if _lost(getattr(batch, one.name))), "")  # fmt: skip


def _first_of_stage(engine: DataEngine, batches: Sequence[Batch], valid_frames: int) -> str:
    """The first output of this rank's stage that is not finite, in words (collective); ranks count from stage 0 on."""
    found: list[str] = []

    def note(name: str, output: Any) -> None:
        if not found and _lost(output):
            found.append(f"output {list(output.shape)} of {name}")

    with _noting(engine.called_modules[0], note):
        for batch in batches or [None] * engine.accumulation:  # type: ignore[list-item]  # stages between have none
            engine.evaluate(batch, valid_frames)
    return found[0] if found else ""


def first_nonfinite(objective: nn.Module, batch: Batch, valid_frames: int) -> str:
    """The first tensor of a forward and backward pass that holds NaN or infinity, in words; empty if there is none.

    Looked for in this order: weights, the batch, outputs of modules as they are computed, gradients of those outputs
    from the loss down.
    """
    # Before any early end, so that tensor ranks make the same collectives.
    outputs, loss = _outputs(objective, batch, valid_frames)
    gradients = torch.autograd.grad(loss, [output for _, output in outputs], allow_unused=True)
    for name, weight in objective.named_parameters():
        if _lost(weight):
            return f"weight {name}"
    for one in fields(batch):
        if _lost(getattr(batch, one.name)):
            return f"the batch's {one.name}"
    for name, output in outputs:
        if _lost(output):
            return f"output {list(output.shape)} of {name}"
    for (name, output), gradient in reversed(list(zip(outputs, gradients))):
        if _lost(gradient):
            return f"gradient {list(output.shape)} of the output of {name}"
    return ""


def _outputs(objective: nn.Module, batch: Batch, valid_frames: int) -> tuple[list[tuple[str, Tensor]], Tensor]:
    """Every module's output tensor that has a gradient, in order, and the loss."""
    found: list[tuple[str, Tensor]] = []

    def note(name: str, output: Any) -> None:
        if torch.is_tensor(output) and output.is_floating_point() and output.requires_grad:
            found.append((name, output))

    with torch.enable_grad(), _noting(objective, note):
        loss, _ = objective(batch, valid_frames)
    return found, loss


@contextmanager
def _noting(root: nn.Module, note: Callable[[str, Any], None]) -> Iterator[None]:
    """Inside, ``note`` is told every module's name and output."""
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in root.named_modules()
        if name
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _lost(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point() and not bool(value.isfinite().all())

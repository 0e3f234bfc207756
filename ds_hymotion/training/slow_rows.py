"""Rows of the motion head that update every n-th step only, such as those of joints that move little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.states import Fragment, ParameterStates
from ds_hymotion.training.ema import WeightAverage
from ds_hymotion.training.joints import JointPlan

HEAD = "motion_transformer.final_layer.linear."


def check_slow_rows(joints: JointPlan, groups: SyncGroups, others_every: int) -> None:
    """Refuse slow rows of a head whose gradients wait for other ranks.

    Raises:
        UserError: ``joint_update_every`` above 1 with a head that is not averaged every step.
    """
    waits = others_every > 1 and not {HEAD + "weight", HEAD + "bias"} <= set(groups.always)
    if waits and int(joints.every.max()) > 1:
        raise UserError(
            f"hymotion.training.joint_update_every above 1 with gradient_sync.others_every = {others_every} needs the "
            "head's gradients every step; put motion_head into hymotion.gradient_sync.always"
        )


class SlowRows:
    """Between its updates a slow row has no gradient, and its weights, moments and average stay as they are.

    The update takes the gradient of its own step, so the head must be averaged every step. Adam's bias correction
    counts all steps.

    Args:
        states: the engine's states.
        average: the weight average, if there is one.
        every: [rows] steps between updates of this rank's head rows.
    """

    def __init__(self, states: ParameterStates, average: WeightAverage | None, every: torch.Tensor) -> None:
        self.states = states
        self.average = average
        self.every = every
        self._held = torch.zeros(len(every), dtype=torch.bool)
        self._names = [name for name in (HEAD + "weight", HEAD + "bias") if name in states.parameters]
        if bool((every > 1).any()):
            for name in self._names:
                states.parameters[name].register_hook(self._without_held)

    @contextmanager
    def held(self, step: int) -> Iterator[None]:
        """Keep the rows that step number ``step``, counted from 0, does not update."""
        self._held = (step + 1) % self.every != 0
        if not bool(self._held.any()):
            yield
            return
        rows = {name: self.states.parameters[name].data[self._held].clone() for name in self._names}
        kept = [(value, mask, value[mask].clone()) for value, mask in self._values()]
        yield
        with torch.no_grad():
            for value, mask, before in kept:
                value[mask] = before
            for name, before in rows.items():
                self.states.parameters[name].data[self._held] = before

    def _without_held(self, gradient: torch.Tensor) -> torch.Tensor:
        held = self._held.to(gradient.device)
        return gradient.masked_fill(held if gradient.ndim == 1 else held[:, None], 0.0)

    def _values(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every fp32 value of the head on this rank, flat, with the elements of held rows."""
        for fragment in self.states.fragments():
            if fragment.name in self._names:
                for kind in self.states.kinds():
                    value = self.states.local(fragment, kind)
                    yield value, self._mask(fragment, value.device)
        if self.average:
            for fragment, value in self.average.pieces().values():
                if fragment.name in self._names:
                    yield value.view(-1), self._mask(fragment, value.device)

    def _mask(self, fragment: Fragment, device: torch.device) -> torch.Tensor:
        columns = self.states.parameters[fragment.name].numel() // len(self.every)
        flat = self._held.repeat_interleave(columns)
        return flat[fragment.start : fragment.start + fragment.numel].to(device)

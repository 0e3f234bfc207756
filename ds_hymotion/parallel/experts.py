"""Experts as parameter groups of DeepSpeed's optimizer: the trunk is one, every expert one, and any of them can rest.

A group that rests in a step is moved by exactly 0: no gradient step, no decay, no change of its moments. DeepSpeed
reduces and clips all groups; the gradient of what rests is cleared in between, so norms do not see it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ds_hymotion.data.expert_owners import owner_of_expert
from ds_hymotion.model.experts import expert_of

EXPERT = "expert_number"
RESTS = "rests"


def owner_of(name: str, number: int, size: int) -> int:
    """Which of ``size`` groups of ranks holds a parameter of one of ``number`` experts; 0 for the trunk's.

    It is also the first data rank that does.
    """
    expert = expert_of(name)
    return 0 if expert is None else owner_of_expert(expert, number, size)


class Stubs(nn.Module):
    """Parameters of one element for groups that would have none on this rank, or none with a gradient.

    DeepSpeed's optimizers make a collective per group, so all pipeline stages need the same groups; BF16_Optimizer
    fails in a step in which no parameter outside of experts has a gradient.

    Args:
        numbers: the experts to stand for; None for the trunk.
    """

    def __init__(self, numbers: Iterable[int | None]) -> None:
        super().__init__()
        self.of = {number: nn.Parameter(torch.zeros(1)) for number in numbers}
        for number, stub in self.of.items():
            self.register_parameter("trunk" if number is None else f"number{number}", stub)
            stub.tensor_model_parallel, stub.model_parallel, stub.ds_pipe_replicated = False, True, False  # type: ignore[attr-defined]

    def touch(self, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """A module's output with gradients of zero for the stubs: the sum of an empty slice is added."""
        return (output[0] + sum(stub[:0].sum() for stub in self.of.values()), *output[1:])


def expert_groups(
    parameters: Mapping[str, nn.Parameter], held: Iterable[int], size: int, stubs: Stubs | None = None
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: the trunk's first, then every expert's.

    Args:
        parameters: trained parameters of this rank by released name.
        held: the experts of this data rank.
        size: groups of ranks that the experts are divided over.
        stubs: stand in where a group has no parameter.
    """
    groups: dict[int | None, list[nn.Parameter]] = {number: [] for number in (None, *held)}
    for name, parameter in parameters.items():
        groups[expert_of(name)].append(parameter)
    parts: list[dict[str, Any]] = []
    for number, members in groups.items():
        if stubs and number in stubs.of:
            members.append(stubs.of[number])
        if not members and number is not None:  # all of it is frozen for good
            continue
        part: dict[str, Any] = {"params": members, EXPERT: number, RESTS: False}
        if size > 1 and number is not None:
            part |= {"moe": True, "name": group_name(size)}
        parts.append(part)
    return parts


def group_name(size: int) -> str:
    """DeepSpeed's name for the groups of ranks that hold the same experts, where ``size`` groups share them."""
    return f"ep_size_{size}"


def mark_expert(parameter: nn.Parameter, size: int) -> None:
    """Tell DeepSpeed that a parameter is an expert's, of which ``size`` groups of ranks hold others."""
    parameter.allreduce = False  # type: ignore[attr-defined]
    parameter.group_name = group_name(size)  # type: ignore[attr-defined]


class MovingGroups:
    """Decides which groups of an engine's optimizer its steps move.

    Args:
        engine: DeepSpeed's engine, whose optimizer is made from :func:`expert_groups`.
        parameters: trained parameters of this rank by released name.

    Attributes:
        squares: of every expert that the last step moved, the squared norm of the gradient that this rank stepped
            with: its own part of it with ZeRO. What several tensor ranks hold alike counts on the first of them.
    """

    def __init__(self, engine: Any, parameters: Mapping[str, nn.Parameter]) -> None:
        optimizer = engine.basic_optimizer
        self.optimizer = optimizer
        self.wrapped = engine.optimizer
        self.copies: dict[int | None, list[nn.Parameter]] = {}
        for name, parameter in parameters.items():
            if not getattr(parameter, "model_parallel", True):
                self.copies.setdefault(expert_of(name), []).append(parameter)
        self.squares: dict[int, torch.Tensor] = {}
        self._step = optimizer.step
        optimizer.step = self._step_moving

    def choose(self, trunk: bool, experts: Collection[int]) -> None:
        """From now on, steps move the trunk or not, and these experts alone."""
        self.squares = {}
        for group in self.optimizer.param_groups:
            group[RESTS] = not trunk if group[EXPERT] is None else group[EXPERT] not in experts

    def moves(self, name: str) -> bool:
        """Whether a step moves the parameter ``name``."""
        return any(group[EXPERT] == expert_of(name) and not group[RESTS] for group in self.optimizer.param_groups)

    @torch.no_grad()
    def clear_resting(self) -> None:
        """Clear the reduced gradients of what rests, before the engine's step takes the norm of all."""
        for index, group in enumerate(self.optimizer.param_groups):
            if not group[RESTS]:
                continue
            if hasattr(self.wrapped, "fp32_groups_gradients"):
                gradients = self.wrapped.fp32_groups_gradients[index]
            elif hasattr(self.wrapped, "averaged_gradients"):
                gradients = self.wrapped.averaged_gradients[index] or []
            else:
                gradients = [value.grad for value in group["params"] if value.grad is not None]
            for gradient in gradients:
                gradient.zero_()

    def _square(self, group: dict[str, Any]) -> torch.Tensor:
        """The squared norm of a group's gradient here, copies of other ranks' parameters left out."""
        copies = self.copies.get(group[EXPERT], [])
        own = [value for value in group["params"] if value.grad is not None and all(value is not c for c in copies)]
        square = torch.nn.utils.get_total_norm([value.grad for value in own]).float().square()
        mappings = [getattr(copy, "_hp_mapping", None) for copy in copies]  # DeepSpeed's record of a copy's slice here
        for place in (mapping.hp_fragment_address for mapping in mappings if mapping is not None):
            square -= group["params"][0].grad[place.start : place.start + place.numel].float().square().sum()
        return square.clamp(min=0.0)

    def _step_moving(self, closure: Any = None) -> Any:
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = [group for group in groups if not group[RESTS]]
        for group in self.optimizer.param_groups:
            if group[EXPERT] is not None:
                self.squares[group[EXPERT]] = self._square(group)
        try:
            return self._step(closure) if self.optimizer.param_groups else None
        finally:
            self.optimizer.param_groups = groups

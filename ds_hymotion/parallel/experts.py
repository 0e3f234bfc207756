"""Experts as parameter groups of DeepSpeed's optimizer: the trunk is one, every expert one, and any of them can rest.

A group that rests in a step is moved by exactly 0: no gradient step, no decay, no change of its moments. DeepSpeed
reduces and clips all groups; what rests has no gradient, so norms do not see it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from ds_hymotion.model.experts import expert_of

EXPERT = "expert_number"
RESTS = "rests"


def owner_of(name: str, number: int, size: int) -> int:
    """Which of ``size`` groups of ranks holds a parameter of one of ``number`` experts; 0 for the trunk's.

    It is also the first data rank that does.
    """
    expert = expert_of(name)
    return 0 if expert is None else expert * size // number


def owned_experts(data_rank: int, number: int, size: int) -> tuple[int, ...]:
    """The experts that a data rank holds."""
    return tuple(expert for expert in range(number) if expert * size // number == data_rank % size)


def expert_groups(parameters: Mapping[str, nn.Parameter], size: int) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: the trunk's first, then every expert's that is among ``parameters``.

    Args:
        parameters: trained parameters of this rank by released name.
        size: groups of ranks that the experts are divided over.
    """
    groups: dict[int | None, list[nn.Parameter]] = {None: []}
    for name, parameter in parameters.items():
        groups.setdefault(expert_of(name), []).append(parameter)
    parts: list[dict[str, Any]] = []
    for number, members in groups.items():
        part: dict[str, Any] = {"params": members, EXPERT: number, RESTS: False}
        if size > 1 and number is not None:
            part |= {"moe": True, "name": group_name(size)}
        parts.append(part)
    return parts


def group_name(size: int) -> str:
    """DeepSpeed's name for the groups of ranks that hold the same experts, where ``size`` groups share them."""
    return f"ep_size_{size}"


class MovingGroups:
    """Decides which groups of an engine's optimizer its steps move.

    Args:
        optimizer: torch's optimizer inside the engine, made from :func:`expert_groups`.

    Attributes:
        squares: of every expert that the last step moved, the squared norm of the gradient that this rank stepped
            with: its own part of it with ZeRO.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
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

    def _step_moving(self, closure: Any = None) -> Any:
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = [group for group in groups if not group[RESTS]]
        for group in self.optimizer.param_groups:
            if group[EXPERT] is not None:
                gradients = [value.grad for value in group["params"] if value.grad is not None]
                self.squares[group[EXPERT]] = torch.nn.utils.get_total_norm(gradients).float().square()
        try:
            return self._step(closure) if self.optimizer.param_groups else None
        finally:
            self.optimizer.param_groups = groups

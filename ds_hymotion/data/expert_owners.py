"""Which group of data ranks holds which experts: equal stretches of them, in the order of their numbers."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

Numbers = TypeVar("Numbers", int, Tensor)


def owner_of_expert(expert: Numbers, number: int, owners: int) -> Numbers:
    """The group, of ``owners``, that holds one of ``number`` experts; it is also the first data rank that does."""
    return expert * owners // number


def owned_experts(data_rank: int, number: int, owners: int) -> tuple[int, ...]:
    """The experts that a data rank holds: those of group ``data_rank`` modulo ``owners``."""
    own = data_rank % owners
    return tuple(expert for expert in range(number) if owner_of_expert(expert, number, owners) == own)

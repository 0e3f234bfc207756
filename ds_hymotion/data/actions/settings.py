"""How a corpus is to be sorted into action types: the checked flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds_hymotion.action_names import ACTION_TYPES, MOST_TYPES, check_names
from ds_hymotion.errors import UserError

AUTO = "auto"
MODES = ("supervised", "unsupervised", "labels")
SOURCES = ("action", "hints", "captions")
"""Where a label may come from, the most trusted first."""


@dataclass(frozen=True)
class ActionSettings:
    """How a corpus is to be sorted; the flags of ``launch/prepare.py``.

    Attributes:
        mode: ``supervised``: the network also learns the labels, and KMeans starts from the labelled clips;
            ``unsupervised``: labels only name the clusters; ``labels``: no router, every sample needs a label of its
            own; ``auto``: supervised where training clips of two types or more are labelled, else unsupervised.
        types: how many types; None for as many as there are names.
        names: their names; None for the six of :data:`ACTION_TYPES`.
        seed: of drawing, training and clustering.
        router: a corpus whose router sorts this one too; nothing is trained then.
        steps: of the network's training; None for as many as the corpus's size asks for.
        sources: which of :data:`SOURCES` labels may come from.

    Raises:
        UserError: a value that is not legal.
    """

    mode: str = AUTO
    types: int | None = None
    names: tuple[str, ...] | None = None
    seed: int = 0
    router: Path | None = None
    steps: int | None = None
    sources: tuple[str, ...] = SOURCES
    progress: bool = False

    def __post_init__(self) -> None:
        if self.mode not in (AUTO, *MODES):
            raise UserError(f"--actions {self.mode} is not one of {', '.join((AUTO, *MODES))}")
        if self.names is not None:
            try:
                check_names(self.names)
            except ValueError as error:
                raise UserError(f"--action_names: {error}") from None
        if self.types is not None and not 1 <= self.types <= MOST_TYPES:
            raise UserError(f"--action_types {self.types} must be from 1 to {MOST_TYPES}; 6 is usual")
        if self.router is not None:
            given = {"action_types": self.types, "action_names": self.names}
            name = next((name for name, value in given.items() if value is not None), None)
            if name or self.mode != AUTO:
                raise UserError(
                    f"--{name or f'actions {self.mode}'} and --actions_from {self.router} exclude each other: the "
                    "router brings its own types; give --actions alone"
                )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The names that labels may have."""
        return self.names or ACTION_TYPES

    @property
    def count(self) -> int:
        """How many types there are to be."""
        return self.types or len(self.vocabulary)

"""How many ranks stand along each axis of the mesh, and which: arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass

from ds_hymotion.errors import UserError

AXES = ("pipe", "data", "model")


@dataclass(frozen=True)
class MeshShape:
    """Sizes of the axes. Ranks are counted with ``model`` fastest, then ``data``, then ``pipe``, as DeepSpeed does."""

    pipe: int
    data: int
    model: int

    @classmethod
    def of(cls, world: int, model: int = 1, pipe: int = 1) -> MeshShape:
        """The shape of ``world`` ranks whose data axis takes what ``model`` and ``pipe`` leave.

        Raises:
            UserError: the ranks cannot be divided so.
        """
        if world % (model * pipe):
            stages = f" with {pipe} stages" if pipe > 1 else ""
            legal = [str(size) for size in range(1, world + 1) if world % (size * pipe) == 0]
            hint = f"use one of {', '.join(legal)}" if legal else f"start a multiple of {model * pipe} processes"
            raise UserError(f"hymotion.parallel.model = {model}{stages} does not divide {world} process(es); {hint}")
        return cls(pipe, world // (model * pipe), model)

    def place(self, rank: int) -> tuple[int, int, int]:
        """The coordinates (pipe, data, model) of a rank."""
        return rank // (self.data * self.model), rank // self.model % self.data, rank % self.model

    def lines(self, axis: str) -> list[list[int]]:
        """The ranks of every line along ``axis``, in order."""
        along = AXES.index(axis)
        lines: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.pipe * self.data * self.model):
            place = self.place(rank)
            lines.setdefault(place[:along] + place[along + 1 :], []).append(rank)
        return list(lines.values())

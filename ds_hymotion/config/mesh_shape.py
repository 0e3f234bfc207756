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
            axes = {"hymotion.parallel.model": model, "hymotion.parallel.pipeline": pipe}
            asked = " x ".join(f"{key} = {size}" for key, size in axes.items() if size > 1)
            raise UserError(
                f"{asked} does not divide {world} process(es); start a multiple of {model * pipe}, such as "
                f"deepspeed --num_gpus {model * pipe}"
            )
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

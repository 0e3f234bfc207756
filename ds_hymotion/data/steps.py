"""Steps of a batch plan: which rows every rank sees, how they were cut, and where a run stands among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ds_hymotion.errors import UserError


@dataclass(frozen=True)
class Row:
    """One row of a batch: a clip at one timestep draw. ``stratum`` is its place among the step's rows.

    ``visit`` counts the clip's visits in the epoch, from 0.
    """

    clip: int
    timestep: int
    stratum: int
    visit: int = 0


@dataclass(frozen=True)
class Step:
    """One optimizer step. ``micro_batches[rank][k]`` are the rows of the rank's k-th micro-batch.

    ``padded[rank]`` is the frame count all micro-batches of the rank share; ``valid_frames`` counts the real frames
    of all rows of all ranks: the loss normaliser divided by the channels. ``experts`` are those that learn, ``trunk``
    says whether the rest of the network does.
    """

    epoch: int
    index: int
    bucket: int
    strata: int
    micro_batches: tuple[tuple[tuple[Row, ...], ...], ...]
    padded: tuple[int, ...]
    valid_frames: int
    lr_factor: float = 1.0
    experts: tuple[int, ...] = ()
    trunk: bool = True

    @property
    def clips(self) -> list[int]:
        """The step's clips in rank order."""
        return [row.clip for row in self.visits]

    @property
    def visits(self) -> list[Row]:
        """The first row of each of the step's visits, in rank order."""
        return [row for rank in self.micro_batches for micro in rank for row in micro if row.timestep == 0]

    @property
    def useful_share(self) -> float:
        """Real frames over (ranks × padded frames of the slowest rank)."""
        cost = [sum(map(len, rank)) * padded for rank, padded in zip(self.micro_batches, self.padded)]
        return self.valid_frames / (len(cost) * max(cost))


@dataclass(frozen=True)
class Layout:
    """How a step is filled: ``ranks`` data ranks × ``accumulation`` micro-batches of ``clips`` clips, or, with
    ``frames`` > 0, of as many clips as fit with all their rows into that many padded frames.

    ``owners`` are the groups of ranks that experts are divided over."""

    ranks: int
    accumulation: int
    clips: int
    frames: int = 0
    owners: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < (0 if name in ("frames", "clips") else 1):
                raise UserError(f"batch plan: {name} = {value} must be a whole number from 1")
        if not self.clips and not self.frames:
            raise UserError("batch plan: neither clips nor frames per micro-batch given; set one of them from 1")

    def same_steps(self, other: Layout) -> bool:
        """Whether both cut an epoch into the same steps, whatever the ranks: equal global batches of clips."""
        if self.frames or other.frames:
            return self == other
        sizes = [(layout.ranks * layout.accumulation * layout.clips, layout.owners) for layout in (self, other)]
        return sizes[0] == sizes[1]


@dataclass
class Position:
    """Where a run stands: ``segments`` are the steps done in the current epoch, by the layout they were planned for.

    Layouts of the same steps share a segment, so that its rest does not depend on the number of ranks. ``first`` is
    the number of the epoch's first step in the whole run.
    """

    epoch: int = 0
    segments: list[tuple[Layout, int]] = field(default_factory=list)
    first: int = 0

    @property
    def step(self) -> int:
        """The number of the next step in the whole run."""
        return self.first + sum(steps for _, steps in self.segments)

    def advance(self, layout: Layout) -> None:
        """Count one step done under ``layout``."""
        if self.segments and self.segments[-1][0].same_steps(layout):
            self.segments[-1] = (layout, self.segments[-1][1] + 1)
        else:
            self.segments.append((layout, 1))

    def state(self) -> dict[str, Any]:
        """JSON-able form."""
        segments = [[asdict(layout), steps] for layout, steps in self.segments]
        return {"epoch": self.epoch, "segments": segments, "first": self.first}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Position:
        """The inverse of :meth:`state`."""
        segments = [(Layout(**layout), int(steps)) for layout, steps in state["segments"]]
        return cls(int(state["epoch"]), segments, int(state.get("first", 0)))

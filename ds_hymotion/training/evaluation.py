"""Held-out loss: fixed clips, fixed times, noise that training never draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds_hymotion.config.evaluation import EvaluationSection
from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.data.cells import ExpertPlan
from ds_hymotion.data.plan import Row
from ds_hymotion.parallel.engine import DataEngine


@dataclass(frozen=True)
class HeldOutLoss:
    """Mean velocity loss per time, and over all times."""

    times: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the times."""
        return sum(self.losses) / len(self.losses)


class Evaluation:
    """Evaluates a fixed list of clips, divided over the data axis; every rank makes the same number of calls.

    Where experts are divided over ranks, a clip is evaluated by a rank that holds its expert.
    """

    def __init__(
        self, maker: BatchMaker, settings: EvaluationSection, rows: int, experts: ExpertPlan | None = None
    ) -> None:
        self.maker = maker
        self.settings = settings
        self.rows = max(1, rows)
        frames = [min(sample.frames, maker.canvas) for sample in maker.samples]
        self.clips = sorted(range(min(len(frames), settings.max_clips)), key=lambda clip: (frames[clip], clip))
        self.frames = frames
        self.valid_frames = sum(frames[clip] for clip in self.clips)
        self.owners = experts.owners if experts else 1
        self.by_owner: list[list[int]] = [[] for _ in range(self.owners)]
        for clip in self.clips:
            self.by_owner[experts.owner(experts.of[clip]) if experts else 0].append(clip)

    def run(self, engine: DataEngine) -> HeldOutLoss:
        """The held-out loss of the engine's current weights (collective)."""
        mesh = engine.mesh
        owner, place = mesh.data_rank % self.owners, mesh.data_rank // self.owners
        ranks = mesh.data_size // self.owners
        chunk = self.rows * ranks
        losses = []
        for time in self.settings.times:
            total: torch.Tensor | None = None
            for start in range(0, max(map(len, self.by_owner)), chunk):
                mine = self.by_owner[owner][start : start + chunk][place::ranks]
                padded = max((self.frames[clip] for clip in mine), default=0)
                batch = self.maker.held_out([Row(clip, 0, 0) for clip in mine], padded, time)
                parts = engine.evaluate(batch, self.valid_frames)
                total = parts if total is None else total + parts
            assert total is not None
            mesh.sum_over_all(total)
            losses.append(float(total[:-2].sum()) / (self.valid_frames * (len(total) - 2)))
        return HeldOutLoss(tuple(self.settings.times), tuple(losses))

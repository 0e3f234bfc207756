"""The batch plan: which clips every rank sees in every step, known to all ranks ahead of time.

The plan is a pure function of the clips' lengths, the settings and the seed. All ranks compute the same one and read
their own part of it; nothing is exchanged. A step's clips come from one bucket. Inside a bucket clips are sorted by
length with a seeded jitter on the key, cut into steps, and the steps of all buckets are shuffled together. Where an
epoch visits clips several times, that happens round by round, so that no step holds a clip twice. Rows carry the
numbers that all randomness of a sample is counted from, so no layout changes what a clip sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ds_hymotion.data.buckets import Buckets, BucketSettings
from ds_hymotion.data.cells import CellDrawer, Draft, ExpertPlan, by_cell
from ds_hymotion.data.packing import Jitter, cut_by_frames
from ds_hymotion.data.steps import Layout, Position, Row, Step
from ds_hymotion.data.visits import Ration, Visits
from ds_hymotion.errors import UserError
from ds_hymotion.randomness import seed_of

MOST_VISITS = 1000


class Planner:
    """Plans epochs for clips of the given lengths.

    Args:
        lengths: frames of every clip.
        buckets: bucket bounds and what happens to short clips.
        layout: how a step is filled.
        seed: the run's seed.
        timesteps: rows per clip.
        jitter: largest half-width in frames of the jitter on the order by length, so that epochs differ.
        lr_factors: learning-rate factor per bucket label index (bucket 0 is what is shorter than the first bound).
        rations: how often an epoch visits the clips, by corpus; without any, every clip once.
        experts: where experts come in, if the network has any.

    Raises:
        UserError: no clip is left of a ration, or ``layout`` does not hold a clip's rows.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        buckets: BucketSettings,
        layout: Layout,
        seed: int,
        timesteps: int = 1,
        jitter: float = 5.0,
        lr_factors: Sequence[float] = (),
        rations: Sequence[Ration] = (),
        experts: ExpertPlan | None = None,
    ) -> None:
        self.buckets = Buckets.build(lengths, buckets)
        if not any(self.buckets.members):
            reasons = ", ".join(f"{len(c)} {why}" for why, c in self.buckets.dropped.items()) or "there are none"
            raise UserError(
                f"batch plan: no clip is left to train on ({reasons}); lower hymotion.data.bucket_bounds[0] "
                'or set hymotion.data.short to "keep"'
            )
        usable = sorted(clip for members in self.buckets.members for clip in members)
        weights = dict(enumerate(experts.weights)) if experts else {}
        classes = experts.of if experts and weights else ()
        self.visits = Visits(rations or [Ration("clips", len(lengths))], usable, seed, classes, weights)
        for ration, clips, taken in zip(rations, self.visits.members, self.visits.per_epoch):
            if len(clips) and taken > MOST_VISITS * len(clips):
                raise UserError(
                    f"hymotion.data: an epoch would take each of the {len(clips)} clips of {ration.name} "
                    f"{float(taken / len(clips)):.0f} times; give it a smaller share or more clips "
                    f"(at most {MOST_VISITS} times)"
                )
            if not len(clips):
                raise UserError(
                    f"hymotion.data.short = {buckets.short!r} leaves none of the {ration.clips} clips of "
                    f'{ration.name}; set it to "keep", or lower hymotion.data.bucket_bounds[0]'
                )
        self._bucket_of = np.full(len(lengths), -1)
        for bucket, members in enumerate(self.buckets.members):
            self._bucket_of[members] = bucket
        self._lengths = np.array(self.buckets.frames, dtype=np.float64)
        self.layout = layout
        self.seed = seed
        self.timesteps = timesteps
        self._check_frames(layout)
        self.jitter = jitter
        self.lr_factors = tuple(lr_factors)
        self.experts = experts
        self._cached: tuple[Any, list[Step]] | None = None

    def epoch(self, epoch: int, done: Sequence[tuple[Layout, int]] = (), first: int = 0) -> list[Step]:
        """All steps of an epoch that remain after the segments ``done``, under the planner's own layout.

        Last segments of the same steps (:meth:`Layout.same_steps`) are dropped from the front; others are replayed,
        and what is left of their clips is planned anew, so that every clip is still seen as often as it should be.
        ``first`` is the number of the epoch's first step in the whole run, which the experts' phases count in.
        """
        visits = set(self.visits.epoch(epoch))
        start = 0
        for part, (layout, steps) in enumerate(done):
            self._check_frames(layout)
            if layout.same_steps(self.layout) and part == len(done) - 1:
                return self._plan(epoch, part, visits, self.layout, start, first)[steps:]
            planned = self._plan(epoch, part, visits, layout, start, first)
            for step in planned[:steps]:
                visits.difference_update(row.visit * self.visits.clips + row.clip for row in step.visits)
            start += steps
        return self._plan(epoch, len(done), visits, self.layout, start, first)

    def walk(self, position: Position) -> Iterator[Step]:
        """Steps without end from ``position`` on, which moves with them: it always names the next step to run."""
        while True:
            for step in self.epoch(position.epoch, position.segments, position.first):
                position.advance(self.layout)
                yield step
            position.epoch, position.segments, position.first = position.epoch + 1, [], position.step

    def steps_per_bucket(self, epoch: int = 0) -> list[int]:
        """How many steps each bucket has in an epoch."""
        counts = [0] * len(self.buckets.members)
        for step in self.epoch(epoch):
            counts[step.bucket] += 1
        return counts

    @property
    def clips_per_step(self) -> float:
        """Mean number of clips in a step of the first epoch."""
        steps = self.epoch(0)
        return sum(len(step.visits) for step in steps) / len(steps)

    def _check_frames(self, layout: Layout) -> None:
        canvas = self.buckets.settings.canvas
        if layout.frames and layout.frames < self.timesteps * canvas:
            rows = f"{self.timesteps} rows (hymotion.flow.timesteps_per_sample)" if self.timesteps > 1 else "one row"
            raise UserError(
                f"hymotion.data.frames_per_gpu: {layout.frames} does not hold one clip: {rows} of the canvas, "
                f"{canvas} frames each; use at least {self.timesteps * canvas}"
            )

    def _plan(self, epoch: int, part: int, visits: set[int], layout: Layout, start: int, first: int) -> list[Step]:
        key = (epoch, part, layout, start, first, hash(frozenset(visits)))
        if self._cached and self._cached[0] == key:
            return self._cached[1]
        random = np.random.default_rng(seed_of(self.seed, "plan", epoch, part))
        steps: list[Step] = []
        experts = self.experts and replace(self.experts, owners=layout.owners)
        for numbers in self.visits.rounds(epoch, visits, self._round(layout)):
            if experts and experts.drawn_by_cell:
                number = first + start + len(steps)
                for draft in self._draw(experts, numbers, layout, number, (epoch, part), random):
                    steps.append(self._step(epoch, start + len(steps), draft.bucket, draft.ranks, layout, first))
                continue
            drafts: list[tuple[int, list[list[int]]]] = []
            buckets = self._bucket_of[numbers % self.visits.clips]
            for bucket in range(len(self.buckets.members)):
                drafts += [(bucket, ranks) for ranks in self._cut(numbers[buckets == bucket], layout, random)]
            shuffled = [drafts[i] for i in random.permutation(len(drafts))]
            for bucket, ranks in shuffled:
                steps.append(self._step(epoch, start + len(steps), bucket, ranks, layout, first))
        self._cached = (key, steps)
        return steps

    def _draw(
        self,
        experts: ExpertPlan,
        visits: np.ndarray,
        layout: Layout,
        first: int,
        key: tuple[int, int],
        random: np.random.Generator,
    ) -> Iterator[Draft]:
        """Steps by cell from one round of visits, the first of them number ``first`` of the run."""
        clips = visits % self.visits.clips
        slots = layout.accumulation * layout.clips
        cells = {}
        for bucket in np.unique(self._bucket_of[clips]).tolist():
            own = visits[self._bucket_of[clips] == bucket]
            jitter = Jitter(self._lengths[own % self.visits.clips], self.jitter, random)
            order = own[jitter.order(slots * layout.ranks)].tolist()
            cells[bucket] = by_cell(order, [experts.of[visit % self.visits.clips] for visit in order], experts.number)
        return CellDrawer(experts, self.seed, key, layout.ranks, slots).steps(cells, first)

    def _round(self, layout: Layout) -> int:
        """Visits that give every bucket a whole step, or so."""
        used = sum(bool(members) for members in self.buckets.members)
        if layout.frames:
            mean = float(np.mean([length for length in self.buckets.frames if length]))
            return used * layout.ranks * layout.accumulation * max(1, int(layout.frames / (self.timesteps * mean)))
        return used * layout.ranks * layout.accumulation * layout.clips

    def _frames(self, visit: int) -> int:
        return self.buckets.frames[visit % self.visits.clips]

    def _cut(self, visits: np.ndarray, layout: Layout, random: np.random.Generator) -> Iterator[list[list[int]]]:
        """Cut one bucket's visits into steps, and each step into ranks."""
        if not len(visits):
            return
        frames = self._lengths[visits % self.visits.clips]
        jitter = Jitter(frames, self.jitter, random)
        if layout.frames:
            budget = layout.frames // self.timesteps
            order = visits[jitter.order(budget / float(frames.mean()))]
            lengths = [self._frames(visit) for visit in order.tolist()]
            position = 0
            for counts in cut_by_frames(lengths, layout.ranks, layout.accumulation, budget):
                yield split(order[position:].tolist(), counts)
                position += sum(counts)
            return
        take = layout.ranks * layout.accumulation * layout.clips
        order = jitter.order(take)
        company = jitter.keys(layout.clips)
        for start in range(0, len(order), take):
            step = order[start : start + take]
            base, extra = divmod(len(step), layout.ranks)
            chosen = visits[step[np.argsort(company[step], kind="stable")]].tolist()
            yield split(chosen, [base + (rank < extra) for rank in range(layout.ranks)])

    def _step(self, epoch: int, index: int, bucket: int, ranks: list[list[int]], layout: Layout, first: int) -> Step:
        rows = sorted((visit, timestep) for rank in ranks for visit in rank for timestep in range(self.timesteps))
        random = np.random.default_rng(seed_of(self.seed, "strata", epoch, *rows[0], len(rows)))
        stratum = dict(zip(rows, random.permutation(len(rows)).tolist()))
        micro_batches = []
        for visits in ranks:
            base, extra = divmod(len(visits), layout.accumulation)
            parts = split(visits, [base + (k < extra) for k in range(layout.accumulation)])
            micro_batches.append(tuple(self._rows(part, stratum) for part in parts))
        return Step(
            epoch=epoch,
            index=index,
            bucket=bucket,
            strata=len(rows),
            micro_batches=tuple(micro_batches),
            padded=tuple(max(map(self._frames, visits), default=0) for visits in ranks),
            valid_frames=sum(self._frames(visit) for visit, _ in rows),
            lr_factor=self.lr_factors[bucket] if bucket < len(self.lr_factors) else 1.0,
            experts=self._learning(rows, first + index),
            trunk=self.experts is None or self.experts.phase(first + index).trunk,
        )

    def _learning(self, rows: list[tuple[int, int]], step: int) -> tuple[int, ...]:
        """The experts that learn in a step: those of its clips, in a phase that trains experts."""
        if self.experts is None or not self.experts.phase(step).experts:
            return ()
        return tuple(sorted({self.experts.of[visit % self.visits.clips] for visit, _ in rows}))

    def _rows(self, visits: list[int], stratum: dict[tuple[int, int], int]) -> tuple[Row, ...]:
        return tuple(
            Row(visit % self.visits.clips, timestep, stratum[visit, timestep], visit // self.visits.clips)
            for visit in visits
            for timestep in range(self.timesteps)
        )


def split(visits: list[int], counts: Sequence[int]) -> list[list[int]]:
    """The front of ``visits`` in pieces of the given sizes."""
    ends = list(accumulate(counts))
    return [visits[end - count : end] for count, end in zip(counts, ends)]

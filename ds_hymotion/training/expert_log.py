"""What a run says of its experts: sizes at the start, loss and gradients on the way, and which of them starve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ds_hymotion.config.experts import ExpertsSection
from ds_hymotion.data.expert_owners import owned_experts, owner_of_expert
from ds_hymotion.data.plan import Planner, Step
from ds_hymotion.model.experts import expert_of
from ds_hymotion.parallel.engine import DataEngine


class ExpertLog:
    """Counts what every expert has seen, on all ranks alike, from the plan alone.

    Args:
        engine: what trains.
        planner: knows the clips' experts.
        experts: the section of the configuration.
        lengths: frames of every clip as a step sees it.
    """

    def __init__(self, engine: DataEngine, planner: Planner, experts: ExpertsSection, lengths: Sequence[int]) -> None:
        assert planner.experts is not None
        self.engine = engine
        self.planner = planner
        self.plan = planner.experts
        self.experts = experts
        self.lengths = lengths
        self.clips = [0] * experts.number
        self.frames = [0] * experts.number
        self.waits = [0] * experts.number
        self._starving: set[int] = set()

    def count(self, number: int, step: Step) -> list[str]:
        """Take in ``step``, number ``number`` of the run counted from 1; returns warnings to print."""
        for row in step.visits:
            expert = self.plan.of[row.clip]
            self.clips[expert] += 1
            self.frames[expert] += self.lengths[row.clip]
        if self.plan.phase(number - 1).experts:
            self.waits = [waited + 1 for waited in self.waits]
        for expert in step.experts:
            self.waits[expert] = 0
        self._starving -= set(step.experts)
        every = self.experts.starving_steps
        lines = []
        for expert, name in enumerate(self.experts.types):
            waits = self.waits[expert]
            if every and waits >= every and expert not in self._starving:
                self._starving.add(expert)
                clips = self.plan.of.count(expert)
                lines.append(
                    f"warning: expert {name} has not learnt for {waits} steps; {clips} of {len(self.plan.of)} clips "
                    "are of its type"
                )
        return lines

    def values(self) -> dict[str, float]:
        """Numbers of every expert for the log, by monitor name (collective over all ranks).

        The loss is that of the rows since the last call, the gradient norm the last step's, before clipping.
        """
        sums = self.engine.expert_sums()
        self.engine.mesh.sum_over_all(sums)
        sums = sums.cpu()
        norms = self.engine.expert_norms()
        values: dict[str, float] = {}
        for expert, name in enumerate(self.experts.types):
            if sums[expert, 1] > 0:
                values[f"expert/{name}/loss"] = float(sums[expert, 0] / sums[expert, 1])
            if norms[expert] > 0:
                values[f"expert/{name}/grad_norm"] = norms[expert]
            values[f"expert/{name}/clips"] = float(self.clips[expert])
            values[f"expert/{name}/frames"] = float(self.frames[expert])
        return values

    def state(self) -> dict[str, Any]:
        """The counts as a JSON-able object."""
        return {"clips": self.clips, "frames": self.frames, "waits": self.waits}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.clips, self.frames = list(state["clips"]), list(state["frames"])
        self.waits = list(state.get("waits", self.waits))
        every = self.experts.starving_steps
        self._starving = {expert for expert, waits in enumerate(self.waits) if every and waits >= every}

    def table(self) -> str:
        """Parameters in all, active and per rank, and what the first epoch has of every expert and every cell."""
        states, number = self.engine.states, self.experts.number
        sizes = {name: math.prod(states.whole_shape(name)) for name in states.names}
        one = sum(size for name, size in sizes.items() if expert_of(name) == 0)
        trunk = sum(size for name, size in sizes.items() if expert_of(name) is None)
        steps = self.planner.epoch(0)
        lines = [
            f"{number} experts of {one / 1e6:.2f} M, trunk {trunk / 1e6:.2f} M: {(trunk + number * one) / 1e6:.2f} M "
            f"in all, {(trunk + one) / 1e6:.2f} M active, {self._per_rank(sizes) / 1e6:.2f} M on the fullest rank",
            f"{'expert':>16} {'clips':>8} {'frames':>10} {'steps/epoch':>12}",
        ]
        for expert, name in enumerate(self.experts.types):
            clips = [clip for clip, of in enumerate(self.plan.of) if of == expert]
            learns = sum(expert in step.experts for step in steps)
            frames = sum(self.lengths[clip] for clip in clips)
            lines.append(f"{name:>16} {len(clips):>8} {frames:>10} {learns:>12}")
        return "\n".join([*lines, *self._cells(steps)])

    def _per_rank(self, sizes: dict[str, int]) -> int:
        """Trained numbers of the fullest rank: its stage's, cut over the tensor ranks, and of its experts alone."""
        states, share = self.engine.states, self.experts.size
        stages: dict[int, float] = {}
        for name in sizes:
            stage, here = states.held(name)
            stages[stage] = stages.get(stage, 0) + here / (1 if expert_of(name) is None else share)
        return round(max(stages.values()))

    def _cells(self, steps: list[Step]) -> list[str]:
        """Clips and visits of every cell in an epoch, and by bucket how long the owners of experts wait."""
        buckets = [bucket for bucket, clips in enumerate(self.planner.buckets.members) if len(clips)]
        width = max(16, *(len(self._label(bucket)) + 1 for bucket in buckets))
        lines = [f"{'clips x visits':>16}" + "".join(f"{self._label(bucket):>{width}}" for bucket in buckets)]
        visits = Counter((step.bucket, self.plan.of[row.clip]) for step in steps for row in step.visits)
        for expert, name in enumerate(self.experts.types):
            cells = []
            for bucket in buckets:
                clips = sum(self.plan.of[clip] == expert for clip in self.planner.buckets.members[bucket])
                cells.append(f"{clips} x {visits[bucket, expert] / clips:.2f}" if clips else "-")
            lines.append(f"{name:>16}" + "".join(f"{cell:>{width}}" for cell in cells))
        for owner in range(self.experts.size if self.experts.size > 1 else 0):
            idle = [self._idle([step for step in steps if step.bucket == bucket], owner) for bucket in buckets]
            names = [
                self.experts.types[expert] for expert in owned_experts(owner, self.experts.number, self.experts.size)
            ]
            lines.append(f"{'idle':>16}" + "".join(f"{share:>{width - 2}.0f} %" for share in idle))
            ranks = range(owner, self.engine.mesh.data_size, self.experts.size)
            lines[-1] += f"  data ranks {', '.join(map(str, ranks))} with {', '.join(names)}"
        return lines

    def _label(self, bucket: int) -> str:
        return self.planner.buckets.settings.label(bucket)

    def _idle(self, steps: list[Step], owner: int) -> float:
        """Percent of the time that an owner's ranks wait for the busiest: for their rows, or where clips are sent to
        experts for their tails alone."""
        used = cost = 0.0
        for step in steps:
            if self.experts.dispatch == "affinity":
                pairs = zip(step.micro_batches, step.padded, strict=True)
                work = [float(sum(map(len, micros)) * padded) for micros, padded in pairs]
                own = work[owner :: self.experts.size]
            else:
                work = [0.0] * self.experts.size
                for row in step.visits:
                    work[owner_of_expert(self.plan.of[row.clip], self.experts.number, self.experts.size)] += (
                        self.lengths[row.clip]
                    )
                own = [work[owner]]
            used += sum(own) / len(own)
            cost += max(work)
        return 100 * (1 - used / cost) if cost else 0.0

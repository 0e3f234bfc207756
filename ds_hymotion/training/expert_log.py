"""What a run says of its experts: sizes at the start, loss and gradients on the way, and which of them starve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ds_hymotion.config import ExpertsSection
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
        self.last = [0] * experts.number
        self._starving: set[int] = set()

    def count(self, number: int, step: Step) -> list[str]:
        """Take in ``step``, number ``number`` of the run counted from 1; returns warnings to print."""
        for row in step.visits:
            expert = self.plan.of[row.clip]
            self.clips[expert] += 1
            self.frames[expert] += self.lengths[row.clip]
        for expert in step.experts:
            self.last[expert] = number
        self._starving -= set(step.experts)
        every = self.experts.starving_steps
        lines = []
        for expert, name in enumerate(self.experts.types):
            waits = number - self.last[expert]
            if every and self.plan.phase(number - 1).experts and waits >= every and expert not in self._starving:
                self._starving.add(expert)
                clips = self.plan.of.count(expert)
                lines.append(
                    f"warning: expert {name} has not learnt for {waits} steps; {clips} of {len(self.plan.of)} clips "
                    "are of its type"
                )
        return lines

    def values(self) -> dict[str, float]:
        """Numbers of every expert for the log, by monitor name (collective over data).

        The loss is that of the rows since the last call, the gradient norm the last step's, before clipping.
        """
        sums = self.engine.mesh.sum_over_data(self.engine.expert_sums()).cpu()
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
        return {"clips": self.clips, "frames": self.frames, "last": self.last}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.clips, self.frames, self.last = (list(state[key]) for key in ("clips", "frames", "last"))

    def table(self) -> str:
        """Parameters in all, active and per rank, and what the next epoch has of every expert."""
        states, number = self.engine.states, self.experts.number
        sizes = {name: math.prod(states.whole_shape(name)) for name in states.names}
        one = sum(size for name, size in sizes.items() if expert_of(name) == 0)
        trunk = sum(size for name, size in sizes.items() if expert_of(name) is None)
        held = number // self.experts.size
        lines = [
            f"{number} experts of {one / 1e6:.2f} M, trunk {trunk / 1e6:.2f} M: {(trunk + number * one) / 1e6:.2f} M "
            f"in all, {(trunk + one) / 1e6:.2f} M active, {(trunk + held * one) / 1e6:.2f} M per rank",
            f"{'expert':>16} {'clips':>8} {'frames':>10} {'steps/epoch':>12}",
        ]
        steps = self.planner.epoch(0)
        for expert, name in enumerate(self.experts.types):
            clips = [clip for clip, of in enumerate(self.plan.of) if of == expert]
            learns = sum(expert in step.experts for step in steps)
            frames = sum(self.lengths[clip] for clip in clips)
            lines.append(f"{name:>16} {len(clips):>8} {frames:>10} {learns:>12}")
        lines += [self._idle(steps, owner) for owner in range(self.experts.size)] if self.experts.size > 1 else []
        return "\n".join(lines)

    def _idle(self, steps: list[Step], owner: int) -> str:
        size = self.experts.size
        names = [name for expert, name in enumerate(self.experts.types) if self.plan.owner(expert) == owner]
        ranks = [rank for rank in range(self.planner.layout.ranks) if rank % size == owner]
        used = sum(
            sum(len(micro) for micro in step.micro_batches[rank]) * step.padded[rank]
            for step in steps
            for rank in ranks
        )
        cost = sum(
            max(sum(map(len, micros)) * padded for micros, padded in zip(step.micro_batches, step.padded))
            for step in steps
        )
        return (
            f"data ranks {', '.join(map(str, ranks))} hold {', '.join(names)}: idle "
            f"{100 * (1 - used / (len(ranks) * max(1, cost))):.0f} % of an epoch"
        )

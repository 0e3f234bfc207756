"""Runs with experts, and what they must equal: one process with all experts and plain optimizers of torch's."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.data.plan import Planner, Position, Step
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.flow.times import draw_time
from ds_hymotion.model.experts import expert_of
from ds_hymotion.text.cache import TextCache
from ds_hymotion.training.network import build_generator, network_config, starting_weights
from tests.corpora import wavy_corpus
from tests.runs import run_settings

NAMES = ["WALK", "REACH"]


def expert_corpus(folder: Path, clips: list[tuple[int, str]]) -> Corpus:
    """A corpus of wavy motions of the given frames and action types."""
    folder.mkdir(parents=True, exist_ok=True)
    actions = folder / "actions.json"
    actions.write_text(json.dumps({f"clip{number:03d}": action for number, (_, action) in enumerate(clips)}))
    return wavy_corpus(folder, [frames for frames, _ in clips], actions_file=actions)


def expert_settings(weights: Path | None = None, names: list[str] = NAMES, **changes: Any) -> dict[str, Any]:
    """A configuration of the small network with one expert per name, of one block each."""
    return run_settings(
        weights,
        **{
            "hymotion__experts__number": len(names),
            "hymotion__experts__names": names,
            "hymotion__training__joint_groups": "hip,knee:others",
            **changes,
        },
    )


class Reference:
    """The run of a configuration in one process: every rank's batches, all experts, one optimizer for each.

    Attributes:
        steps, norms: the planned steps so far, and their gradients' norms before clipping.
        expert_norms: the norms of every expert that learnt in a step.
    """

    def __init__(self, settings: dict[str, Any], corpus: Corpus, plan: Planner) -> None:
        config = RunConfig(settings, "reference")
        section = config.hymotion
        self.generator = build_generator(
            section, network_config(section, corpus), corpus, weights=starting_weights(section)
        )
        statistics = self.generator.mean.clone(), self.generator.std.clone()
        body = BodyLosses(corpus.representation, *statistics, corpus.fps, section.flow)
        self.objective = FlowObjective(self.generator, section.flow, body)
        samples = corpus.split("train")
        self.maker = BatchMaker(
            corpus,
            samples,
            TextCache(corpus.text_cache_folder("hashed")),
            statistics,
            partial(draw_time, section.flow.time),
            section.flow.condition_drop,
            section.training.seed,
            section.data.bucket_bounds[-1],
            expert_ids(samples, section.experts.types, lambda sample: sample.action),
        )
        parts: dict[int | None, list[torch.nn.Parameter]] = {}
        for name, parameter in self.generator.named_parameters():
            parts.setdefault(expert_of(name), []).append(parameter)
        kind = config.deepspeed["optimizer"]
        self.clipping = config.deepspeed.get("gradient_clipping", 1.0)
        self.optimizers = {
            part: getattr(torch.optim, kind["type"])(members, **kind["params"]) for part, members in parts.items()
        }
        self.walk = plan.walk(Position())
        self.steps: list[Step] = []
        self.norms: list[float] = []
        self.expert_norms: list[dict[int, float]] = []

    def run(self, steps: int) -> list[float]:
        """Train for some steps; returns their losses."""
        losses = []
        for _ in range(steps):
            step = next(self.walk)
            self.steps.append(step)
            total = 0.0
            self.objective.zero_grad()
            for rank, padded in zip(step.micro_batches, step.padded):
                for rows in rank:
                    loss, _ = self.objective(self.maker.make(step.epoch, rows, step.strata, padded), step.valid_frames)
                    loss.backward()
                    total += float(loss.detach())
            seen = {self.maker.experts[clip] for clip in step.clips}
            for part, optimizer in self.optimizers.items():
                if not (step.trunk if part is None else part in step.experts):
                    optimizer.zero_grad()
            self.expert_norms.append({part: self._norm(part) for part in step.experts})
            gradients = [p.grad for p in self.generator.parameters() if p.grad is not None]
            self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))
            if self.clipping:
                torch.nn.utils.clip_grad_norm_(self.generator.parameters(), self.clipping)
            for part, optimizer in self.optimizers.items():
                if (part is None and step.trunk) or (part in seen and part in step.experts):
                    optimizer.step()
            losses.append(total)
        return losses

    def _norm(self, part: int) -> float:
        members = [value for name, value in self.generator.named_parameters() if expert_of(name) == part]
        return float(torch.nn.utils.get_total_norm([value.grad for value in members if value.grad is not None]))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.generator.named_parameters()}


def plan_of(settings: dict[str, Any], corpus: Corpus, ranks: int = 1) -> Planner:
    """The plan that a run of ``settings`` on so many data ranks follows."""
    from ds_hymotion.training.plan import run_planner

    config = RunConfig(settings, "plan", ranks=ranks)
    return run_planner(config, Mixture.open(corpus, config.hymotion.data))

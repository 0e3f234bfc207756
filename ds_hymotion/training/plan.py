"""The batch plan of a run, from its configuration and its clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from ds_hymotion.config.experts import ExpertsSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.cells import ExpertPlan, Phase
from ds_hymotion.data.corpus import Sample
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.data.plan import Layout, Planner


def run_planner(config: RunConfig, mixture: Mixture) -> Planner:
    """The planner of a run over the clips of ``mixture``.

    Raises:
        UserError: as :class:`Planner` and :func:`expert_ids` do.
    """
    section = config.hymotion
    data = section.data
    layout = Layout(
        ranks=config.shape.data,
        accumulation=config.deepspeed["gradient_accumulation_steps"],
        clips=0 if data.frames_per_gpu else config.deepspeed["train_micro_batch_size_per_gpu"],
        frames=data.frames_per_gpu,
        owners=section.experts.owners,
    )
    return Planner(
        [sample.frames for sample in mixture.samples],
        BucketSettings(tuple(data.bucket_bounds), data.short),
        layout,
        section.training.seed,
        section.flow.timesteps_per_sample,
        data.length_jitter,
        data.bucket_lr_factors,
        mixture.rations,
        expert_plan(section.experts, mixture.samples, mixture.action_of),
    )


def expert_plan(
    section: ExpertsSection, samples: Sequence[Sample], action_of: Callable[[Sample], str | None]
) -> ExpertPlan | None:
    """Where experts come into the plan over ``samples``; None without experts."""
    if not section.number:
        return None
    phases = [
        Phase(phase.until, "trunk" in phase.train, "experts" in phase.train, phase.drop_experts)
        for phase in section.phases
    ]
    weights = tuple(Fraction(str(weight)) for weight in section.class_weights)
    of = tuple(expert_ids(samples, section.types, action_of))
    return ExpertPlan(of, section.number, section.owners, tuple(phases), weights)

"""``hymotion.pipeline``: what a stage holds, and what pipelines are refused with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ds_hymotion.config.deepspeed_keys import zero_section, zero_stage
from ds_hymotion.config.refusals import refuse
from ds_hymotion.config.section import Section
from ds_hymotion.errors import UserError

if TYPE_CHECKING:
    from ds_hymotion.config.run_config import RunConfig


class PipelineSection(Section):
    """What a pipeline stage holds; ``temporal`` is another model, on any number of stages."""

    mode: Literal["layers", "temporal"] = Field(
        "layers", description="what is divided over stages: the network's layers, or the motion in chunks of time"
    )
    balance: Literal["cost", "parameters", "uniform"] = Field(
        "cost", description="what stages share evenly: computation, parameters, or the number of blocks"
    )
    split: list[int] = Field([], description="blocks per stage, instead of a balance; [] = by balance")
    max_imbalance: float = Field(1.5, ge=1, description="largest stage cost over the mean that a run starts with")
    weights: Literal["tied", "per_stage"] = Field(
        "tied", description="temporal: one network for all chunks, or one of its own for chunk 0, 1, …"
    )
    chunk_frames: int = Field(60, ge=1, description="temporal: frames of a chunk")
    halo_frames: int = Field(0, ge=0, description="temporal: last frames of the previous chunk that a chunk also sees")
    state_frames: int = Field(30, ge=1, description="temporal: last frames of a chunk that its state is made of")
    states: Literal["noisy", "clean"] = Field(
        "noisy", description="temporal: states of the noised input, or of the motion itself; clean samples in sequence"
    )


# Settings that the other mode would ignore in silence.
ONLY_LAYERS = ("balance", "split", "max_imbalance")
ONLY_TEMPORAL = ("weights", "chunk_frames", "halo_frames", "state_frames", "states")


def check_temporal(config: RunConfig) -> None:
    """Refuse what a pipeline by time does not do, and settings of the mode that is not in force."""
    pipeline, stages = config.hymotion.pipeline, config.hymotion.parallel.pipeline
    defaults = type(pipeline)()
    for name in ONLY_LAYERS if pipeline.mode == "temporal" else ONLY_TEMPORAL:
        if getattr(pipeline, name) != getattr(defaults, name):
            raise UserError(
                f"{config.name}: hymotion.pipeline.{name} = {getattr(pipeline, name)!r} has no effect with "
                f"hymotion.pipeline.mode = {pipeline.mode}; leave it out, or set the mode to "
                f"{'layers' if pipeline.mode == 'temporal' else 'temporal'}"
            )
    if pipeline.mode != "temporal":
        return
    for name in ("halo_frames", "state_frames"):
        if getattr(pipeline, name) > pipeline.chunk_frames:
            raise UserError(
                f"{config.name}: hymotion.pipeline.{name} = {getattr(pipeline, name)} is more than chunk_frames = "
                f"{pipeline.chunk_frames}; use at most that"
            )
    accumulated = config.deepspeed.get("data_types", {}).get("grad_accum_dtype") or "fp32"
    chunks = -(-config.hymotion.data.bucket_bounds[-1] // pipeline.chunk_frames)
    refusals = {
        f"hymotion.parallel.model = {config.hymotion.parallel.model}": (config.hymotion.parallel.model > 1, "use 1"),
        f"hymotion.gradient_sync.others_every = {config.hymotion.gradient_sync.others_every}": (
            config.hymotion.gradient_sync.others_every > 1,
            "use 1",
        ),
        f"hymotion.flow.foot_contact_weight = {config.hymotion.flow.foot_contact_weight} on {stages} stages": (
            config.hymotion.flow.foot_contact_weight > 0 and stages > 1,
            "a foot's speed crosses chunks, use 0 or one stage",
        ),
        f"data_types.grad_accum_dtype = {accumulated!r} on {stages} stages": (
            stages > 1 and accumulated not in ("fp32", config.dtype),
            "use fp32",
        ),
        "fp16.enabled = true": (config.dtype == "fp16" and stages > 1, "use bf16 or fp32"),
        f"hymotion.pipeline.weights = per_stage with hymotion.parallel.pipeline = {stages}": (
            pipeline.weights == "per_stage" and stages not in (1, chunks),
            f"a canvas of {config.hymotion.data.bucket_bounds[-1]} frames has {chunks} chunks of "
            f"{pipeline.chunk_frames}: use {chunks}, or 1",
        ),
        "hymotion.pipeline.weights = per_stage with hymotion.training.joint_update_every": (
            pipeline.weights == "per_stage" and any(n > 1 for n in config.hymotion.training.joint_update_every),
            "leave it out",
        ),
    }
    refuse(refusals, config.name, "does not work with hymotion.pipeline.mode = temporal")


def check_pipeline(config: RunConfig) -> None:
    """Refuse what no pipeline does."""
    stages = config.hymotion.parallel.pipeline
    if stages == 1:
        return
    where = f"{config.name}: hymotion.parallel.pipeline = {stages}"
    if (stage := zero_stage(config.deepspeed, config.name)) > 1:
        raise UserError(f"{where} runs with zero_optimization.stage 0 or 1, not {stage}; use 1")
    if zero_section(config.deepspeed).get("offload_optimizer"):
        raise UserError(f"{where} does not run with zero_optimization.offload_optimizer; leave it out")
    if config.hymotion.text.mode == "live":
        raise UserError(f"{where} does not run with hymotion.text.mode = live; cache the features and use cached")
    if config.deepspeed.get("wall_clock_breakdown"):
        raise UserError(f"{where} does not run with wall_clock_breakdown = true; leave it out")

"""The nearest change of a configuration that fits, found by planning it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds_hymotion.config.deepspeed_keys import offloads, zero_stage
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.tensor import legal_sizes
from ds_hymotion.reports.planner.load import Load
from ds_hymotion.reports.planner.plan import Plan, plan_run, resting_memory
from ds_hymotion.reports.planner.states import BUCKETS, bucket_numbers

MOST_GPUS = 8
SMALL_BUCKET = 50_000_000


def legal_axes(plan: Plan, gpus: int) -> list[tuple[int, int, int]]:
    """(data, model, pipe) of ``gpus`` ranks that the network can be spread over, the least divided first."""
    network, units, owners = plan.inventory.network, len(plan.inventory.stages.units), plan.inventory.experts[1]
    found = [
        (gpus // (model * pipe), model, pipe)
        for model in legal_sizes(network)
        for pipe in range(1, min(units, gpus) + 1)
        if gpus % (model * pipe * owners) == 0
    ]
    return sorted(found, key=lambda axes: (axes[1] * axes[2], axes[2]))


def changes(plan: Plan) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Changes from the smallest on: what to say, values by dotted key, GPUs."""
    config = plan.config
    gpus = config.shape.pipe * config.shape.data * config.shape.model
    if BUCKETS in plan.largest.states.device and bucket_numbers(config) > SMALL_BUCKET:
        name = f"zero_optimization.reduce_bucket_size = {SMALL_BUCKET}"
        yield name, {"zero_optimization.reduce_bucket_size": SMALL_BUCKET}, gpus
    recompute = {"hymotion.model.checkpoint_blocks": 1}
    if config.hymotion.model.checkpoint_blocks != 1:
        yield "hymotion.model.checkpoint_blocks = 1", recompute, gpus
    smaller = _smaller(plan)
    for name, values in smaller:
        yield name, values, gpus
    least = smaller[-1:] or [("", {})]
    name, values = f"checkpoint_blocks = 1{' and ' if least[0][0] else ''}{least[0][0]}", {**recompute, **least[0][1]}
    yield name, values, gpus
    if zero_stage(config.deepspeed) < 2 and config.shape.data > 1 and config.shape.pipe == 1:
        yield "zero_optimization.stage = 2", {"zero_optimization.stage": 2}, gpus
        yield f"zero_optimization.stage = 2 and {name}", {"zero_optimization.stage": 2, **values}, gpus
    if not offloads(config.deepspeed, "offload_optimizer") and config.shape.pipe == 1:
        offloaded = {
            "zero_optimization.stage": 2,
            "zero_optimization.offload_optimizer": {"device": "cpu"},
            "zero_optimization.reduce_bucket_size": SMALL_BUCKET,
        }
        label = "zero_optimization.stage = 2 with offload_optimizer to the CPU"
        yield label, offloaded, gpus
        yield f"{label} and {name}", {**offloaded, **values}, gpus
    if config.hymotion.lora is None and config.hymotion.model.init_from:
        yield "hymotion.lora (adapters alone train)", {"hymotion.lora": {}}, gpus
        yield f"hymotion.lora and {name}", {"hymotion.lora": {}, **values}, gpus
    for model in legal_sizes(plan.inventory.network):
        if config.shape.model < model <= MOST_GPUS:
            more = gpus // config.shape.model * model
            axes = {"hymotion.parallel.model": model}
            yield f"{more} GPUs with hymotion.parallel.model = {model}", axes, more
            yield f"{more} GPUs with hymotion.parallel.model = {model} and {name}", {**axes, **values}, more


def nearest(plan: Plan, raw: dict[str, Any], load: Load, memory: int, fused: bool) -> tuple[str, Plan] | None:
    """The first change after which the plan fits ``memory`` bytes, or None."""
    for name, values, gpus in changes(plan):
        try:
            config = RunConfig(raw, plan.config.name, values, gpus)
            if resting_memory(config, load) > memory:
                continue
            changed = plan_run(config, load, fused)
        except UserError:
            continue
        if changed.peak <= memory:
            return name, changed
    return None


def _smaller(plan: Plan) -> list[tuple[str, dict[str, Any]]]:
    """Half the micro-batch again and again, with as many more of them."""
    config, found = plan.config, []
    accumulation = config.deepspeed["gradient_accumulation_steps"]
    if frames := config.hymotion.data.frames_per_gpu:
        least = config.hymotion.data.bucket_bounds[-1] * config.hymotion.flow.timesteps_per_sample
        while frames // 2 >= least:
            frames //= 2
            found.append((f"hymotion.data.frames_per_gpu = {frames}", {"hymotion.data.frames_per_gpu": frames}))
        return found
    clips = config.deepspeed["train_micro_batch_size_per_gpu"]
    while clips > 1:
        clips, accumulation = -(-clips // 2), 2 * accumulation
        values = {
            "train_micro_batch_size_per_gpu": clips,
            "gradient_accumulation_steps": accumulation,
            "train_batch_size": clips * accumulation * config.shape.data,
        }
        found.append((f"train_micro_batch_size_per_gpu = {clips} (x {accumulation})", values))
    return found

"""``hymotion.gradient_sync``: which gradients travel, and what selective sync is not proven with."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ds_hymotion.config.deepspeed_keys import EIGHT_BIT, offloads, zero_section, zero_stage
from ds_hymotion.config.refusals import refuse
from ds_hymotion.config.section import Section


class GradientSyncSection(Section):
    """Which gradients travel between data ranks, and how often."""

    always: list[str] = Field(
        ["attention_output", "ffn_output", "motion_head"],
        min_length=1,
        description="parameter groups or name patterns that are averaged and stepped every step",
    )
    others_every: int = Field(
        1, ge=1, description="the other parameters are averaged and stepped every so many steps; 1 = every step"
    )
    others_lr_factor: float = Field(
        1.0,
        gt=0,
        le=100,
        description="learning-rate factor of the parameters that wait: they take fewer steps, which others_every "
        "itself makes up for under Adam",
    )
    frozen: list[str] = Field([], description="parameter groups or name patterns that are not trained and never travel")
    check_steps: int = Field(
        0, ge=0, description="steps between checks that all data ranks hold bit-identical weights; 0 = never"
    )


def check_selective_sync(config: dict[str, Any], name: str, every: int) -> None:
    """Refuse, in one line with the alternative, what selective gradient sync is not proven with."""
    stage = zero_stage(config, name)
    zero = zero_section(config)
    bf16 = config.get("bf16", {})
    accumulation = config.get("data_types", {}).get("grad_accum_dtype", "fp32")
    optimizer = config["optimizer"]["type"]
    refusals = {
        f"optimizer.type = {optimizer}": (optimizer in EIGHT_BIT, f"use {EIGHT_BIT.get(optimizer)}"),
        "fp16.enabled = true": (config.get("fp16", {}).get("enabled"), "use bf16 or fp32"),
        "zero_optimization.offload_optimizer": (offloads(config, "offload_optimizer"), "leave it out"),
        "zero_optimization.offload_param": (offloads(config, "offload_param"), "leave it out"),
        "zero_optimization.overlap_comm = true": (zero.get("overlap_comm"), "set it to false"),
        "zero_optimization.zenflow": (zero.get("zenflow"), "leave it out"),
        "zero_optimization.contiguous_gradients = false": (
            zero.get("contiguous_gradients") is False,
            "leave it out, or use stage 0",
        ),
        "bf16 with zero_optimization.stage = 2": (bf16.get("enabled") and stage == 2, "use stage 1"),
        f"data_types.grad_accum_dtype = {accumulation!r}": (
            bf16.get("enabled") and accumulation not in ("fp32", "float32"),
            "use fp32",
        ),
    }
    conflict = f"does not work with hymotion.gradient_sync.others_every = {every}"
    refuse(refusals, name, conflict, ", or set others_every to 1")

"""Checks on DeepSpeed's own part of the JSON: DeepSpeed ignores a misspelt key in silence, a run must not."""

from __future__ import annotations

import difflib
import re
from typing import Any

import torch

from ds_hymotion.errors import UserError

TOP_LEVEL = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "zero_optimization",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "fp16",
    "bf16",
    "data_types",
    "gradient_clipping",
    "prescale_gradients",
    "gradient_predivide_factor",
    "communication_data_type",
    "comms_logger",
    "flops_profiler",
    "steps_per_print",
    "wall_clock_breakdown",
    "memory_breakdown",
    "dump_state",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "aio",
    "hymotion",
    "log_level",
    "disable_allgather",
]

# Legal in DeepSpeed, wrong or without effect here: the reason and what to use instead.
REFUSED = {
    "scheduler": "the learning rate is hymotion.training.schedule and warmup_steps",
    "amp": "use bf16 or fp16",
    "torch_autocast": "use bf16 or fp16: the network keeps norms, softmax and RoPE in fp32 itself",
    "tensor_parallel": "DeepSpeed's AutoTP does not know this network; use hymotion.parallel.model",
    "pipeline": "stages are hymotion.parallel.pipeline and hymotion.pipeline, recomputed activations "
    "hymotion.model.checkpoint_blocks",
    "sparse_attention": "the attention band is hymotion.model.band_frames",
    "curriculum_learning": "the batch plan owns the order of clips",
    "data_efficiency": "the batch plan owns the order of clips",
    "sparse_gradients": "no parameter of this network has sparse gradients",
    "elasticity": "the batch plan needs a fixed number of ranks",
    "autotuning": "it would start training scripts of its own",
    "activation_checkpointing": "activations are recomputed by hymotion.model.checkpoint_blocks",
    "checkpoint": "checkpoints hold whole tensors, see hymotion.training.save_steps and keep_last",
    "compile": "the engine is not compiled",
    "bf16.bf16_master_weights_and_grads": "master weights and gradients are kept in fp32",
    "bf16.bf16_optimizer_states": "moments are kept in fp32",
    "fp16.fp16_master_weights_and_grads": "master weights and gradients are kept in fp32",
}

NESTED = {
    "optimizer": ["type", "params", "legacy_fusion"],
    "fp16": [
        "enabled",
        "auto_cast",
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
    ],
    "bf16": ["enabled", "immediate_grad_update"],
    "data_types": ["grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"],
}

OLD_OFFLOAD = {
    "cpu_offload": 'offload_optimizer = {"device": "cpu"}',
    "cpu_offload_param": 'offload_param = {"device": "cpu"}',
    "cpu_offload_use_pin_memory": "offload_optimizer.pin_memory",
}
FREE_TEXT = ("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler")
QUOTED = re.compile(r"true|false|[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
HIGHEST_RATE = 1e30
ADAM_PARAMS = ["lr", "betas", "eps", "weight_decay", "amsgrad", "torch_adam", "adam_w_mode"]
EIGHT_BIT = {"Adam8bit": "Adam", "AdamW8bit": "AdamW"}
"""Optimizers of bitsandbytes, and those of torch that take the same settings."""
OPTIMIZERS = {
    **{kind: ["lr", "betas", "eps", "weight_decay"] for kind in EIGHT_BIT},
    "Adam": ADAM_PARAMS,
    "AdamW": ADAM_PARAMS,
    "SGD": ["lr", "momentum", "dampening", "weight_decay", "nesterov"],
}


def check_deepspeed_keys(config: dict[str, Any], name: str, data_ranks: int = 1) -> dict[str, Any]:
    """Return ``config`` with its batch triple filled in, or raise a one-line :class:`UserError`.

    Args:
        config: the JSON without the ``hymotion`` section.
        name: how messages call the file.
        data_ranks: size of the data axis.
    """
    for key in config:
        if key in REFUSED:
            raise UserError(f"{name}: key {key} is not supported: {REFUSED[key]}")
        _check_known(key, config[key], TOP_LEVEL, name, "")
    for section, legal in NESTED.items():
        value = config.get(section, {})
        if not isinstance(value, dict):
            raise UserError(f"{name}: {section} = {value!r} must be a JSON object")
        for key in value:
            if f"{section}.{key}" in REFUSED:
                raise UserError(f"{name}: key {section}.{key} is not supported: {REFUSED[f'{section}.{key}']}")
            _check_known(key, value[key], legal, name, section + ".")
    zero = config.get("zero_optimization")
    for key in zero if isinstance(zero, dict) else ():
        if key in OLD_OFFLOAD:
            raise UserError(
                f"{name}: key zero_optimization.{key} is DeepSpeed's old spelling; use zero_optimization."
                f"{OLD_OFFLOAD[key]}"
            )
    clipping = config.get("gradient_clipping", 0.0)
    if isinstance(clipping, bool) or not isinstance(clipping, (int, float)) or not clipping >= 0:
        raise UserError(f"{name}: gradient_clipping = {clipping!r} must be a number from 0, such as 1.0; 0 = none")
    _check_quoted(config, name)
    _check_precision(config, name)
    _check_optimizer(config, name)
    return _batch_triple(config, name, data_ranks)


def _check_known(key: str, value: Any, legal: list[str], name: str, prefix: str) -> None:
    if key in legal:
        return
    close = difflib.get_close_matches(key, legal, 1)
    hint = f"did you mean {prefix}{close[0]}? " if close else ""
    raise UserError(f"{name}: unknown key {prefix}{key} = {value!r}; {hint}legal keys: {', '.join(sorted(legal))}")


def _check_quoted(value: Any, name: str, key: str = "") -> None:
    """Refuse ``"auto"``, which DeepSpeed drops in silence, and numbers and truth values in quotes."""
    if isinstance(value, dict):
        for part, inner in value.items():
            if key or part not in FREE_TEXT:
                _check_quoted(inner, name, f"{key}.{part}".lstrip("."))
    if value == "auto":
        raise UserError(f'{name}: {key} = "auto" is for programs that fill it in; give a value or leave it out')
    if isinstance(value, str) and QUOTED.fullmatch(value.strip()):
        raise UserError(f'{name}: {key} = "{value}" is in quotes; use {value.strip().lower()} without them')


def _check_precision(config: dict[str, Any], name: str) -> None:
    fp16, bf16 = (config.get(kind, {}).get("enabled", False) for kind in ("fp16", "bf16"))
    for kind, value in (("fp16", fp16), ("bf16", bf16)):
        if not isinstance(value, bool):
            raise UserError(f"{name}: {kind}.enabled = {value!r} must be true or false")
    scale = config.get("fp16", {}).get("loss_scale", 0)
    if fp16 and isinstance(scale, (int, float)) and scale:
        raise UserError(
            f"{name}: fp16.loss_scale = {scale!r} would skip steps without end where one overflows; use 0, the "
            "dynamic scale, which starts at 2 to the power of fp16.initial_scale_power"
        )
    accumulated = config.get("data_types", {}).get("grad_accum_dtype")
    if accumulated not in (None, "fp32", "bf16", "fp16"):
        raise UserError(f"{name}: data_types.grad_accum_dtype = {accumulated!r} is not one of fp32, bf16, fp16")
    stage = zero_stage(config, name)
    if fp16 and bf16:
        raise UserError(f"{name}: fp16.enabled and bf16.enabled are both true; enable one of them")
    if fp16 and stage == 0:
        raise UserError(
            f"{name}: fp16.enabled = true with zero_optimization.stage = 0 unscales gradients that were never scaled; "
            "use zero_optimization.stage 1 or bf16"
        )
    if bf16 and stage == 0:
        raise UserError(
            f"{name}: bf16.enabled = true with zero_optimization.stage = 0 keeps no fp32 weights; "
            "use zero_optimization.stage 1"
        )


def zero_stage(config: dict[str, Any], name: str = "config") -> int:
    """The ZeRO stage a JSON asks for, 0 to 3."""
    section = config.get("zero_optimization", {})
    stage = section.get("stage", 0) if isinstance(section, dict) else section
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise UserError(f"{name}: zero_optimization.stage = {stage!r} is not one of 0, 1, 2, 3")
    return int(stage)


def zero_section(config: dict[str, Any]) -> dict[str, Any]:
    """The ``zero_optimization`` object of a JSON; empty where it gives a stage alone."""
    zero = config.get("zero_optimization")
    return zero if isinstance(zero, dict) else {}


def offloads(config: dict[str, Any], key: str) -> bool:
    """Whether a JSON sends what ``key`` names (``offload_optimizer``, ``offload_param``) to the CPU or to NVMe."""
    section = zero_section(config).get(key)
    return isinstance(section, dict) and section.get("device", "none") != "none"


def _check_optimizer(config: dict[str, Any], name: str) -> None:
    optimizer = config.setdefault("optimizer", {})
    kind = optimizer.setdefault("type", "AdamW")
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        raise UserError(f"{name}: optimizer.type = {kind!r} is not one of {', '.join(OPTIMIZERS)}")
    params = optimizer.setdefault("params", {})
    if not isinstance(params, dict):
        raise UserError(f"{name}: optimizer.params = {params!r} must be a JSON object")
    for key, value in params.items():
        _check_known(key, value, OPTIMIZERS[kind], name, "optimizer.params.")
    lr = params.setdefault("lr", 1e-4)
    if isinstance(lr, bool) or not isinstance(lr, (int, float)) or not 0 <= lr <= HIGHEST_RATE:
        raise UserError(f"{name}: optimizer.params.lr = {lr!r} must be a number in 0..{HIGHEST_RATE:g}, such as 1e-4")
    ours = {key: value for key, value in params.items() if key not in ("torch_adam", "adam_w_mode")}
    try:
        getattr(torch.optim, EIGHT_BIT.get(kind, kind))([torch.zeros(1)], **ours)
    except (TypeError, ValueError, IndexError) as error:
        raise UserError(f"{name}: optimizer.params = {params}: {error}") from None


def _batch_triple(config: dict[str, Any], name: str, data_ranks: int) -> dict[str, Any]:
    """Derive what is missing of global batch = micro-batch × accumulation × data ranks, and check the product."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for key in keys:
        value = config.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name}: {key} = {value!r} must be a whole number from 1")
    total, micro, accumulation = (config.get(key) for key in keys)
    if total is None:
        micro, accumulation = micro or 1, accumulation or 1
        total = micro * accumulation * data_ranks
    else:
        if micro is None:
            micro = total // (data_ranks * (accumulation or 1))
        if accumulation is None:
            accumulation = total // (data_ranks * max(micro, 1))
        if micro * accumulation * data_ranks != total or not total:
            raise UserError(
                f"{name}: train_batch_size = {total} is not micro-batch {micro} x accumulation {accumulation} x "
                f"{data_ranks} data ranks = {micro * accumulation * data_ranks}; leave train_batch_size out"
            )
    return {**config, **dict(zip(keys, (total, micro, accumulation)))}

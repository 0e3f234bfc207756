"""What DeepSpeed is given of a run's configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.cpp_extension import CUDA_HOME

from ds_hymotion.config.deepspeed_keys import offloads
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.parallel.cpu_adam import compiles
from ds_hymotion.parallel.mesh import Mesh


def engine_settings(config: RunConfig, mesh: Mesh) -> dict[str, Any]:
    """What DeepSpeed is given: the JSON without our section, with what a CPU and an optimizer of torch's own need."""
    settings = {**config.deepspeed, "steps_per_print": None}
    optimizer = {**settings["optimizer"], "params": dict(settings["optimizer"]["params"])}
    offload = offloads(settings, "offload_optimizer")
    if offload:
        settings.setdefault("zero_force_ds_cpu_optimizer", False)
    builds = compiles() if offload else _builds_fused_adam(mesh.device)
    if optimizer["type"] in ("Adam", "AdamW") and not builds:
        optimizer["params"]["torch_adam"] = True
    settings["optimizer"] = optimizer
    if optimizer["type"] == "SGD":
        settings.setdefault("zero_allow_untested_optimizer", True)
    if config.dtype == "bf16":
        settings["data_types"] = {"grad_accum_dtype": "fp32", **settings.get("data_types", {})}
    return settings


def _builds_fused_adam(device: torch.device) -> bool:
    """Whether DeepSpeed's own Adam, which compiles at first use, can be had: it needs a GPU and nvcc."""
    return device.type == "cuda" and CUDA_HOME is not None

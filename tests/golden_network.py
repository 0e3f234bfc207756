"""The golden network and its numbers, for tests that compare with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.network import MotionTransformer


@cache
def golden_numbers(shared: Path) -> dict[str, Tensor]:
    with np.load(shared / "golden" / "mmdit_tiny.npz", allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name].copy()) for name in file.files}


def golden_config(numbers: dict[str, Tensor]) -> ModelConfig:
    width, layers, heads, ctxt, vtxt = numbers["config"].tolist()
    return ModelConfig(width, layers, heads, ctxt_input_dim=ctxt, vtxt_input_dim=vtxt)


def golden_transformer(numbers: dict[str, Tensor], checkpoint_blocks: int = 0) -> MotionTransformer:
    network = MotionTransformer(golden_config(numbers), checkpoint_blocks)
    weights = {name.removeprefix("weight/"): value for name, value in numbers.items() if name.startswith("weight/")}
    network.load_state_dict(weights)
    return network


def golden_generator(numbers: dict[str, Tensor]) -> MotionGenerator:
    generator = MotionGenerator(golden_config(numbers))
    generator.motion_transformer = golden_transformer(numbers)
    with torch.no_grad():
        generator.null_vtxt_feat.copy_(numbers["sample/null_vtxt"])
        generator.null_ctxt_input.copy_(numbers["sample/null_ctxt"])
    return generator


def randomised(module: torch.nn.Module, seed: int = 0, scale: float = 0.3) -> None:
    """Give every parameter a value that matters; a fresh network's zero gates would hide its blocks."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            fan = parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 1.0
            parameter.copy_(scale * torch.randn(parameter.shape, generator=random) * (3 / fan))

"""A run of low-rank adapters: what they are put on, which base they belong to, and the files they end in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config.hymotion import HymotionSection
from ds_hymotion.config.lora import LoraSection
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import tensors_digest, write_json
from ds_hymotion.model.adapters import A, B, LowRank, adapter_sizes, add_adapters, linear_names
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.temporal import build
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import members
from ds_hymotion.training.weights import ADAPTER_CONFIG, ADAPTERS, Provenance, Weights, low_rank, save_adapters

OPTIMIZER_BYTES = 12  # per trained number: fp32 weight and Adam's two moments


def adapted_linears(section: LoraSection, network: ModelConfig) -> LowRank:
    """The adapters that ``hymotion.lora`` asks for; nothing is allocated.

    Raises:
        UserError: a target means no linear.
    """
    with torch.device("meta"):
        weights = [name + ".weight" for name in linear_names(build(network))]
    chosen = members(section.targets, weights, "lora.targets")
    modules = tuple(name.removesuffix(".weight") for name in weights if name in chosen)
    return LowRank(section.rank, section.alpha, modules)


def adapt(
    generator: MotionGenerator,
    settings: HymotionSection,
    base: Weights,
    held: Callable[[str], bool] | None,
    mesh: Mesh,
) -> dict[str, Any]:
    """Put adapters on a plain network that has its ``base`` weights; returns what :class:`Provenance` says of them.

    Raises:
        UserError: on every rank alike, where ranks read different base weights.
    """
    assert settings.lora is not None
    chosen = adapted_linears(settings.lora, generator.config)
    add_adapters(generator, chosen, settings.training.seed, held)
    found = mesh.gather_objects(tensors_digest(base.tensors))
    if different := [rank for rank, value in enumerate(found) if value != found[0]]:
        raise UserError(
            f"hymotion.model.init_from = {settings.model.init_from} has other weights on rank {different[0]} than on "
            "rank 0; give every machine the same file"
        )
    return {"rank": chosen.rank, "alpha": chosen.alpha, "modules": list(chosen.modules), "base_sha256": found[0]}


def require_same_adapters(made_with: Mapping[str, Any], own: Mapping[str, Any], base: str, checkpoint: Path) -> None:
    """Check that a checkpoint's adapters are this run's, on the base they were trained on.

    Raises:
        UserError: they are not.
    """
    for key in ("rank", "alpha"):
        if made_with.get(key) != own.get(key):
            raise UserError(
                f"{checkpoint}: hymotion.lora.{key} = {own.get(key)} and it was {made_with.get(key)}; resume with that"
            )
    if made_with.get("base_sha256") != own.get("base_sha256"):
        raise UserError(
            f"{checkpoint}: its adapters belong to base weights of SHA-256 {made_with.get('base_sha256', '')[:16]}, "
            f"{base} has {own.get('base_sha256', '')[:16]}; set hymotion.model.init_from to the weights of its start"
        )


def export_adapters(folder: Path, tensors: Mapping[str, torch.Tensor], provenance: Provenance) -> Path:
    """Write the adapters among ``tensors`` as peft reads them: one safetensors file, and its configuration beside it.

    Raises:
        OSError: the folder cannot be written.
    """
    adapters = {name: value for name, value in tensors.items() if name.endswith((A, B))}
    save_adapters(folder / ADAPTERS, adapters, provenance)
    settings = low_rank(provenance).peft_config().to_dict()
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
    write_json(folder / ADAPTER_CONFIG, {**plain, "base_model_name_or_path": provenance.base, "inference_mode": True})
    return folder / ADAPTERS


def describe_adapters(chosen: LowRank, network: ModelConfig) -> str:
    """What trains and what its optimizer keeps, against training the whole network."""
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in build(network).named_parameters()}
    whole, own = sum(map(math.prod, shapes.values())), adapter_sizes(shapes, chosen)
    return (
        f"LoRA rank {chosen.rank}, alpha {chosen.alpha:g}, on {len(chosen.modules)} linears: {own / 1e6:.2f} M of "
        f"{whole / 1e6:.2f} M parameters train ({own / whole:.2%}); weights and moments in the optimizer "
        f"{own * OPTIMIZER_BYTES / 1e6:.1f} MB instead of {whole * OPTIMIZER_BYTES / 1e6:.1f} MB"
    )

"""``hymotion.lora``: low-rank adapters, and what they are refused with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ds_hymotion.config.refusals import refuse
from ds_hymotion.config.section import Section
from ds_hymotion.errors import UserError

if TYPE_CHECKING:
    from ds_hymotion.config.run_config import RunConfig


class LoraSection(Section):
    """Low-rank adapters: the base weights stay as ``model.init_from`` has them, only adapters of linears train."""

    rank: int = Field(16, ge=1, description="columns of B and rows of A of each adapter")
    alpha: float = Field(16.0, gt=0, description="over rank, the factor of B·A")
    targets: list[str] = Field(
        ["qkv", "attention_output", "ffn_input", "ffn_output"],
        min_length=1,
        description="linears with an adapter: groups as in gradient_sync.always, or patterns of their weights' names",
    )


def check_lora(config: RunConfig) -> None:
    """Refuse what a run of adapters does not do."""
    settings = config.hymotion
    if settings.lora is None:
        return
    if not settings.model.init_from:
        raise UserError(
            f"{config.name}: hymotion.lora needs weights to adapt; give --init_from (hymotion.model.init_from) with "
            f"those of {settings.model.preset}, such as a latest.ckpt or the folder of a run"
        )
    refusals = {
        "hymotion.model.allow_fresh = true": (settings.model.allow_fresh, "adapters need a whole base, leave it out"),
        "hymotion.pipeline.mode = temporal": (settings.pipeline.mode == "temporal", "use layers"),
        f"hymotion.experts.number = {settings.experts.number}": (settings.experts.number > 0, "set it to 0"),
        "hymotion.text.train_upper_layers = true": (settings.text.train_upper_layers, "set it to false"),
        f"hymotion.gradient_sync.others_every = {settings.gradient_sync.others_every}": (
            settings.gradient_sync.others_every > 1,
            "adapters are small, use 1",
        ),
        f"hymotion.gradient_sync.frozen = {settings.gradient_sync.frozen}": (
            bool(settings.gradient_sync.frozen),
            "choose what trains by hymotion.lora.targets",
        ),
        f"hymotion.training.joint_update_every = {settings.training.joint_update_every}": (
            any(every > 1 for every in settings.training.joint_update_every),
            "the head's own rows do not train, leave it out",
        ),
    }
    refuse(refusals, config.name, "does not work with hymotion.lora")

"""Cross-checks of a configuration with low-rank adapters: each raises one line with key, value and a legal value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds_hymotion.errors import UserError

if TYPE_CHECKING:
    from ds_hymotion.config import RunConfig


def check_lora(config: RunConfig) -> None:
    """Refuse what a run of adapters does not do."""
    settings = config.hymotion
    if settings.lora is None:
        return
    if not settings.model.init_from:
        raise UserError(
            f"{config.name}: hymotion.lora needs weights to adapt; set hymotion.model.init_from, such as latest.ckpt"
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
    for key, (present, alternative) in refusals.items():
        if present:
            raise UserError(f"{config.name}: {key} does not work with hymotion.lora; {alternative}")

"""Cross-checks of ZeRO-3 and of offloading: each raises one line with key, value and a legal value."""

from __future__ import annotations

from ctypes.util import find_library
from typing import TYPE_CHECKING

from ds_hymotion.config.deepspeed_keys import EIGHT_BIT, offloads, zero_section, zero_stage
from ds_hymotion.config.refusals import refuse
from ds_hymotion.errors import UserError

if TYPE_CHECKING:
    from ds_hymotion.config.run_config import RunConfig

DEVICES = ("none", "cpu", "nvme")


def check_offload(config: RunConfig) -> None:
    """Refuse what ZeRO-3 does not run with here, and offloading that has no effect or cannot be had."""
    stage, name = zero_stage(config.deepspeed, config.name), config.name
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        section = zero_section(config.deepspeed).get(key)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise UserError(
                f'{name}: zero_optimization.{key} = {section!r} must be an object such as {{"device": "cpu"}}'
            )
        device = section.get("device", "none")
        if device not in DEVICES:
            raise UserError(f"{name}: zero_optimization.{key}.device = {device!r} is not one of {', '.join(DEVICES)}")
        if offloads(config.deepspeed, key) and stage < least:
            raise UserError(
                f"{name}: zero_optimization.{key} has no effect with zero_optimization.stage = {stage}; use stage "
                f"{'3' if least == 3 else '2 or 3'}, or leave it out"
            )
        if device == "nvme":
            _check_nvme(key, section.get("nvme_path"), name)
    kind = config.deepspeed["optimizer"]["type"]
    if kind in EIGHT_BIT and max(config.hymotion.training.joint_update_every, default=1) > 1:
        raise UserError(
            f"{name}: optimizer.type = {kind!r} does not run with hymotion.training.joint_update_every; use "
            f"{EIGHT_BIT[kind]}"
        )
    if kind in EIGHT_BIT and offloads(config.deepspeed, "offload_optimizer"):
        raise UserError(
            f"{name}: optimizer.type = {kind!r} does not run with zero_optimization.offload_optimizer; use "
            f"{EIGHT_BIT[kind]}"
        )
    if stage == 3:
        _check_stage_3(config)


def _check_nvme(key: str, path: object, name: str) -> None:
    if key == "offload_optimizer":
        raise UserError(
            f'{name}: zero_optimization.{key}.device = "nvme" is not supported: checkpoints and the weight average '
            'read the states in memory; use "cpu"'
        )
    if not path:
        raise UserError(f"{name}: zero_optimization.{key}.nvme_path is missing; give a folder on the drive")
    if find_library("aio") is None:
        raise UserError(
            f'{name}: zero_optimization.{key}.device = "nvme" needs libaio; apt-get install libaio-dev, or use "cpu"'
        )


def _check_stage_3(config: RunConfig) -> None:
    ours = config.hymotion
    slow = max(ours.training.joint_update_every, default=1)
    refusals = {
        f"hymotion.parallel.model = {ours.parallel.model}": (ours.parallel.model > 1, "use stage 1 or 2"),
        f"hymotion.gradient_sync.others_every = {ours.gradient_sync.others_every}": (
            ours.gradient_sync.others_every > 1,
            "use stage 1 or 2, or 1",
        ),
        f"hymotion.training.joint_update_every = {ours.training.joint_update_every}": (
            slow > 1,
            "use stage 1 or 2, or leave it out",
        ),
        "hymotion.text.mode = live": (ours.text.mode == "live", "use stage 1 or 2, or cached"),
        f"hymotion.experts.number = {ours.experts.number}": (ours.experts.number > 0, "use stage 1 or 2, or 0 experts"),
        f"hymotion.lora.rank = {ours.lora.rank if ours.lora else 0}": (
            ours.lora is not None,
            "use stage 1 or 2: adapters leave little to divide",
        ),
        "hymotion.pipeline.mode = temporal": (ours.pipeline.mode == "temporal", "use stage 1"),
    }
    refuse(refusals, config.name, "does not run with zero_optimization.stage = 3")

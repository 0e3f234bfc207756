"""``hymotion.experts``: tails by action type, and what they are refused with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.config.deepspeed_keys import offloads, zero_section, zero_stage
from ds_hymotion.config.refusals import refuse
from ds_hymotion.config.section import Section
from ds_hymotion.errors import UserError

if TYPE_CHECKING:
    from ds_hymotion.config.run_config import RunConfig


class ExpertPhase(Section):
    """What learns in a part of a run with experts."""

    until: int = Field(ge=1, description="the phase ends before this step, counted from 0; the last one goes on")
    train: list[Literal["trunk", "experts"]] = Field(
        ["trunk", "experts"], min_length=1, description="what learns; the other part is frozen"
    )
    drop_experts: int = Field(0, ge=0, description="experts left out of every step, drawn by its number")


class ExpertsSection(Section):
    """Tails of the network by action type: the trunk is shared, the last blocks and the head exist once per type."""

    number: int = Field(0, ge=0, description="experts, one per action type; 0 = none")
    names: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="their action types; [] = the six of launch/prepare.py"
    )
    blocks: int | None = Field(
        None, ge=1, description="last blocks of each expert; without it 4, or fewer in a network of fewer than 12"
    )
    noise: float = Field(
        0.0, ge=0, le=1, description="noise on experts that start as copies of init_from, over each tensor's spread"
    )

    size: int = Field(
        1, ge=1, description="groups of data ranks that the experts are divided over; 1 = every rank holds all"
    )
    dispatch: Literal["affinity", "all_to_all"] = Field(
        "affinity", description="clips are planned onto the ranks of their experts, or sent there behind the trunk"
    )
    class_weights: list[Annotated[float, Field(gt=0, le=1000)]] = Field(
        [], description="how often an epoch visits the clips of each type, over once; [] = all alike"
    )
    starving_steps: int = Field(
        200, ge=0, description="warn of an expert that has not learnt for so many steps; 0 = never"
    )
    phases: list[ExpertPhase] = Field([], description="what learns when; [] = trunk and experts throughout")

    @property
    def types(self) -> tuple[str, ...]:
        """The action types that have experts, in the order of their numbers; () without any."""
        return tuple(self.names or ACTION_TYPES) if self.number else ()

    @property
    def owners(self) -> int:
        """Groups of data ranks that the batch plan tells apart: where clips are sent, every rank takes any."""
        return self.size if self.dispatch == "affinity" else 1


def check_experts(config: RunConfig) -> None:
    """Refuse what experts are not proven with, and settings of theirs without any."""
    experts = config.hymotion.experts
    if not experts.number:
        defaults = type(experts)()
        for key in type(experts).model_fields:
            if getattr(experts, key) != getattr(defaults, key):
                given = experts.model_dump(exclude_unset=True)[key]
                raise UserError(
                    f"{config.name}: hymotion.experts.{key} = {given!r} has no effect with "
                    f"hymotion.experts.number = 0; leave it out, or set the number to {len(ACTION_TYPES)}"
                )
        return
    _check_names(config)
    _check_spread(config)
    zero = zero_section(config.deepspeed)
    offloaded = any(offloads(config.deepspeed, key) for key in ("offload_optimizer", "offload_param"))
    hymotion = config.hymotion
    accumulated = config.deepspeed.get("data_types", {}).get("grad_accum_dtype") or "fp32"
    clipping = config.deepspeed.get("gradient_clipping", 1.0)  # DeepSpeed's own default
    refusals = {
        "hymotion.pipeline.mode = temporal": (hymotion.pipeline.mode == "temporal", "use layers"),
        f"hymotion.gradient_sync.others_every = {hymotion.gradient_sync.others_every}": (
            hymotion.gradient_sync.others_every > 1,
            "use 1",
        ),
        "hymotion.training.joint_update_every above 1": (
            any(every > 1 for every in hymotion.training.joint_update_every),
            "leave it out",
        ),
        "hymotion.text.train_upper_layers = true": (hymotion.text.train_upper_layers, "use false"),
        "fp16.enabled = true": (config.dtype == "fp16", "use bf16 or fp32"),
        f"data_types.grad_accum_dtype = {accumulated!r}": (accumulated != "fp32", "use fp32"),
        f"gradient_clipping = {clipping} with zero_optimization.stage = 0 and experts.size = {experts.size}": (
            clipping and experts.size > 1 and zero_stage(config.deepspeed) == 0,
            "use stage 1, or gradient_clipping = 0",
        ),
        "hymotion.gradient_sync.frozen with experts.size above 1": (
            hymotion.gradient_sync.frozen and experts.size > 1,
            "use phases, or size 1",
        ),
        "zero_optimization.reduce_scatter = false with experts.size above 1": (
            zero.get("reduce_scatter") is False and experts.size > 1,
            "leave it out",
        ),
        f"hymotion.data.frames_per_gpu = {hymotion.data.frames_per_gpu} and experts drawn by cell": (
            hymotion.data.frames_per_gpu
            and (experts.owners > 1 or any(phase.drop_experts for phase in experts.phases)),
            "use train_micro_batch_size_per_gpu, or experts.size = 1 and phases without drop_experts",
        ),
        f"hymotion.experts.noise = {experts.noise} without hymotion.model.init_from": (
            experts.noise and not hymotion.model.init_from,
            "set init_from, or noise to 0: fresh experts learn apart by their clips",
        ),
        "zero_optimization with offload": (offloaded, "leave offload_optimizer and offload_param out"),
        "zero_optimization.overlap_comm = true": (zero.get("overlap_comm"), "set it to false"),
        "zero_optimization.zenflow": (zero.get("zenflow"), "leave it out"),
    }
    refuse(refusals, config.name, f"does not work with hymotion.experts.number = {experts.number}")


def _check_spread(config: RunConfig) -> None:
    """Sizes of expert groups, and phases."""
    experts = config.hymotion.experts
    ranks = config.shape.data if config.ranks else experts.size  # not known where a file alone is checked
    legal = [size for size in range(1, experts.number + 1) if experts.number % size == 0 and ranks % size == 0]
    if experts.size not in legal:
        raise UserError(
            f"{config.name}: hymotion.experts.size = {experts.size} does not divide both {experts.number} experts and "
            f"{ranks} data rank(s); use {' or '.join(map(str, legal))}"
        )
    if experts.dispatch == "all_to_all" and config.ranks and experts.size == 1:
        raise UserError(
            f"{config.name}: hymotion.experts.dispatch = all_to_all sends clips to other ranks, but "
            f"hymotion.experts.size = 1 has all experts on every rank; use affinity, or another size"
        )
    if experts.class_weights and len(experts.class_weights) != experts.number:
        raise UserError(
            f"{config.name}: hymotion.experts.class_weights holds {len(experts.class_weights)} value(s) for "
            f"{experts.number} experts; give one for each of {', '.join(experts.types)}"
        )
    before = 0
    for number, phase in enumerate(experts.phases):
        where = f"{config.name}: hymotion.experts.phases.{number}"
        if phase.until <= before:
            raise UserError(
                f"{where}.until = {phase.until} must lie behind the phase before it; use {before + 1} or more"
            )
        before = phase.until
        most = experts.number - experts.owners
        if phase.drop_experts > most:
            raise UserError(
                f"{where}.drop_experts = {phase.drop_experts} leaves a group of ranks without an expert; use at most "
                f"{most}"
            )
        if phase.drop_experts and "experts" not in phase.train:
            raise UserError(f"{where}.drop_experts = {phase.drop_experts} without experts in train; use 0")


def _check_names(config: RunConfig) -> None:
    experts = config.hymotion.experts
    if not experts.names and experts.number != len(ACTION_TYPES):
        raise UserError(
            f"{config.name}: hymotion.experts.number = {experts.number} without hymotion.experts.names; name the "
            f"{experts.number} action types, or use {len(ACTION_TYPES)}: {', '.join(ACTION_TYPES)}"
        )
    if experts.names and len(experts.names) != experts.number:
        raise UserError(
            f"{config.name}: hymotion.experts.names holds {len(experts.names)} names, hymotion.experts.number is "
            f"{experts.number}; set it to {len(experts.names)}"
        )
    lower = [name.lower() for name in experts.names]
    if twice := [name for name in experts.names if lower.count(name.lower()) > 1]:
        raise UserError(f"{config.name}: hymotion.experts.names holds {twice[0]!r} twice; use different names")

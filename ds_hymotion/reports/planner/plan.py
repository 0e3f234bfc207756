"""A run planned without a device: every rank's memory and traffic, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from ds_hymotion.config.deepspeed_keys import offloads, zero_stage
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.parallel.stages import EXPERTS
from ds_hymotion.reports.planner.inventory import Inventory
from ds_hymotion.reports.planner.load import Load, Shape
from ds_hymotion.reports.planner.states import BYTES, COPIES, Held, States, accumulation_bytes, rank_states
from ds_hymotion.reports.planner.trace import DOUBLE, HEAD, LOSS, SINGLE, Trace, trace

ROUTED = "routed"
RANKS_PER_NODE = 8
RUNTIME = 3 * 2**28
"""Bytes for the device's context and the allocator's gaps: an assumption."""


@dataclass(frozen=True)
class RankPlan:
    """One rank of every data line: the ranks of the data axis are alike.

    Attributes:
        stage, model: its place on the axes.
        held: parameters.
        states: bytes of weights, gradients and optimizer.
        kept: what autograd keeps for the backward passes under way.
        kept_whole: the same without recomputed blocks.
        working: what else is alive in a backward pass: gradients of activations, a recomputed block, buffers.
        sent: bytes of messages per step, by kind.
    """

    stage: int
    model: int
    held: Held
    states: States
    kept: int
    kept_whole: int
    working: int
    sent: dict[str, int]

    @property
    def backward(self) -> int:
        """Bytes on the device at the height of the backward pass."""
        return sum(self.states.device.values()) + self.kept + self.working + RUNTIME

    @property
    def stepping(self) -> int:
        """Bytes on the device while the optimizer steps."""
        return sum(self.states.device.values()) + self.states.step + RUNTIME

    @property
    def peak(self) -> int:
        """Most of the device's memory."""
        return max(self.backward, self.stepping)

    @property
    def limit(self) -> str:
        """What the peak is mostly made of, and when it is reached."""
        parts = {**self.states.device, "activations": self.kept, "working memory": self.working}
        when = "backward pass"
        if self.stepping > self.backward:
            parts, when = {**self.states.device, COPIES: self.states.step}, "optimizer step"
        return f"{max(parts, key=lambda name: parts[name])} ({when})"


@dataclass(frozen=True)
class Plan:
    """All ranks of a configuration.

    Attributes:
        config: checked, for the planned number of ranks.
        load: what is known of the data.
        shape: the largest micro-batch.
        inventory: the network and where its tensors lie.
        ranks: one per stage and tensor rank.
    """

    config: RunConfig
    load: Load
    shape: Shape
    inventory: Inventory
    ranks: tuple[RankPlan, ...]

    @property
    def largest(self) -> RankPlan:
        """The rank that needs most."""
        return max(self.ranks, key=lambda rank: rank.peak)

    @property
    def peak(self) -> int:
        """Most bytes on a device."""
        return self.largest.peak

    @property
    def ranks_per_node(self) -> int:
        """All ranks, at most the eight of a usual node."""
        return min(RANKS_PER_NODE, self.config.shape.pipe * self.config.shape.data * self.config.shape.model)

    @property
    def host(self) -> int:
        """Bytes of a node's memory that offloading takes."""
        return self.ranks_per_node * max(sum(rank.states.host.values()) for rank in self.ranks)


def resting_memory(config: RunConfig, load: Load) -> int:
    """Bytes of the fullest device without any activation: what no smaller micro-batch can change.

    Raises:
        UserError: as :func:`plan_run`.
    """
    inventory, shape = Inventory.of(config, load), config.shape
    places = [(stage, rank) for stage in range(shape.pipe) for rank in range(shape.model)]
    held = (inventory.held(stage, rank, shape.data) for stage, rank in places)
    return RUNTIME + max(sum(rank_states(config, part).device.values()) for part in held)


def plan_run(config: RunConfig, load: Load, fused: bool = True) -> Plan:
    """Plan a run on ``config.shape``'s ranks.

    Raises:
        UserError: what a run would refuse.
    """
    inventory = Inventory.of(config, load)
    channels = tuple(tuple(part) for part in inventory.joints.rank_channels)
    widest = max(range(len(channels)), key=lambda rank: len(channels[rank]))
    shape, found = max(
        (
            (shape, trace(inventory.network, shape, config.dtype, channels, widest, inventory.low_rank))
            for shape in load.shapes(config)[-2:]
        ),
        key=lambda pair: sum(pair[1].kept.values()),
    )
    stages, ranks = config.shape.pipe, config.shape.model
    plans = [_rank(config, inventory, found, stage, rank, fused) for stage in range(stages) for rank in range(ranks)]
    return Plan(config, load, shape, inventory, tuple(plans))


def _rank(config: RunConfig, inventory: Inventory, found: Trace, stage: int, rank: int, fused: bool) -> RankPlan:
    accumulation = config.deepspeed["gradient_accumulation_steps"]
    stages = inventory.stages.stages
    held = inventory.held(stage, rank, config.shape.data)
    states = rank_states(config, held, fused)
    kept = whole = again = tensor = 0
    for index, kind in _units(inventory, stage):
        if kind == ROUTED:  # rows are copied in the order of their experts
            kept, whole = kept + found.inputs, whole + found.inputs
            continue
        whole += found.kept[kind]
        tensor += found.sent[kind]
        if _recomputed(config, index, kind):
            kept += found.inputs
            again = max(again, found.kept[kind])
            tensor += found.again[kind]
        else:
            kept += found.kept[kind]
    in_flight = min(stages - stage, accumulation)
    working = found.working + again + states.live
    if stages > 1:
        working += found.wire * (2 + (in_flight if stage < stages - 1 else 0))
    sent = _data_traffic(config, inventory, held, stage, rank)
    if inventory.experts[0]:
        sends = held.experts and config.hymotion.experts.dispatch == "all_to_all"
        sent["clips to experts"] = (found.wire + found.inputs) * accumulation if sends else 0
    sent["tensor ranks"] = tensor * accumulation
    forward = found.wire if stage < stages - 1 else 0
    backward = found.inputs if stage else 0
    sent["stage boundary"] = (forward + backward) * accumulation
    return RankPlan(stage, rank, held, states, kept * in_flight, whole * in_flight, working, sent)


def _units(inventory: Inventory, stage: int) -> list[tuple[int, str]]:
    """The units of a stage: number of the block, or -1, and kind; of the experts a row's own."""
    units: list[tuple[int, str]] = []
    block = sum(inventory.stages.split[:stage])
    for unit in inventory.stages.held(stage):
        kind = SINGLE if unit.prefix == EXPERTS else unit.name.partition(" ")[0]
        units += [(block + number, kind) for number in range(unit.blocks)] or [(-1, kind)]
        units += [(-1, HEAD), (-1, ROUTED)] if unit.prefix == EXPERTS else []
        block += unit.blocks
    return [*units, (-1, LOSS)] if stage == inventory.stages.stages - 1 else units


def _recomputed(config: RunConfig, block: int, kind: str) -> bool:
    model = config.hymotion.model
    every = model.checkpoint_blocks
    return bool(every) and kind in (DOUBLE, SINGLE) and (block + 1) % every == 0 and kind in model.checkpoint_kinds


def _data_traffic(config: RunConfig, inventory: Inventory, held: Held, stage: int, rank: int) -> dict[str, int]:
    """Gradients that are averaged and weights that are gathered over data ranks, per step, as whole messages."""
    zero, size = zero_stage(config.deepspeed), BYTES[config.dtype]
    asked = config.deepspeed.get("communication_data_type")
    accumulated = accumulation_bytes(config)
    number = (
        BYTES[asked.lower()]
        if asked
        else accumulated
        if zero == 1 and not offloads(config.deepspeed, "offload_optimizer")
        else size
    )
    always, every = inventory.always(stage, rank), config.hymotion.gradient_sync.others_every
    gradients = number * (always + (held.trunk - always) // every) if held.sharers > 1 else 0
    of_experts = held.experts if held.expert_sharers > 1 else 0
    gathered = size * ((held.trunk if held.sharers > 1 else 0) + of_experts) if zero else 0
    if zero == 3 and held.sharers > 1:  # for the forward and for the backward pass of each micro-batch
        gathered = 2 * size * (held.trained + held.frozen) * config.deepspeed["gradient_accumulation_steps"]
    sent = {"data gradients": gradients, "weights gathered": gathered}
    return {**sent, "expert gradients": number * of_experts} if inventory.experts[0] else sent

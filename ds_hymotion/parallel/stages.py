"""Which part of the network each pipeline stage holds: units of known cost, cut into contiguous stages."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ds_hymotion.config.pipeline import PipelineSection
from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.temporal import build
from ds_hymotion.parallel.parameter_groups import SyncGroups

DOUBLE = "motion_transformer.double_blocks."
SINGLE = "motion_transformer.single_blocks."
HEAD = "motion_transformer.final_layer."
EXPERTS = "experts."
EMBED = "embed"

# What reading a weight and writing its gradient costs per micro-batch, in multiply-adds of a forward pass: with it, a
# double block of Lite counts 1.24 single blocks for 2 clips of 150 frames (1.45 measured on a CPU core, 1.00 without).
WEIGHT_COST = 64


@dataclass(frozen=True)
class Unit:
    """A part that no stage boundary cuts.

    Attributes:
        name: for tables.
        prefix: what its parameters' released names begin with; the empty prefix owns what no other unit does.
        blocks: transformer blocks in it.
        cost: multiply-adds of a micro-batch's forward pass, and what moving its weights takes in the same measure.
        parameters: trained numbers.
    """

    name: str
    prefix: str
    blocks: int
    cost: float
    parameters: int


@dataclass(frozen=True)
class StagePlan:
    """Units over stages: stage s holds ``units[bounds[s]:bounds[s + 1]]``, never nothing."""

    units: tuple[Unit, ...]
    bounds: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.bounds) - 1

    def held(self, stage: int) -> tuple[Unit, ...]:
        """The units of a stage."""
        return self.units[self.bounds[stage] : self.bounds[stage + 1]]

    @property
    def split(self) -> list[int]:
        """Blocks per stage: what ``hymotion.pipeline.split`` takes."""
        return [sum(unit.blocks for unit in self.held(stage)) for stage in range(self.stages)]

    def stage_of(self, parameter: str) -> int:
        """The stage that holds a parameter, by its released name."""
        owners = [i for i, unit in enumerate(self.units) if unit.prefix and parameter.startswith(unit.prefix)]
        index = owners[0] if owners else next(i for i, unit in enumerate(self.units) if not unit.prefix)
        return next(stage for stage in range(self.stages) if index < self.bounds[stage + 1])

    def holds(self, stage: int, parameter: str) -> bool:
        """Whether a stage holds a parameter, by its released name."""
        return self.stage_of(parameter) == stage

    def costs(self) -> list[float]:
        """Cost per stage."""
        return [sum(unit.cost for unit in self.held(stage)) for stage in range(self.stages)]

    @property
    def imbalance(self) -> float:
        """The costliest stage over the mean: what the whole pipeline waits for."""
        costs = self.costs()
        return max(costs) * len(costs) / sum(costs)

    def table(self) -> str:
        """Stage, layers, parameters and cost share, one stage a line."""
        costs = self.costs()
        rows = [("stage", "layers", "parameters", "cost")]
        for stage in range(self.stages):
            units = self.held(stage)
            parameters = sum(unit.parameters for unit in units)
            share = costs[stage] / sum(costs)
            rows.append((str(stage), _names(units), f"{parameters / 1e6:.2f} M", f"{share:.1%}"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            f"{stage:<{widths[0]}}  {layers:<{widths[1]}}  {parameters:>{widths[2]}}  {share:>{widths[3]}}"
            for stage, layers, parameters, share in rows
        )


@dataclass(frozen=True)
class ChunkPlan:
    """By time: every stage holds the one network, or each of ``stages`` the network of its chunk."""

    stages: int

    def stage_of(self, parameter: str) -> int:
        """The stage whose copy counts."""
        found = re.match(r"specialists\.(\d+)\.", parameter)
        return int(found[1]) + 1 if found and self.stages > 1 else 0

    def holds(self, stage: int, parameter: str) -> bool:
        """Whether a stage holds a parameter."""
        return self.stages == 1 or self.stage_of(parameter) == stage


def network_units(
    config: ModelConfig, frames: float, tokens: float, rows: float = 1, held_experts: int = 0
) -> list[Unit]:
    """The network as units, costed for ``rows`` clips of ``frames`` frames and ``tokens`` text tokens.

    The head has no block of its own, nor has the embedding (which includes the text refiner). The tails of all experts
    are one unit: a clip computes one of them, a rank moves the weights of ``held_experts``.
    """
    with torch.device("meta"):
        sizes = {name: parameter.numel() for name, parameter in build(config).named_parameters()}
    embed, double, single, head = layer_costs(config, frames, tokens)
    parts = [(f"double {i}", f"{DOUBLE}{i}.", 1, double) for i in range(config.double_layers)]
    shared = config.single_layers - config.expert_blocks
    parts += [(f"single {i}", f"{SINGLE}{i}.", 1, single) for i in range(shared)]
    if config.expert_names:
        parts += [("experts", EXPERTS, config.expert_blocks, config.expert_blocks * single + head)]
    else:
        parts += [("head", HEAD, 0, head)]
    units: list[Unit] = []
    rest = sum(sizes.values())
    for name, prefix, blocks, operations in parts:
        parameters = sum(size for parameter, size in sizes.items() if parameter.startswith(prefix))
        moved = parameters * held_experts / len(config.expert_names) if prefix == EXPERTS else parameters
        units.append(Unit(name, prefix, blocks, rows * operations + WEIGHT_COST * moved, parameters))
        rest -= parameters
    return [Unit(EMBED, "", 0, rows * embed + WEIGHT_COST * rest, rest), *units]


def layer_costs(config: ModelConfig, frames: float, tokens: float) -> tuple[float, float, float, float]:
    """Multiply-adds of one clip's forward pass through embedding, a double block, a single block and the head.

    Matrix products of linears and of attention, the motion's band computed densely; modulations act on one token.
    """
    width, hidden, both = config.feat_dim, config.mlp_dim, frames + tokens
    square = width * width
    attention = 2 * width * (frames * both + tokens * tokens)
    refiner_block = tokens * (4 * square + 2 * width * hidden) + 2 * width * tokens * tokens + 2 * square
    inputs = frames * config.input_dim + tokens * config.ctxt_input_dim + config.vtxt_input_dim
    embed = inputs * width + 7 * square + tokens * square + config.refiner_layers * refiner_block
    double = both * (4 * square + 2 * width * hidden) + 12 * square + attention
    single = both * (4 * square + 2 * width * hidden) + 3 * square + attention
    head = frames * width * config.input_dim + 2 * square
    return embed, double, single, head


def plan_stages(units: Sequence[Unit], stages: int, settings: PipelineSection) -> StagePlan:
    """Units over ``stages`` stages as the configuration asks.

    Raises:
        UserError: more stages than units, a split that does not fit, or an imbalance above ``max_imbalance``; the
            message holds what is legal and what is best.
    """
    if stages > len(units):
        raise UserError(
            f"hymotion.parallel.pipeline = {stages}: this network has {len(units)} layers that a stage can hold, and "
            f"no stage may be empty; use 1 to {len(units)}"
        )
    best = _balanced(units, stages, [unit.cost for unit in units])
    if settings.split:
        plan, asked = _explicit(units, stages, settings.split, best), f"split = {settings.split}"
    else:
        weights = {
            "cost": [unit.cost for unit in units],
            "parameters": [float(unit.parameters) for unit in units],
            "uniform": [float(unit.blocks) for unit in units],
        }
        plan, asked = _balanced(units, stages, weights[settings.balance]), f"balance = {settings.balance}"
    limit = settings.max_imbalance
    if plan.imbalance <= limit:
        return plan
    problem = (
        f"hymotion.pipeline.{asked} over {stages} stages gives one of them {plan.imbalance:.2f} times the mean cost, "
        f"above hymotion.pipeline.max_imbalance = {limit:g}"
    )
    if best.imbalance <= limit:
        raise UserError(f"{problem}; the best split is {best.split} with {best.imbalance:.2f} (balance = cost)")
    fewer = max(n for n in range(1, stages) if _balanced(units, n, [unit.cost for unit in units]).imbalance <= limit)
    raise UserError(
        f"{problem}; the best split, {best.split}, has {best.imbalance:.2f}: use {fewer} stages, or raise max_imbalance"
    )


def check_trained(plan: StagePlan | ChunkPlan, groups: SyncGroups) -> None:
    """Every stage has a parameter of each kind, or its optimizer would fail or wait for the others for ever.

    Raises:
        UserError: one has none.
    """
    for kind, names in (("averaged every step", groups.always), ("averaged every few steps", groups.deferred)):
        held = {plan.stage_of(name) for name in names}
        missing = [stage for stage in range(plan.stages) if names and stage not in held]
        if missing:
            raise UserError(
                f"hymotion.gradient_sync leaves pipeline stage {missing[0]} of {plan.stages} without a trained "
                f"parameter that is {kind}; change its always or frozen, or use {len(held)} stages"
            )


def _explicit(units: Sequence[Unit], stages: int, split: Sequence[int], best: StagePlan) -> StagePlan:
    """The plan whose stages hold the blocks of ``split``; the embedding goes first, the head last."""
    total = sum(unit.blocks for unit in units)
    legal = f"one count per stage, {total} in all, such as {best.split}"
    if len(split) != stages or sum(split) != total:
        raise UserError(f"hymotion.pipeline.split = {list(split)} does not fit {stages} stages; give {legal}")
    if min(split) < 0 or any(count == 0 for count in split[1:-1]):
        raise UserError(f"hymotion.pipeline.split = {list(split)} leaves a stage empty; give {legal}")
    ends = list(accumulate(unit.blocks for unit in units))
    bounds = [0]
    for end in list(accumulate(split))[:-1]:
        index = bisect_left(ends, end) + 1 if end else 1
        if index > len(units) - 1 or ends[index - 1] != end:
            raise UserError(f"hymotion.pipeline.split = {list(split)} cuts a layer that is one piece; give {legal}")
        bounds.append(index)
    return StagePlan(tuple(units), (*bounds, len(units)))


def _balanced(units: Sequence[Unit], stages: int, weights: Sequence[float]) -> StagePlan:
    """The plan whose heaviest stage is lightest, and among those the most even one."""
    sums = [0.0, *accumulate(weights)]
    loads = sorted({sums[stop] - sums[start] for stop in range(1, len(sums)) for start in range(stop)})
    low, high = 0, len(loads) - 1
    while low < high:
        middle = (low + high) // 2
        if _cut(sums, stages, loads[middle]):
            high = middle
        else:
            low = middle + 1
    bounds = _cut(sums, stages, loads[low])
    assert bounds is not None
    return StagePlan(tuple(units), tuple(bounds))


def _cut(sums: Sequence[float], stages: int, limit: float) -> list[int] | None:
    """Bounds of non-empty stages of at most ``limit`` with the smallest sum of squares; None where there are none."""
    count = len(sums) - 1
    limit *= 1 + 1e-12
    best: list[tuple[float, list[int]] | None] = [(0.0, [0])] + [None] * count
    for stage in range(1, stages + 1):
        following: list[tuple[float, list[int]] | None] = [None] * (count + 1)
        for stop in range(stage, count + 1):
            for start in range(stage - 1, stop):
                before, load = best[start], sums[stop] - sums[start]
                if before is None or load > limit:
                    continue
                squares = before[0] + load * load
                known = following[stop]
                if known is None or squares < known[0]:
                    following[stop] = (squares, [*before[1], stop])
        best = following
    found = best[count]
    return found[1] if found else None


def _names(units: Sequence[Unit]) -> str:
    """``embed, double 0-8, single 0``."""
    runs: list[list[str]] = []
    for unit in units:
        kind, _, number = unit.name.partition(" ")
        if runs and number and runs[-1][0] == kind:
            runs[-1][2] = number
        else:
            runs.append([kind, number, number])
    return ", ".join(
        kind if not first else f"{kind} {first}" if first == last else f"{kind} {first}-{last}"
        for kind, first, last in runs
    )

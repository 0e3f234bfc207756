"""A plan in words."""

from __future__ import annotations

from ds_hymotion.data.expert_owners import owned_experts
from ds_hymotion.parallel.stages import StagePlan
from ds_hymotion.reports.planner.plan import RUNTIME, Plan, RankPlan
from ds_hymotion.reports.planner.states import BUCKETS, COPIES, bucket_numbers
from ds_hymotion.tiers import GIB


def describe(plan: Plan, memory: int | None) -> str:
    """Everything a person asks before starting: what lies where, what it weighs, what is sent, whether it fits."""
    config, shape = plan.config, plan.config.shape
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (config.deepspeed[key] for key in keys)
    network = plan.inventory.network
    lines = [
        f"{config.name}: {config.hymotion.model.preset} (width {network.feat_dim}, {network.num_layers} blocks, "
        f"{plan.load.space.name}), {config.dtype}",
        f"ranks: data {shape.data} x model {shape.model} x pipe {shape.pipe} = {shape.data * shape.model * shape.pipe}",
        _batch(plan, total, micro, accumulation),
        f"largest micro-batch: {plan.shape}, from {plan.load.source}",
    ]
    if shape.pipe > 1:
        lines.append(_stages(plan.inventory.stages))
    if plan.inventory.experts[0]:
        lines.append(_experts(plan))
    lines += ["", *_memory(plan), "", *_traffic(plan)]
    if plan.largest.states.host:
        lines += ["", _host(plan)]
    lines += ["", verdict(plan, memory)]
    return "\n".join(lines)


def verdict(plan: Plan, memory: int | None) -> str:
    """Whether the largest rank fits ``memory`` bytes."""
    rank = plan.largest
    peak = f"peak {rank.peak / GIB:.1f} GiB on stage {rank.stage}, tensor rank {rank.model}, mostly {rank.limit}"
    if memory is None:
        return f"{peak}; give --memory, such as --memory 24GB, for a verdict"
    return f"{'fits' if rank.peak <= memory else 'does not fit'} {memory / GIB:.1f} GiB: {peak}"


def _batch(plan: Plan, total: int, micro: int, accumulation: int) -> str:
    if frames := plan.config.hymotion.data.frames_per_gpu:
        return f"batch: micro-batches of up to {frames} frames x {accumulation} x {plan.config.shape.data} data rank(s)"
    return (
        f"batch: {total} clips = micro-batch {micro} x accumulation {accumulation} x {plan.config.shape.data} data "
        "rank(s)"
    )


def _stages(stages: StagePlan) -> str:
    return f"stages (split {stages.split}, costliest {stages.imbalance:.2f} times the mean):\n{stages.table()}"


def _experts(plan: Plan) -> str:
    """Which data ranks hold which experts."""
    settings, size = plan.config.hymotion.experts, plan.inventory.experts[1]
    parts = []
    for owner in range(size):
        names = [settings.types[number] for number in owned_experts(owner, *plan.inventory.experts)]
        ranks = [str(rank) for rank in range(owner, plan.config.shape.data, size)]
        parts.append(f"data rank {', '.join(ranks)}: {', '.join(names)}")
    return f"experts of {plan.inventory.network.expert_blocks} blocks and the head: {'; '.join(parts)}"


def _memory(plan: Plan) -> list[str]:
    """GiB per rank; ranks of the data axis are alike."""
    names = list(dict.fromkeys(name for rank in plan.ranks for name in rank.states.device))
    rows = [["GiB per rank", *(f"stage {rank.stage} tensor {rank.model}" for rank in plan.ranks)]]
    rows.append(["parameters, M", *(f"{(rank.held.trained + rank.held.frozen) / 1e6:.1f}" for rank in plan.ranks)])
    if plan.config.shape.model > 1:
        rows.append(["  of them whole", *(f"{plan.inventory.replicated(rank.stage) / 1e6:.1f}" for rank in plan.ranks)])
    rows += [[name, *(_gib(rank.states.device.get(name, 0)) for rank in plan.ranks)] for name in names]
    rows.append(["activations", *(_gib(rank.kept) for rank in plan.ranks)])
    if any(rank.kept != rank.kept_whole for rank in plan.ranks):
        rows.append(["  not recomputed", *(f"({_gib(rank.kept_whole)})" for rank in plan.ranks)])
    rows.append(["working memory", *(_gib(rank.working) for rank in plan.ranks)])
    rows.append(["context and gaps", *(_gib(RUNTIME) for _ in plan.ranks)])
    if any(rank.states.step for rank in plan.ranks):
        rows.append([COPIES, *(f"({_gib(rank.states.step)})" for rank in plan.ranks)])
    rows.append(["peak", *(_gib(rank.peak) for rank in plan.ranks)])
    note = f"reduce buckets: zero_optimization.reduce_bucket_size = {bucket_numbers(plan.config):,} numbers"
    return [*columns(rows), *([note] if BUCKETS in names else [])]


def _traffic(plan: Plan) -> list[str]:
    """MB per step and rank, messages counted whole as they are handed over."""
    names = list(dict.fromkeys(name for rank in plan.ranks for name in rank.sent))
    rows = [["MB sent per step", *(f"stage {rank.stage} tensor {rank.model}" for rank in plan.ranks)]]
    rows += [[name, *(f"{rank.sent[name] / 1e6:.1f}" for rank in plan.ranks)] for name in names]
    return columns(rows)


def _host(plan: Plan) -> str:
    rank: RankPlan = max(plan.ranks, key=lambda rank: sum(rank.states.host.values()))
    items = ", ".join(f"{name} {_gib(value)}" for name, value in rank.states.host.items())
    ranks = plan.ranks_per_node
    return f"host memory for offload: {plan.host / GIB:.1f} GiB for {ranks} rank(s) of a node (each: {items})"


def columns(rows: list[list[str]]) -> list[str]:
    """Rows of equal length as aligned lines, the first column to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([f"{row[0]:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]


def _gib(value: int) -> str:
    return f"{value / GIB:.2f}"

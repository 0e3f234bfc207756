"""What the motion head sends between tensor ranks: cut by joints, and cut by columns with its predictions gathered.

Bytes are what a rank sends in ring algorithms, counted by wrapping torch.distributed while real processes run one
forward and backward pass of a head at the released width.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ds_hymotion.model.presets import preset
from ds_hymotion.motion.groups import JointGroups
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.collectives import copy_to_parts, join_parts, sum_of_parts
from ds_hymotion.parallel.joint_head import JointHead
from ds_hymotion.parallel.mesh import free_port
from ds_hymotion.reports.measuring.row import Row

GROUPS = "hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others"
CLIPS, FRAMES, TOKENS, BYTES = 4, 300, 32, 2
SIZES = f"hy-motion-1.0, {CLIPS} clips x {FRAMES} frames, bf16"
BASELINE = "columns, predictions gathered"
SUMMED = "joint groups, the stream's gradient summed"
HEADS = (BASELINE, SUMMED, "joint groups")
WHAT = {
    "forward": "predictions gathered",
    "backward all_reduce": "input gradient, summed",
    "backward all_gather": "input gradient, from gathered prediction gradients and head rows",
    "loss all_reduce": "scalars",
}


def run() -> list[Row]:
    """The three heads on 2 and on 3 ranks, then the head's share of the blocks' traffic."""
    rows: list[Row] = []
    for ranks in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bytes.json"
            torch.multiprocessing.spawn(_rank, (ranks, free_port(), str(path)), nprocs=ranks)
            rows += _table(ranks, json.loads(path.read_text()))
    return [*rows, _share(rows, 2)]


@contextmanager
def counted(total: Counter[str], phase: str) -> Iterator[None]:
    """Add the bytes that this rank sends in collectives inside to ``total``, under phase and function."""
    functions = {"all_reduce": "all_reduce", "all_gather_single": "all_gather", "all_gather_into_tensor": "all_gather"}
    originals = {name: getattr(dist, name) for name in functions if hasattr(dist, name)}

    def watch(name: str) -> Callable[..., Any]:
        def call(message: Tensor, *arguments: Any, group: Any = None, **more: Any) -> Any:
            ranks = dist.get_world_size(group)
            passes = 2 if name == "all_reduce" else 1
            total[f"{phase} {functions[name]}"] += passes * message.nbytes * (ranks - 1) // ranks
            return originals[name](message, *arguments, group=group, **more)

        return call

    for name in originals:
        setattr(dist, name, watch(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _rank(rank: int, ranks: int, port: int, path: str) -> None:
    """One process: every head's pass, counted; the first rank writes what it sent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    found = {kind: _pass(kind, rank, ranks) for kind in HEADS}
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _pass(kind: str, rank: int, ranks: int) -> dict[str, int]:
    body, width = representation("smpl24-rotmat"), preset("hy-motion-1.0").feat_dim
    groups = JointGroups.parse(GROUPS, body.joint_names).over_ranks(ranks, body)
    channels = [part.tolist() for part in groups.channels(body)]
    if kind == BASELINE:
        channels = [part.tolist() for part in torch.arange(body.channels).chunk(ranks)]
    own, widths = channels[rank], [len(part) for part in channels]
    weight = nn.Parameter(torch.zeros(len(own), width, dtype=torch.bfloat16))
    bias = nn.Parameter(torch.zeros(len(own), dtype=torch.bfloat16))
    head = JointHead(weight, bias, channels, dist.group.WORLD)
    x = torch.zeros(CLIPS, FRAMES, width, dtype=torch.bfloat16, requires_grad=True)
    total: Counter[str] = Counter()
    with counted(total, "forward"):
        prediction = head(x) if kind == HEADS[-1] else F.linear(copy_to_parts(x, dist.group.WORLD), weight, bias)
        if kind == BASELINE:
            prediction = join_parts(prediction, widths, dist.group.WORLD)
    with counted(total, "loss"):
        loss = prediction.float().square().sum()
        if kind != BASELINE:
            loss = sum_of_parts(loss, dist.group.WORLD)
    with counted(total, "backward"):
        loss.backward()
    return dict(total)


def _table(ranks: int, found: dict[str, dict[str, int]]) -> list[Row]:
    conditions = {
        "ranks": ranks,
        "sizes": f"{SIZES}, 219 channels",
        "how": "sent per rank and micro-batch (ring), counted",
    }
    rows = []
    whole = sum(found[BASELINE].values())
    for kind, counts in found.items():
        for what, label in WHAT.items():
            value = sum(count for name, count in counts.items() if name.startswith(what))
            if value or what in ("forward", "loss all_reduce"):
                rows.append(Row(f"{kind}: {label}", value, "bytes", conditions=conditions))
        total = sum(counts.values())
        rows.append(Row(f"{kind}: sum", total, "bytes", whole, total / whole, {**conditions, "against": BASELINE}))
    return rows


def _share(rows: list[Row], ranks: int) -> Row:
    """The baseline head against all blocks of the released network: four sums of motion and text in a double block
    forward and four backward, one of both streams each way in a single block."""
    config = preset("hy-motion-1.0")
    sums = 4 * config.double_layers + 2 * config.single_layers
    values = CLIPS * (FRAMES + TOKENS) * config.feat_dim * BYTES
    blocks = sums * values * 2 * (ranks - 1) / ranks
    head = next(row.value for row in rows if row.figure == f"{BASELINE}: sum")
    return Row(
        "all a column-cut head sends, of what head and blocks send",
        100 * head / (head + blocks),
        "%",
        conditions={
            "ranks": ranks,
            "sizes": f"{SIZES}, {TOKENS} text tokens",
            "how": "blocks computed; what any other head can save at most",
        },
    )

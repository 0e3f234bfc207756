"""What two pipeline stages send each other in a training step.

Counted by wrapping DeepSpeed's sends while two real processes train a small network for one step; then computed for
the released widths by the same formula, which the count confirms.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import preset
from ds_hymotion.parallel.mesh import Mesh, free_port
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.reports.measuring.stage_times import Load, batch_of, face_of, in_turn

SUMMED = "tied gradients"
BY_LAYERS, BY_TIME = "by layers", "by time"
MICRO_BATCHES, CLIPS, FRAMES, TOKENS = 4, 2, 300, 32
META = 4 * 256
SMALL = ModelConfig(32, 3, 2, input_dim=219, ctxt_input_dim=16, vtxt_input_dim=16, mlp_ratio=1.0)


def run() -> list[Row]:
    """Counted at small width, by layers and by time, and computed at the released ones."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ([(2, free_port()) for _ in (BY_LAYERS, BY_TIME)], folder)
        torch.multiprocessing.spawn(_process, arguments, nprocs=2)
        layers, times = (json.loads((Path(folder) / f"{number}.json").read_text()) for number in (0, 1))
        return table(layers, times)


def wire_bytes(config: ModelConfig, value_bytes: int) -> dict[str, int]:
    """Bytes of a step over one boundary by direction: packed floats both ways, int32 lengths and one shape forward."""
    floats = MICRO_BATCHES * CLIPS * (1 + FRAMES + TOKENS) * config.feat_dim * value_bytes
    return {"forward": floats + MICRO_BATCHES * CLIPS * (1 + TOKENS) * 4 + META, "backward": floats}


def state_bytes(config: ModelConfig, value_bytes: int) -> int:
    """Bytes of a step over one boundary by time, in each direction: one state per micro-batch of packed chunks."""
    return MICRO_BATCHES * config.state_dim * value_bytes


def table(layers: list[dict[str, int]], times: list[dict[str, int]]) -> list[Row]:
    """Rows from what each of two ranks sent."""
    states = [{kind: count for kind, count in sent.items() if kind != SUMMED} for sent in times]
    sizes = f"2 stages, {MICRO_BATCHES} micro-batches x {CLIPS} clips x {FRAMES} frames + {TOKENS} text tokens"
    small = {"sizes": sizes, "width": SMALL.feat_dim, "precision": "fp32", "how": "counted"}
    rows = [
        Row(
            f"between stages per step {mode}, {direction}",
            sum(sent.values()),
            "bytes",
            None if mode == BY_LAYERS else sum(counted.values()),
            conditions=small,
        )
        for mode, both in ((BY_LAYERS, layers), (BY_TIME, states))
        for direction, sent, counted in zip(("forward", "backward"), both, layers)
    ]
    title = "tied gradients summed over stages per step and rank"
    rows.append(Row(title, times[0][SUMMED], "bytes", sum(layers[0].values()), conditions=small))
    for name in ("hy-motion-1.0", "hy-motion-1.0-lite"):
        config = preset(name)
        both = sum(wire_bytes(config, 2).values())
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in MotionGenerator(config).parameters())
            gradient = 2 * 2 * parameters
        conditions = {"sizes": sizes, "preset": name, "precision": "bf16", "how": "computed"}
        against = {"against": "gradients of two data ranks, all-reduced in 16 bit"}
        title = "between two stages per step {}, both directions"
        rows.append(Row(title.format(BY_LAYERS), both, "bytes", gradient, conditions={**conditions, **against}))
        by_time = 2 * state_bytes(config, 2)
        rows.append(Row(title.format(BY_TIME), by_time, "bytes", both, conditions={**conditions, "against": BY_LAYERS}))
        summed = "tied gradients summed over stages per step and rank, fp32"
        rows.append(Row(summed, 4 * parameters, "bytes", both, conditions={**conditions, "against": BY_LAYERS}))
    return rows


@contextmanager
def counting_sends(total: Counter[str], pipe_group: Any) -> Iterator[None]:
    """Add the bytes this rank sends to other stages inside to ``total``, by dtype; sums of gradients by themselves."""
    from deepspeed.runtime.pipe import p2p

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *arguments: Any, **more: Any) -> Any:
            total[str(tensor.dtype)] += tensor.nbytes
            return original(tensor, *arguments, **more)

        return call

    send, isend, reduce = p2p.send, torch.distributed.isend, torch.distributed.all_reduce

    def watched_reduce(tensor: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        if more.get("group") is pipe_group and tensor.is_floating_point() and tensor.numel() > 1:
            total[SUMMED] += tensor.nbytes
        return reduce(tensor, *arguments, **more)

    p2p.send, torch.distributed.isend = watch(send), watch(isend)
    torch.distributed.all_reduce = watched_reduce
    try:
        yield
    finally:
        p2p.send, torch.distributed.isend, torch.distributed.all_reduce = send, isend, reduce


def count_step(mesh: Mesh, mode: str = BY_LAYERS) -> dict[str, int]:
    """Train one step on this rank and count what it sent."""
    config = SMALL if mode == BY_LAYERS else dataclasses.replace(SMALL, chunk_frames=60)
    load = Load(config, MICRO_BATCHES, CLIPS, FRAMES, TOKENS)
    face = face_of(load, mesh)
    total: Counter[str] = Counter()
    with counting_sends(total, mesh.pipe_group):
        face.train_step(0, [batch_of(load) for _ in range(MICRO_BATCHES)], MICRO_BATCHES * CLIPS * FRAMES, 1.0)
    return dict(total)


def _process(rank: int, jobs: list[tuple[int, int]], folder: str) -> None:
    """One of two processes; the first writes what both sent."""
    torch.set_num_threads(1)

    def work(number: int) -> None:
        mesh = Mesh.start(pipe=2)
        found = mesh.gather_objects(count_step(mesh, (BY_LAYERS, BY_TIME)[number]))
        if mesh.is_first:
            (Path(folder) / f"{number}.json").write_text(json.dumps(found))
        mesh.stop()

    in_turn(jobs, rank, 2, Path(folder), work)

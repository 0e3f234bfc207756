"""What two pipeline stages send each other in a training step.

Counted by wrapping DeepSpeed's sends while two real processes train a small network for one step; then computed for
the released widths by the same formula, which the count confirms.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config import FlowSection, PipelineSection, RunConfig
from ds_hymotion.data.batches import Batch
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.presets import preset
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.mesh import Mesh, free_port
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.stages import network_units, plan_stages
from ds_hymotion.reports.measuring.row import Row

MICRO_BATCHES, CLIPS, FRAMES, TOKENS = 4, 2, 300, 32
META = 4 * 256
SMALL = ModelConfig(32, 3, 2, input_dim=219, ctxt_input_dim=16, vtxt_input_dim=16, mlp_ratio=1.0)


def run() -> list[Row]:
    """Counted at small width, and computed at the released ones."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bytes.json"
        torch.multiprocessing.spawn(_rank, (2, free_port(), str(path)), nprocs=2)
        return table(json.loads(path.read_text()))


def wire_bytes(config: ModelConfig, value_bytes: int) -> dict[str, int]:
    """Bytes of a step over one boundary by direction: packed floats both ways, int32 lengths and one shape forward."""
    floats = MICRO_BATCHES * CLIPS * (1 + FRAMES + TOKENS) * config.feat_dim * value_bytes
    return {"forward": floats + MICRO_BATCHES * CLIPS * (1 + TOKENS) * 4 + META, "backward": floats}


def table(counted: list[dict[str, int]]) -> list[Row]:
    """Rows from what each of two ranks sent."""
    sizes = f"2 stages, {MICRO_BATCHES} micro-batches x {CLIPS} clips x {FRAMES} frames + {TOKENS} text tokens"
    small = {"sizes": sizes, "width": SMALL.feat_dim, "precision": "fp32", "how": "counted"}
    rows = [
        Row(f"between stages per step, {direction}", sum(sent.values()), "bytes", conditions=small)
        for direction, sent in zip(("forward", "backward"), counted)
    ]
    for name in ("hy-motion-1.0", "hy-motion-1.0-lite"):
        config = preset(name)
        both = sum(wire_bytes(config, 2).values())
        with torch.device("meta"):
            gradient = 2 * 2 * sum(parameter.numel() for parameter in MotionGenerator(config).parameters())
        rows.append(
            Row(
                "between two stages per step, both directions",
                both,
                "bytes",
                against=gradient,
                conditions={
                    "sizes": sizes,
                    "preset": name,
                    "precision": "bf16",
                    "how": "computed",
                    "against": "gradients of two data ranks, all-reduced in 16 bit",
                },
            )
        )
    return rows


@contextmanager
def counting_sends(total: Counter[str]) -> Iterator[None]:
    """Add the bytes this rank sends to other stages inside to ``total``, by dtype."""
    from deepspeed.runtime.pipe import p2p

    original = p2p.send

    def send(tensor: torch.Tensor, stage: int, async_op: bool = False) -> Any:
        total[str(tensor.dtype)] += tensor.nbytes
        return original(tensor, stage, async_op)

    p2p.send = send
    try:
        yield
    finally:
        p2p.send = original


def count_step(mesh: Mesh) -> dict[str, int]:
    """Train one step on this rank and count what it sent."""
    from ds_hymotion.parallel.pipeline_engine import PipelineFace

    config = RunConfig(
        {
            "train_micro_batch_size_per_gpu": CLIPS,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "hymotion": {"parallel": {"pipeline": mesh.pipe_size}},
        },
        ranks=mesh.world,
    )
    stages = plan_stages(network_units(SMALL, FRAMES, TOKENS), mesh.pipe_size, PipelineSection(max_imbalance=9))
    generator = MotionGenerator(SMALL)
    initialise(generator, 0, copy_noise=False)
    body = BodyLosses(representation("smpl24-rotmat"), generator.mean, generator.std, 30.0, FlowSection())
    groups = SyncGroups(tuple(name for name, _ in generator.named_parameters()), (), ())
    face = PipelineFace(FlowObjective(generator, FlowSection(), body), config, mesh, groups, stages)
    total: Counter[str] = Counter()
    with counting_sends(total):
        face.train_step(0, [_batch() for _ in range(MICRO_BATCHES)], MICRO_BATCHES * CLIPS * FRAMES, 1.0)
    return dict(total)


def _batch() -> Batch:
    motion = torch.zeros(CLIPS, FRAMES, SMALL.input_dim)
    return Batch(
        motion=motion,
        noise=motion,
        t=torch.zeros(CLIPS),
        lengths=torch.full((CLIPS,), FRAMES),
        text=torch.zeros(CLIPS, TOKENS, SMALL.ctxt_input_dim),
        text_lengths=torch.full((CLIPS,), TOKENS),
        pooled=torch.zeros(CLIPS, SMALL.vtxt_input_dim),
        drop=torch.zeros(CLIPS, dtype=torch.bool),
    )


def _rank(rank: int, ranks: int, port: int, path: str) -> None:
    """One process; the first rank writes what both sent."""
    import os

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    mesh = Mesh.start(pipe=ranks)
    found = mesh.gather_objects(count_step(mesh))
    if mesh.is_first:
        Path(path).write_text(json.dumps(found))
    mesh.stop()

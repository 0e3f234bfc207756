"""When each stage of a real pipeline computes, written down by its engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.config.pipeline import PipelineSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.temporal import build
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.pipeline_engine import PipelineFace
from ds_hymotion.parallel.stage_engine import StagedFace, StageEngine
from ds_hymotion.parallel.stages import ChunkPlan, network_units, plan_stages
from ds_hymotion.parallel.temporal_engine import TemporalFace
from ds_hymotion.reports.measuring.stage_schedules import Costs

KINDS = {
    "ForwardPass": "forward",
    "Forward": "forward",
    "BackwardPass": "backward",
    "Backward": "backward",
    "EncodeState": "state",
    "StateBackward": "state",
    "ReduceStages": "sum",
}
Span = tuple[str, float, float]


@dataclass(frozen=True)
class Load:
    """What is computed: sizes of the network and of a micro-batch.

    Attributes:
        sleeps: seconds that operations last at least, asleep for what they do not compute; None = as they come.
    """

    config: ModelConfig
    micro_batches: int
    clips: int
    frames: int
    tokens: int = 32
    sleeps: Costs | None = None


def timed(kind: type[StageEngine], sleeps: Costs | None) -> type[StageEngine]:
    """An engine that writes down (kind, start, end) of what it computes, in seconds of the machine's clock."""

    def watch(label: str, method: Callable[..., None]) -> Callable[..., None]:
        def call(self: Any, **arguments: Any) -> None:
            start = time.monotonic()
            method(self, **arguments)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if sleeps:
                time.sleep(max(0.0, getattr(sleeps, label, 0.0) - (time.monotonic() - start)))
            self.spans.append((label, start, time.monotonic()))

        return call

    instructions = {
        command: watch(KINDS[command.__name__], method) if command.__name__ in KINDS else method
        for command, method in kind._INSTRUCTION_MAP.items()
    }
    return type("Timed" + kind.__name__, (kind,), {"_INSTRUCTION_MAP": instructions, "spans": []})


def face_of(load: Load, mesh: Mesh) -> StagedFace:
    """A pipeline of the mesh's stages over a fresh network of fixed values, by time if its configuration is."""
    config = load.config
    settings = RunConfig(
        {
            "train_micro_batch_size_per_gpu": load.clips,
            "gradient_accumulation_steps": load.micro_batches,
            "hymotion": {"parallel": {"pipeline": mesh.pipe_size}},
        },
        ranks=mesh.world,
    )
    generator = build(config)
    initialise(generator, 0, copy_noise=False)
    body = BodyLosses(representation("smpl24-rotmat"), generator.mean, generator.std, 30.0, FlowSection())
    objective = FlowObjective(generator, FlowSection(), body)
    groups = SyncGroups(tuple(name for name, _ in generator.named_parameters()), (), ())
    if config.chunk_frames:
        kind = type("Face", (TemporalFace,), {"engine_class": timed(TemporalFace.engine_class, load.sleeps)})
        return kind(objective, settings, mesh, groups, ChunkPlan(config.chunk_networks))
    plan = plan_stages(
        network_units(config, load.frames, load.tokens, load.clips), mesh.pipe_size, PipelineSection(max_imbalance=99)
    )
    kind = type("Face", (PipelineFace,), {"engine_class": timed(PipelineFace.engine_class, load.sleeps)})
    return kind(objective, settings, mesh, groups, plan)


def batch_of(load: Load) -> Batch:
    """A micro-batch of full length."""
    random = torch.Generator().manual_seed(0)
    config, clips = load.config, load.clips
    return Batch(
        motion=torch.randn(clips, load.frames, config.input_dim, generator=random),
        noise=torch.randn(clips, load.frames, config.input_dim, generator=random),
        t=torch.rand(clips, generator=random),
        lengths=torch.full((clips,), load.frames),
        text=torch.randn(clips, load.tokens, config.ctxt_input_dim, generator=random),
        text_lengths=torch.full((clips,), load.tokens),
        pooled=torch.randn(clips, config.vtxt_input_dim, generator=random),
        drop=torch.zeros(clips, dtype=torch.bool),
    )


def measure(load: Load, mesh: Mesh, steps: int, warm_up: int = 1) -> list[list[list[Span]]]:
    """Spans of every step and stage (collective)."""
    face = face_of(load, mesh)
    batches = [batch_of(load) for _ in range(load.micro_batches)]
    valid = load.micro_batches * load.clips * load.frames * mesh.data_size
    own = []
    for step in range(warm_up + steps):
        torch.distributed.barrier()
        face.engine.spans.clear()
        face.train_step(step, batches, valid, 1.0)
        own.append(list(face.engine.spans))
    every = mesh.gather_objects(own[warm_up:])
    return [list(stages) for stages in zip(*every)]


def measured_bubble(stages: Sequence[Sequence[Span]], with_sum: bool = False) -> float:
    """1 − (forward + backward) / (first forward … last backward of all stages), of one step.

    ``with_sum`` goes on to the end of the sum of tied gradients over stages, where there is one.
    """
    heavy = [[span for span in spans if span[0] in ("forward", "backward")] for spans in stages]
    first = min(start for spans in heavy for _, start, _ in spans)
    last = max(end for spans in (stages if with_sum else heavy) for _, _, end in spans)
    busy = sum(end - start for spans in heavy for _, start, end in spans)
    return 1 - busy / (len(stages) * (last - first))


def measured_costs(steps: Sequence[Sequence[Sequence[Span]]]) -> Costs:
    """Median seconds of each kind; a state is half of its two operations together."""
    seconds = {
        kind: [e - s for stages in steps for spans in stages for k, s, e in spans if k == kind] for kind in _USED
    }
    forward, backward, state = (median(seconds[kind]) if seconds[kind] else 0.0 for kind in _USED)
    return Costs(forward, backward, backward / 2, state)


_USED = ("forward", "backward", "state")


def in_turn(jobs: Sequence[tuple[int, int]], rank: int, total: int, meeting: Path, work: Callable[[int], None]) -> None:
    """Run job number n on the first ``jobs[n][0]`` of ``total`` processes in a group of its own, one after another.

    Args:
        jobs: ranks and port of each.
        meeting: folder where every process leaves a file after each job, for which the others wait.
    """
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    for number, (ranks, port) in enumerate(jobs):
        if rank < ranks:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            work(number)
            groups._release_process_group_references()
            comm.cdb = None
        (meeting / f"job{number}.rank{rank}").touch()
        while len(list(meeting.glob(f"job{number}.rank*"))) < total:
            time.sleep(0.1)

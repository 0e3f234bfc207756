"""The training loop's face over a pipeline by time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch, equal_shapes
from ds_hymotion.flow.objective import FlowObjective
from ds_hymotion.model.chunks import join
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import GeneratorInputs
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.stage_engine import StagedFace, places
from ds_hymotion.parallel.stages import ChunkPlan
from ds_hymotion.parallel.temporal import ChunkModule, TemporalEngine, Work
from ds_hymotion.parallel.tensor import replica_difference


class TemporalFace(StagedFace):
    """The chunks of a batch divided over the pipe axis, with ZeRO 0 or 1.

    All stages make the same batches by themselves and take their chunks out of them. Loss parts are those of a
    stage's own chunks, so that the step's sum over all ranks is the whole.

    Args:
        objective: the network by time with its loss, parameters of other stages on the meta device.
        stages: which stage holds what; the others as for :class:`DataEngine`.
    """

    engine_class = TemporalEngine

    def __init__(
        self, objective: FlowObjective, config: RunConfig, mesh: Mesh, groups: SyncGroups, stages: ChunkPlan
    ) -> None:
        where = places(objective, stages) if stages.stages > 1 else None
        super().__init__(ChunkModule(objective, stages, mesh), objective, config, mesh, groups, None, where)
        self.tied = stages.stages == 1
        self.engine.mesh = mesh
        if self.tied and mesh.pipe_rank > 0 and self.engine.using_bf16_optimizer:
            _count_nothing(self.engine.optimizer, mesh.device)
        self.stage_table = describe_chunks(self.module.generator.config, mesh.pipe_size)

    def _mark(self) -> None:
        """Shared weights count on the first stage."""
        super()._mark()
        if self.module.plan.stages == 1 and self.module.stage_id > 0:
            for parameter in self.network_parameters.values():
                parameter.model_parallel = False  # type: ignore[attr-defined]
                parameter.ds_pipe_replicated = True  # type: ignore[attr-defined]

    @property
    def generator(self) -> StagedChunks:
        """The network over all stages, to be called by all ranks together."""
        return StagedChunks(self.module, self.engine, self.mesh)

    def train_step(self, step: int, batches: list[Batch], valid_frames: int, rate_factor: float) -> Tensor:
        """Optimizer step ``step``; DeepSpeed divides by data ranks, which is taken back."""
        self.begin_step(step, rate_factor)
        self.module.begin(valid_frames, float(self.mesh.data_size))
        self.engine.run(self._work(batches), train=True)
        self.traffic.end_step()
        return self.module.parts

    def evaluate(self, batch: Batch, valid_frames: int) -> Tensor:
        """Summed loss parts [C + 2] of this stage's chunks of an evaluation batch, without gradients."""
        self.module.begin(valid_frames)
        self.engine.run(self._work([batch]), train=False)
        return self.module.parts

    def _work(self, batches: list[Batch]) -> list[Work]:
        """Micro-batches with the rows empty that any stage could not read: all of them divide the same chunks."""
        clean, padded = self.module.generator.config.clean_states, equal_shapes(batches)
        lengths = self.mesh.least(torch.stack([batch.lengths for batch in padded]), self.mesh.pipe_group)
        return [Work.of(replace(batch, lengths=own), clean) for batch, own in zip(padded, lengths)]

    def replica_difference(self) -> float:
        """How far the stages' copies of shared weights have drifted apart anywhere, 0 if not at all (collective)."""
        if not self.tied:
            return 0.0
        copies = CutPlan(self.mesh.pipe_size)
        apart = replica_difference(self.parameters.items(), copies, self.mesh.pipe_group)
        return max(self.mesh.gather_objects(apart))


class StagedChunks(nn.Module):
    """Calls like a :class:`MotionGenerator`, for a sampler; all ranks of a pipeline pass the same arguments."""

    def __init__(self, module: ChunkModule, engine: TemporalEngine, mesh: Mesh) -> None:
        super().__init__()
        self.config = module.generator.config
        self.null_ctxt_input = torch.empty(0, device=mesh.device)
        self._engine = engine
        self._mesh = mesh

    def forward(self, *inputs: Tensor) -> Tensor:
        """fp32 velocity [B, L, C] on every rank, of what :meth:`MotionGenerator.forward` takes."""
        work = Work(GeneratorInputs(*inputs))
        self._engine.run([work], train=False)
        assert work.velocity is not None and work.pieces is not None
        whole = join(work.velocity.float(), work.pieces, work.inputs.motion)
        dist.all_reduce(whole, group=self._mesh.pipe_group)
        return whole


def describe_chunks(config: ModelConfig, stages: int) -> str:
    """What is cut, and what crosses."""
    halo = f", each sees {config.halo_frames} frames more" if config.halo_frames else ""
    weights = "one network for all" if config.chunk_networks == 1 else "a network for each"
    return (
        f"{stages} pipeline stages by time: chunks of {config.chunk_frames} frames{halo}, {weights}; states of "
        f"{config.state_dim} values cross"
    )


def _count_nothing(optimizer: Any, device: torch.device) -> None:
    """BF16_Optimizer fails on a norm of no gradient at all, which a stage of shared weights has."""
    stock = optimizer.get_grads_for_norm

    def gradients(for_clipping: bool = False) -> Any:
        found = stock(for_clipping)
        return found if for_clipping else (found[0] or [torch.zeros(1, device=device)], found[1])

    optimizer.get_grads_for_norm = gradients

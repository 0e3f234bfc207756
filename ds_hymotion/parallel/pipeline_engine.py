"""The training loop's face over DeepSpeed's pipeline engine."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch, equal_shapes
from ds_hymotion.flow.objective import FlowObjective, Targets, noised_inputs
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.joint_head import whole_velocity
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.pipeline import StageModule
from ds_hymotion.parallel.stage_engine import MicroBatch, StagedFace, StageEngine, places
from ds_hymotion.parallel.stages import StagePlan


class PipelineFace(StagedFace):
    """The network's layers divided over the pipe axis: DeepSpeed's pipeline engine with ZeRO 0 or 1.

    The accumulation of the JSON is the number of micro-batches that are under way at once. First and last stage make
    the same batches by themselves; the stages between need none. Loss parts are zero on every stage but the last, so
    that the step's sum over all ranks brings them everywhere.

    Args:
        objective: the network with its loss, parameters of other stages on the meta device.
        config: the checked configuration.
        mesh: this rank's place.
        groups: which parameters are averaged every step.
        stages: which stage holds what.
        plan: how the network's tensors are cut over the model axis.
        where: stage and shape of every parameter of all ranks, where experts are divided over them.
    """

    def __init__(
        self,
        objective: FlowObjective,
        config: RunConfig,
        mesh: Mesh,
        groups: SyncGroups,
        stages: StagePlan,
        plan: CutPlan | None = None,
        where: dict[str, tuple[int, tuple[int, ...]]] | None = None,
    ) -> None:
        where = where or places(objective, stages)
        super().__init__(StageModule(objective, stages, mesh), objective, config, mesh, groups, plan, where)
        self.reads_batches = self.engine.is_first_stage() or self.engine.is_last_stage()
        self.in_flight = min(stages.stages - mesh.pipe_rank, self.accumulation)
        self.stage_table = describe_stages(stages, self.accumulation)

    def _initialize(self, objective: FlowObjective, settings: dict[str, Any], parameters: list[dict[str, Any]]) -> Any:
        anchor = self.module.anchor
        return super()._initialize(objective, settings, parameters if anchor is None else [{"params": [anchor]}])

    @property
    def generator(self) -> StagedGenerator:
        """The network over all stages, to be called by all ranks together."""
        return StagedGenerator(self.module, self.engine, self.mesh)

    def train_step(self, step: int, batches: list[Batch], valid_frames: int, rate_factor: float) -> Tensor:
        """Optimizer step ``step`` over this pipeline's micro-batches, which are padded to one shape.

        Every step announces its shape to the next stage, so it may change from step to step and differ between
        pipelines. DeepSpeed divides the loss by micro-batches and data ranks: both divisions are taken back.
        """
        self.begin_step(step, rate_factor)
        self.module.begin(valid_frames, float(self.mesh.data_size * self.accumulation))
        self.engine.train_micro_batches(self._micro_batches(batches))
        self.traffic.end_step()
        return self._parts()

    def evaluate(self, batch: Batch | None, valid_frames: int) -> Tensor:
        """Summed loss parts [C + 2] of an evaluation batch, without gradients; zero on every stage but the last.

        A stage between the first and the last may give None.
        """
        self.module.begin(valid_frames)
        self.engine.infer([((), ())] if batch is None else self._micro_batches([batch]), with_loss=True)
        return self._parts()

    def _parts(self) -> Tensor:
        parts = self.module.parts
        channels = self.objective.generator.config.input_dim
        return torch.zeros(channels + 2, device=self.mesh.device) if parts is None else parts

    def _micro_batches(self, batches: list[Batch]) -> list[MicroBatch]:
        first, last = self.engine.is_first_stage(), self.engine.is_last_stage()
        experts = bool(self.objective.generator.config.expert_names)
        return [
            (noised_inputs(batch, experts=experts).given if first else (), tuple(Targets.of(batch)) if last else ())
            for batch in map(self.readable, equal_shapes(batches))
        ]


class StagedGenerator(nn.Module):
    """Calls like a :class:`MotionGenerator`, for a sampler; all ranks of a pipeline pass the same arguments.

    Rows are sent as several micro-batches where they divide, so that stages work at once.
    """

    def __init__(self, module: StageModule, engine: StageEngine, mesh: Mesh) -> None:
        super().__init__()
        self.module = module
        self.config = module.generator.config
        self.null_ctxt_input = torch.empty(0, device=mesh.device)
        self._engine = engine
        self._mesh = mesh

    def forward(self, *inputs: Tensor) -> Tensor:
        """fp32 velocity [B, L, C] on every rank, of what :meth:`MotionGenerator.forward` takes."""
        first, last = self._engine.is_first_stage(), self._engine.is_last_stage()
        rows = len(inputs[0])
        size = rows // math.gcd(rows, self._engine.num_stages) if rows else 1
        chunks = zip(*(value.split(size) for value in inputs))
        with whole_velocity(self.module):
            outputs = self._engine.infer([(tuple(chunk) if first else (), ()) for chunk in chunks], with_loss=False)
        whole = torch.empty(inputs[0].shape, device=self._mesh.device)
        if last:
            whole = torch.cat([velocity for velocity, _ in outputs]).float()
        return self._mesh.share_over_pipe(whole, self._engine.num_stages - 1)


def describe_stages(stages: StagePlan, micro_batches: int) -> str:
    """The stages, and the share of time that one of them waits: (p − 1)/(m + p − 1) for m micro-batches."""
    bubble = (stages.stages - 1) / (micro_batches + stages.stages - 1)
    return (
        f"{stages.stages} pipeline stages, {micro_batches} micro-batch(es): costliest stage {stages.imbalance:.2f} "
        f"times the mean, bubble {bubble:.0%} if even\n{stages.table()}"
    )

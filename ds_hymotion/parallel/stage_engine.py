"""DeepSpeed's pipeline engine as this package's pipelines use it, and what their faces share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import InferenceSchedule
from torch import Tensor, nn

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.flow.objective import FlowObjective
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.eight_bit import optimizer_of
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.experts import MovingGroups
from ds_hymotion.parallel.gradient_sync import GradientSync
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.stages import ChunkPlan, StagePlan
from ds_hymotion.parallel.tensor import mark

# Whole tensors cross stage boundaries; activations are recomputed by hymotion.model.checkpoint_blocks.
PIPELINE = {
    "pipe_partitioned": False,
    "grad_partitioned": False,
    "use_reentrant": False,
    "activation_checkpoint_interval": 0,
}

MicroBatch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


class StageEngine(PipelineEngine):
    """DeepSpeed's pipeline engine without what the training loop does itself."""

    sync: GradientSync
    moving: MovingGroups | None = None
    plain_norm = float("nan")

    def _aggregate_total_loss(self) -> Tensor:
        """No reduction: the loss travels with the step's own."""
        return self.agg_loss

    def allreduce_gradients(self, *arguments: Any, **named: Any) -> None:
        """As the gradient sync has it; ``_bf16_reduce_grads`` is its twin for BF16_Optimizer."""
        with self.sync.reducing():
            super().allreduce_gradients(*arguments, **named)

    def _bf16_reduce_grads(self) -> None:
        with self.sync.reducing():
            super()._bf16_reduce_grads()

    def _take_model_step(self, lr_kwargs: Any) -> None:
        """As the gradient sync has it; notes the norm first, which no optimizer does in fp32 without ZeRO."""
        if self.moving:
            self.moving.clear_resting()
        with self.sync.moving():
            if not self.zero_optimization() and not self.bfloat16_enabled():
                self.plain_norm = self._norm_without_zero()
            super()._take_model_step(lr_kwargs)

    def _norm_without_zero(self) -> float:
        """The norm over all stages; of experts that are divided over data ranks, each counts once."""
        counted = [p for p in self.module.parameters() if p.grad is not None and p.model_parallel]
        spread = [p for p in counted if not getattr(p, "allreduce", True)]
        both = ([p for p in counted if getattr(p, "allreduce", True)], spread)
        squares = torch.stack([torch.nn.utils.get_total_norm([p.grad for p in part]).float() for part in both]).square()
        squares = squares.to(self.device)
        torch.distributed.all_reduce(squares, group=self.grid.get_model_parallel_group())
        if self.has_moe_layers:
            own = squares[1:].contiguous()
            torch.distributed.all_reduce(own, group=self.grid.get_data_parallel_group())
            squares[1] = own[0] * self.module.objective.expert_axis.ep_size / self.grid.get_data_parallel_world_size()
        return float(squares.sum().sqrt())

    def train_micro_batches(self, micro_batches: Sequence[MicroBatch]) -> None:
        """One optimizer step. DeepSpeed's own event for its monitors is muted: it would be a loss that no rank has."""
        self.reset_activation_shape()
        enabled, self.monitor.enabled = self.monitor.enabled, False
        try:
            self.train_batch(iter(micro_batches))
        finally:
            self.monitor.enabled = enabled

    @torch.no_grad()
    def infer(self, micro_batches: Sequence[MicroBatch], with_loss: bool) -> list[Any]:
        """Send micro-batches of one shape through the stages; returns their outputs on the last stage, else []."""
        self.reset_activation_shape()
        training, self._compute_loss, self.total_loss = self.module.training, with_loss, None
        self.module.eval()
        self.set_dataiterator(iter(micro_batches))
        self._exec_schedule(InferenceSchedule(len(micro_batches), self.num_stages, self.stage_id))
        self.module.train(training)
        return self.fwd_outputs


@contextmanager
def pipeline_class(kind: type[PipelineEngine]) -> Iterator[None]:
    """Inside, ``deepspeed.initialize`` makes pipeline engines of this class; it offers no argument for that."""
    stock = deepspeed.PipelineEngine
    deepspeed.PipelineEngine = kind
    try:
        yield
    finally:
        deepspeed.PipelineEngine = stock


def places(objective: FlowObjective, stages: StagePlan | ChunkPlan) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Stage and whole shape of every trained parameter of the network, by released name."""
    return {
        name: (stages.stage_of(name), tuple(parameter.shape))
        for name, parameter in objective.generator.named_parameters()
        if parameter.requires_grad
    }


class StagedFace(DataEngine):
    """A :class:`DataEngine` whose module is a part of the network.

    Args:
        module: a ``PipelineModule`` that holds ``objective``; further ones as for :class:`DataEngine`.
    """

    engine_class = StageEngine

    def __init__(
        self,
        module: Any,
        objective: FlowObjective,
        config: RunConfig,
        mesh: Mesh,
        groups: SyncGroups,
        plan: CutPlan | None,
        where: dict[str, tuple[int, tuple[int, ...]]] | None,
    ) -> None:
        self.module = module
        self._plan = plan or CutPlan()
        super().__init__(objective, config, mesh, groups, plan, where)
        self.engine.sync, self.engine.moving = self.sync, self.moving

    def _root(self, objective: FlowObjective) -> nn.Module:
        return self.module

    def _mark(self) -> None:
        mark(self.network_parameters.items(), self._plan, self.mesh.model_rank)

    def _initialize(self, objective: FlowObjective, settings: dict[str, Any], parameters: list[dict[str, Any]]) -> Any:
        self._mark()
        settings, optimizer = optimizer_of(settings)
        with pipeline_class(self.engine_class):
            engine, *_ = deepspeed.initialize(
                model=self.module,
                model_parameters=parameters,
                optimizer=optimizer,
                config={**settings, "pipeline": PIPELINE},
                dist_init_required=False,
            )
        assert type(engine) is self.engine_class
        return engine

    @property
    def objective(self) -> FlowObjective:
        return self.module.objective

    @property
    def called_modules(self) -> tuple[nn.Module, nn.Module]:
        return self.module, self.module

    @property
    def gradient_norm(self) -> float:
        """Norm of the last step's gradient before clipping, over all stages."""
        norm = self.engine.get_global_grad_norm()
        return self.engine.plain_norm if norm is None else float(norm)

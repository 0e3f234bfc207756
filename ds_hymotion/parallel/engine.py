"""One face over DeepSpeed's engines: a training step, an evaluation, the learning rate, and states by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ds_hymotion.config import RunConfig
from ds_hymotion.data.batches import Batch
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.states import ParameterStates
from ds_hymotion.parallel.tensor import replica_difference
from ds_hymotion.training.objective import FlowObjective

PREFIX = "generator."


class DataEngine:
    """All blocks on every rank, batches divided over the data axis, tensors cut over the model axis or whole:
    DeepSpeed's plain engine with ZeRO 0 to 2.

    Args:
        objective: the network with its loss, equal on all data ranks.
        config: the checked configuration.
        mesh: this rank's place.
        plan: how the network's tensors are cut over the model axis.
    """

    reads_batches = True
    in_flight = 1
    stage_table = ""

    def __init__(self, objective: FlowObjective, config: RunConfig, mesh: Mesh, plan: CutPlan | None = None) -> None:
        import deepspeed

        self.mesh = mesh
        self.parameters = {
            name.removeprefix(PREFIX): parameter
            for name, parameter in objective.named_parameters()
            if parameter.requires_grad
        }
        self.engine, *_ = deepspeed.initialize(
            model=objective,
            model_parameters=list(self.parameters.values()),
            config=engine_settings(config, mesh),
            mpu=mesh.mpu,
            dist_init_required=False,
        )
        self.accumulation = int(self.engine.gradient_accumulation_steps())
        self.full_rate = float(self.engine.basic_optimizer.param_groups[0]["lr"])
        self._plain_norm = float("nan")
        self.states = ParameterStates(self.engine, self.parameters, mesh, plan)

    @property
    def called_modules(self) -> tuple[nn.Module, nn.Module]:
        """What runs once per micro-batch, and the part of it before the loss."""
        return self.objective, self.objective.generator

    @property
    def generator(self) -> nn.Module:
        """The network, to be called like a :class:`MotionGenerator`."""
        return self.objective.generator

    @property
    def objective(self) -> FlowObjective:
        """The module on this rank."""
        return self.engine.module

    def train_step(self, batches: list[Batch], valid_frames: int, rate_factor: float) -> torch.Tensor:
        """One optimizer step over this rank's micro-batches; returns its summed loss parts [C + 2].

        The engine averages gradients over the data ranks and over micro-batches, the loss is already normalised by
        the whole step: both divisions are taken back.
        """
        assert len(batches) == self.accumulation
        for group in self.engine.basic_optimizer.param_groups:
            group["lr"] = self.full_rate * rate_factor
        parts: torch.Tensor | None = None
        for batch in batches:
            loss, part = self.engine(batch.to(self.mesh.device), valid_frames)
            self.engine.backward(loss * (self.mesh.data_size * self.accumulation))
            if not self.states.partitioned:
                self._plain_norm = self._norm_without_zero()
            self.engine.step()
            parts = part if parts is None else parts + part
        assert parts is not None
        return parts

    def _norm_without_zero(self) -> float:
        """The norm over the whole network, tensors that all model ranks hold counted once."""
        counted = [
            p.grad for p in self.parameters.values() if p.grad is not None and getattr(p, "model_parallel", True)
        ]
        norm = torch.nn.utils.get_total_norm(counted)
        if self.mesh.model_size > 1:
            norm = self.mesh.sum_over_model(norm.float().square()).sqrt()
        return float(norm)

    @property
    def gradient_norm(self) -> float:
        """Norm of the last step's gradient before clipping."""
        norm = self.engine.get_global_grad_norm()
        return self._plain_norm if norm is None else float(norm)

    @property
    def loss_scale(self) -> float:
        """The current fp16 loss scale, 1 in other precisions."""
        return float(getattr(self.engine.optimizer, "cur_scale", 1.0))

    def scaler_state(self) -> dict[str, Any]:
        """The dynamic fp16 loss scale as a JSON-able object; empty in other precisions."""
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        names = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
        return {name: getattr(scaler, name) for name in names if self.engine.fp16_enabled() and hasattr(scaler, name)}

    def restore_scaler(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`scaler_state`; without effect in other precisions."""
        if self.engine.fp16_enabled():
            for name, value in state.items():
                setattr(self.engine.optimizer.loss_scaler, name, value)

    @torch.no_grad()
    def evaluate(self, batch: Batch, valid_frames: int) -> torch.Tensor:
        """Summed loss parts [C + 2] of an evaluation batch, without gradients."""
        objective = self.objective
        training = objective.training
        objective.eval()
        try:
            return objective(batch.to(self.mesh.device), valid_frames)[1]
        finally:
            objective.train(training)

    def replica_difference(self) -> float:
        """How far tensors that all tensor ranks hold have drifted apart, 0 if not at all (collective)."""
        return replica_difference(self.parameters.items(), self.states.plan, self.mesh.model_group)

    def memory_bytes(self) -> int:
        """Peak bytes allocated on this rank's GPU; 0 without one."""
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0

    def write_events(self, events: list[tuple[str, float, int]]) -> None:
        """Send scalars to the monitors the JSON names (TensorBoard, CSV, wandb)."""
        if self.engine.monitor.enabled and self.mesh.is_first:
            self.engine.monitor.write_events(events)


def engine_settings(config: RunConfig, mesh: Mesh) -> dict[str, Any]:
    """What DeepSpeed is given: the JSON without our section, with what a CPU needs."""
    settings = {**config.deepspeed, "steps_per_print": None}
    optimizer = {**settings["optimizer"], "params": dict(settings["optimizer"]["params"])}
    offload = isinstance(settings.get("zero_optimization"), dict) and settings["zero_optimization"].get(
        "offload_optimizer"
    )
    if mesh.device.type == "cpu" and optimizer["type"] in ("Adam", "AdamW") and not offload:
        optimizer["params"]["torch_adam"] = True
    settings["optimizer"] = optimizer
    if config.dtype == "bf16":
        settings["data_types"] = {"grad_accum_dtype": "fp32", **settings.get("data_types", {})}
    return settings

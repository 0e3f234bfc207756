"""One face over DeepSpeed's engines: a training step, an evaluation, the learning rate, and states by name."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ds_hymotion.config.deepspeed_keys import offloads
from ds_hymotion.config.experts import ExpertsSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch
from ds_hymotion.data.expert_owners import owned_experts
from ds_hymotion.data.plan import Step
from ds_hymotion.flow.objective import FlowObjective
from ds_hymotion.model.experts import ExpertGenerator, expert_of
from ds_hymotion.parallel.cpu_adam import NO_COMPILER
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.deepspeed_check import check_with_deepspeed
from ds_hymotion.parallel.eight_bit import optimizer_of
from ds_hymotion.parallel.engine_settings import engine_settings
from ds_hymotion.parallel.exchange import Exchange
from ds_hymotion.parallel.experts import MovingGroups, Stubs, expert_groups, mark_expert, owner_of
from ds_hymotion.parallel.gradient_sync import GradientSync
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.partitioned_states import PartitionedStates
from ds_hymotion.parallel.states import ParameterStates, shape_of
from ds_hymotion.parallel.tensor import replica_difference
from ds_hymotion.parallel.traffic import Traffic

if TYPE_CHECKING:
    from ds_hymotion.parallel.expert_axis import ExpertAxis

PREFIX = "generator."


class DataEngine:
    """All blocks on every rank, batches divided over the data axis, tensors cut over the model axis or whole:
    DeepSpeed's plain engine with ZeRO 0 to 3.

    Args:
        objective: the network with its loss, equal on all data ranks.
        config: the checked configuration.
        mesh: this rank's place.
        groups: which parameters are averaged every step; the other trained ones wait, if the configuration says so.
        plan: how the network's tensors are cut over the model axis.
        stages: as for :class:`ParameterStates`; needed where experts are divided over ranks.
    """

    reads_batches = True
    in_flight = 1
    stage_table = ""

    def __init__(
        self,
        objective: FlowObjective,
        config: RunConfig,
        mesh: Mesh,
        groups: SyncGroups,
        plan: CutPlan | None = None,
        stages: dict[str, tuple[int, tuple[int, ...]]] | None = None,
    ) -> None:
        settings = engine_settings(config, mesh)
        check_with_deepspeed(settings, config.name, mesh)
        falls_back = offloads(settings, "offload_optimizer") and settings["optimizer"]["params"].get("torch_adam")
        self.notes = [NO_COMPILER] if falls_back else []
        self.mesh = mesh
        named = dict(objective.named_parameters())
        self.parameters = {name.removeprefix(PREFIX): value for name, value in named.items() if value.requires_grad}
        self.network_parameters = {
            name.removeprefix(PREFIX): value for name, value in named.items() if name.startswith(PREFIX)
        }
        every = config.hymotion.gradient_sync.others_every
        always = {name: value for name, value in self.parameters.items() if name in groups.always or every == 1}
        deferred = {name: value for name, value in self.parameters.items() if name not in always}
        parts = [{"params": list(part.values())} for part in (always, deferred) if part]
        experts = config.hymotion.experts
        self.expert_share = self._spread_experts(objective, experts) if experts.size > 1 else None
        if experts.number:
            parts = self._expert_groups(experts, self._root(objective), config.dtype)
        self.engine = self._initialize(objective, settings, parts)
        if self.expert_share and experts.dispatch == "all_to_all":
            assert isinstance(objective.generator, ExpertGenerator)
            objective.generator.send = Exchange(self.expert_share.sharers, experts.number).send
        self.moving = MovingGroups(self.engine, self.parameters) if experts.number else None
        self.traffic = Traffic(mesh.data_group, self.expert_share and self.expert_share.holders)
        holder = partial(owner_of, number=experts.number, size=experts.size) if experts.size > 1 else None
        states = PartitionedStates if self.engine.zero_optimization_partition_weights() else ParameterStates
        self.states = states(self.engine, self.parameters, mesh, plan, stages, holder)
        names = [name for name in self.states.names if name not in groups.always and every > 1]
        self.sync = GradientSync(self.engine, always, deferred, every, self.traffic, names)
        self.accumulation = int(self.engine.gradient_accumulation_steps())
        self.full_rate = float(self.engine.basic_optimizer.param_groups[0]["lr"])
        self._deferred_factor = config.hymotion.gradient_sync.others_lr_factor
        self._plain_norm = float("nan")
        if deferred or self.moving:
            # Moments of all groups exist from the start: DeepSpeed links them to parameters once, at the first step.
            self.states.prepare([0] * len(parts))

    def _root(self, objective: FlowObjective) -> nn.Module:
        """The module that DeepSpeed is given."""
        return objective

    def _expert_groups(self, experts: ExpertsSection, root: nn.Module, dtype: str) -> list[dict[str, Any]]:
        """Groups of parameters by expert, with stubs in ``root`` where they are needed."""
        held = owned_experts(self.mesh.data_rank, experts.number, experts.size)
        stubs = None
        if self.mesh.pipe_size > 1 or dtype == "bf16":
            present = set(map(expert_of, self.parameters))
            stubs = Stubs([None, *(number for number in held if number not in present)])
            for number, stub in stubs.of.items():
                if experts.size > 1 and number is not None:
                    mark_expert(stub, experts.size)
            root.stubs = stubs
            root.register_forward_hook(lambda _module, _inputs, output: stubs.touch(output))
        return expert_groups(self.parameters, held, experts.size, stubs)

    def _spread_experts(self, objective: FlowObjective, experts: ExpertsSection) -> ExpertAxis:
        """Prepare an objective that holds this rank's experts for DeepSpeed."""
        from ds_hymotion.parallel.expert_axis import ExpertAxis

        assert isinstance(objective.generator, ExpertGenerator)
        for name, parameter in self.parameters.items():
            if expert_of(name) is not None:
                mark_expert(parameter, experts.size)
        objective.expert_axis = ExpertAxis(experts.number, experts.size, self.mesh.model_size)
        return objective.expert_axis

    def _initialize(self, objective: FlowObjective, settings: dict[str, Any], parameters: list[dict[str, Any]]) -> Any:
        """DeepSpeed's engine over groups of ``parameters``."""
        import deepspeed

        settings, optimizer = optimizer_of(settings)
        return deepspeed.initialize(
            model=objective,
            model_parameters=parameters,
            optimizer=optimizer,
            config=settings,
            mpu=self.mesh.mpu,
            dist_init_required=False,
        )[0]

    @torch.no_grad()
    def put_frozen(self, name: str, whole: torch.Tensor) -> None:
        """Set a weight that is not trained, on the ranks that hold it."""
        if name in self.network_parameters:
            self.states.write(self.network_parameters[name], self.states.plan.cut(name, whole, self.mesh.model_rank))

    @property
    def trained_elements(self) -> int:
        """Elements of the trained parameters of this stage."""
        return sum(math.prod(shape_of(parameter)) for parameter in self.parameters.values())

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

    def choose(self, step: Step) -> None:
        """Let the coming train step move what the plan says: trunk and experts; without experts, all there is."""
        if self.moving:
            self.moving.choose(step.trunk, step.experts)
            self.objective.generator.trunk_learns = step.trunk  # type: ignore[assignment]

    def expert_sums(self) -> torch.Tensor:
        """[experts, 2] this rank's loss and frames of every expert since the last call."""
        assert self.objective.expert_sums is not None
        return self.objective.expert_sums.take().to(self.mesh.device)

    def expert_norms(self) -> list[float]:
        """Norm of every expert's gradient in the last step before clipping, 0 for those at rest (collective)."""
        assert self.moving is not None
        squares = torch.zeros(len(self.objective.generator.config.expert_names), device=self.mesh.device)
        for expert, square in self.moving.squares.items():
            holder = self.states.holder(f"experts.{expert}.")
            squares[expert] = square if self.states.partitioned or self.mesh.data_rank == holder else 0.0
        self.mesh.sum_over_all(squares)
        clipped = self.engine.gradient_clipping()
        scale = max(1.0, (self.gradient_norm + 1e-6) / clipped) if clipped else 1.0
        return (squares.sqrt() * scale).tolist()

    @property
    def moved(self) -> set[str]:
        """Names of the parameters that the last step moved."""
        return {name for name in self.sync.stepping if self.moving is None or self.moving.moves(name)}

    def train_step(self, step: int, batches: list[Batch], valid_frames: int, rate_factor: float) -> torch.Tensor:
        """Optimizer step ``step`` (from 0) over this rank's micro-batches; returns its summed loss parts [C + 2].

        The engine averages gradients over the data ranks and over micro-batches, the loss is already normalised by
        the whole step: both divisions are taken back.
        """
        assert len(batches) == self.accumulation
        self.begin_step(step, rate_factor)
        parts: torch.Tensor | None = None
        for index, batch in enumerate(batches):
            last = index == len(batches) - 1
            loss, part = self.engine(self.readable(batch.to(self.mesh.device)), valid_frames)
            self.sync.backward(loss * (self.mesh.data_size * self.accumulation), last)
            if last and self.moving:
                self.moving.clear_resting()
            if last and not self.states.partitioned:
                self._plain_norm = self._norm_without_zero()
            self.sync.step(last)
            parts = part if parts is None else parts + part
        assert parts is not None
        self.traffic.end_step()
        return parts

    def begin_step(self, step: int, rate_factor: float) -> None:
        """Set the learning rate of optimizer step ``step``, and whether the deferred gradients take part in it."""
        groups = self.engine.basic_optimizer.param_groups
        for group in groups:
            group["lr"] = self.full_rate * rate_factor
        if self.sync.deferred:
            groups[-1]["lr"] *= self._deferred_factor
        self.sync.begin(step)

    def _norm_without_zero(self) -> float:
        """The norm over the whole network, tensors that all model ranks hold counted once."""
        counted = {
            name: p.grad
            for name, p in self.sync.stepping.items()
            if p.grad is not None and getattr(p, "model_parallel", True)
        }
        spread = {name for name in counted if self.expert_share and expert_of(name) is not None}
        norm = torch.nn.utils.get_total_norm([grad for name, grad in counted.items() if name not in spread])
        if self.expert_share:
            here = torch.nn.utils.get_total_norm([counted[name] for name in spread]).float().square()
            copies = self.mesh.data_size // self.expert_share.ep_size
            norm = (norm.float().square() + self.mesh.sum_over_data(here) / copies).sqrt()
        if self.mesh.model_size > 1:
            norm = self.mesh.sum_over_model(norm.float().square()).sqrt()
        return float(norm)

    @property
    def gradient_norm(self) -> float:
        """Norm of the gradient that the last step used, before clipping."""
        norm = self.engine.get_global_grad_norm()
        return self._plain_norm if norm is None else float(norm)

    @property
    def skipped(self) -> bool:
        """Whether the last step moved nothing, because gradients overflowed under fp16."""
        return bool(getattr(self.engine.optimizer, "overflow", False))

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
            return objective(self.readable(batch.to(self.mesh.device)), valid_frames)[1]
        finally:
            objective.train(training)

    def readable(self, batch: Batch) -> Batch:
        """``batch`` with the rows empty that any tensor rank could not read: all of them compute the same."""
        if self.mesh.model_size == 1 or not batch.rows:
            return batch
        return replace(batch, lengths=self.mesh.least(batch.lengths, self.mesh.model_group))

    def replica_difference(self) -> float:
        """How far tensors that all tensor ranks hold have drifted apart anywhere, 0 if not at all (collective)."""
        own = replica_difference(self.parameters.items(), self.states.plan, self.mesh.model_group)
        return max(self.mesh.gather_objects(own))

    def write_events(self, events: list[tuple[str, float, int]]) -> None:
        """Send scalars to the monitors the JSON names (TensorBoard, CSV, wandb)."""
        if self.engine.monitor.enabled and self.mesh.is_first:
            self.engine.monitor.write_events(events)

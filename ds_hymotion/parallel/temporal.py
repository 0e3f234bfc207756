"""Pipeline by time: each stage computes some chunks of the motions, and hands a small state to the next stage."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.schedule import OptimizerStep, PipeSchedule, ReduceGrads
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor

from ds_hymotion.data.batches import Batch
from ds_hymotion.flow.objective import FlowObjective, Targets, noised_inputs
from ds_hymotion.model.chunks import Pieces, cut, own_frames
from ds_hymotion.model.generator import GeneratorInputs
from ds_hymotion.model.temporal import ChunkPart, TemporalGenerator
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.pipeline import hollow
from ds_hymotion.parallel.stage_engine import StageEngine
from ds_hymotion.parallel.stages import ChunkPlan
from ds_hymotion.parallel.temporal_schedule import (
    Backward,
    EncodeState,
    Forward,
    LoadChunks,
    RecvState,
    RecvStateGrad,
    ReduceStages,
    SendState,
    SendStateGrad,
    StateBackward,
    TemporalInference,
    TemporalSchedule,
)
from ds_hymotion.parallel.traffic import STAGES

BUCKET = 1 << 24  # numbers per message when stages sum the gradients of weights that they share


@dataclass
class Work:
    """One micro-batch on one stage, and what its instructions leave for each other.

    Attributes:
        inputs, targets: whole motions; no targets where only the velocity is wanted.
        pieces: this stage's chunks.
        received: [lanes, S] states from the stage before, a leaf.
        states: [lanes · depth, S] what each chunk starts from; ``entered`` is the same as a leaf of the network.
        leaving: [lanes, S] states for the next stage; ``leaving_grad`` is what came back for them.
    """

    inputs: GeneratorInputs
    targets: Targets | None = None
    pieces: Pieces | None = None
    received: Tensor | None = None
    states: Tensor | None = None
    entered: Tensor | None = None
    leaving: Tensor | None = None
    leaving_grad: Tensor | None = None
    velocity: Tensor | None = None
    loss: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, clean_states: bool = False) -> Work:
        """A training or evaluation batch; the motions are noised, states made of them or of the clean ones."""
        return cls(noised_inputs(batch, clean_states=clean_states), Targets.of(batch))


class ChunkModule(PipelineModule):
    """What a stage computes: the shared network, or the network of its own chunk.

    Args:
        objective: the network with its loss; parameters that this stage does not hold are taken out.
        plan: which stage holds what.
        mesh: this rank's place.

    Attributes:
        parts: [C + 2] loss parts summed over the micro-batches since :meth:`begin`.
    """

    def __init__(self, objective: FlowObjective, plan: ChunkPlan, mesh: Mesh) -> None:
        self.plan = plan
        self._given = [objective]
        hollow(objective.generator, lambda name: plan.holds(mesh.pipe_rank, name))
        topology = PipeModelDataParallelTopology(mesh.pipe_size, mesh.model_size, mesh.data_size)
        with contextlib.redirect_stdout(io.StringIO()):
            super().__init__(list(range(mesh.pipe_size)), topology=topology)
        self.begin(1)

    def _partition_layers(self, method: str = "") -> None:
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(stage, stage + 1)

    def _build(self) -> None:
        """Take in the objective: DeepSpeed has no layers to build."""
        self.objective = self._given.pop()

    @property
    def generator(self) -> TemporalGenerator:
        """The network with all that this stage holds."""
        generator = self.objective.generator
        assert isinstance(generator, TemporalGenerator)
        return generator

    @property
    def part(self) -> ChunkPart:
        """The network of this stage's chunks."""
        return self.generator.part(self.stage_id)

    def pieces(self, lengths: Tensor) -> Pieces:
        """This stage's chunks of motions of ``lengths`` [B]."""
        return self.generator.divide(lengths, self.num_stages)[self.stage_id]

    def begin(self, valid_frames: int, factor: float = 1.0) -> None:
        """Start a step of ``valid_frames`` over all ranks, its loss to be multiplied by ``factor`` for the engine."""
        device = self.generator.mean.device
        self.parts = torch.zeros(self.generator.config.input_dim + 2, device=device)
        self._valid_frames, self._factor = valid_frames, factor

    def forward(self, inputs: GeneratorInputs, pieces: Pieces, states: Tensor) -> Tensor:
        """Velocity [lanes · depth, chunk_frames, C]."""
        return self.part.velocity(inputs, pieces, states)

    def measure(self, velocity: Tensor, targets: Targets, pieces: Pieces) -> Tensor:
        """The loss of this stage's chunks; its parts are added up."""
        frames, rows = self.generator.config.chunk_frames, pieces.rows.flatten()
        own = Targets(
            cut(targets.motion, pieces, 0, frames),
            cut(targets.noise, pieces, 0, frames),
            targets.t[rows],
            own_frames(targets.lengths, pieces, frames),
        )
        loss, parts = self.objective.measure(velocity, own, self._valid_frames)
        self.parts = self.parts + parts
        return loss * self._factor


class TemporalEngine(StageEngine):
    """Runs :class:`TemporalSchedule`. All sends are asynchronous and all shapes known, so nothing is announced."""

    mesh: Mesh

    def run(self, work: list[Work], train: bool) -> None:
        """Execute one step, or with ``train`` false the forward passes alone."""
        self.work, self._sends = work, []  # type: ignore[var-annotated]
        schedule: type[PipeSchedule] = TemporalSchedule if train else TemporalInference
        training, enabled = self.module.training, self.monitor.enabled
        self.module.train(train)
        self.monitor.enabled = False  # DeepSpeed's own event would be a loss that no rank has
        try:
            with torch.set_grad_enabled(train):
                self._exec_schedule(schedule(len(work), self.num_stages, self.stage_id))
        finally:
            self.module.train(training)
            self.monitor.enabled = enabled
        for handle, _ in self._sends:
            handle.wait()
        self.work, self._sends = [], []

    def _load(self, micro: int) -> None:
        work, part = self.work[micro], self.module.part
        work.pieces = self.module.pieces(work.inputs.lengths)
        device = self.mesh.device
        work.inputs = work.inputs.to(device)
        if work.targets is not None:
            work.targets = Targets(*(value.to(device, non_blocking=True) for value in work.targets))
        work.pieces = work.pieces.to(device)
        work.received = part.first_state(len(work.pieces.rows))

    def _recv_state(self, micro: int) -> None:
        received = self.work[micro].received
        assert received is not None
        dist.recv(received, src=self._rank_of(self.prev_stage), group=self.mesh.pipe_group)

    def _encode_state(self, micro: int) -> None:
        work = self.work[micro]
        assert work.pieces is not None and work.received is not None
        work.received.requires_grad_()
        work.states, work.leaving = self.module.part.states(work.inputs.state_source, work.pieces, work.received)

    def _send_state(self, micro: int) -> None:
        self._send(self.work[micro].leaving, self.next_stage)

    def _forward(self, micro: int) -> None:
        work = self.work[micro]
        assert work.states is not None
        work.entered = work.states.detach().requires_grad_()
        work.velocity = self.module(work.inputs, work.pieces, work.entered)
        if work.targets is not None:
            work.loss = self.module.measure(work.velocity, work.targets, work.pieces)

    def _backward(self, micro: int) -> None:
        work = self.work[micro]
        assert work.loss is not None
        torch.autograd.backward(work.loss)
        work.loss = work.velocity = None
        self._take_gradients()

    def _recv_state_grad(self, micro: int) -> None:
        work = self.work[micro]
        assert work.leaving is not None
        work.leaving_grad = torch.empty_like(work.leaving)
        dist.recv(work.leaving_grad, src=self._rank_of(self.next_stage), group=self.mesh.pipe_group)

    def _state_backward(self, micro: int) -> None:
        work = self.work[micro]
        assert work.states is not None and work.entered is not None and work.leaving is not None
        back = torch.zeros_like(work.leaving) if work.leaving_grad is None else work.leaving_grad
        torch.autograd.backward([work.states, work.leaving], [work.entered.grad, back])
        self._take_gradients()

    def _send_state_grad(self, micro: int) -> None:
        work = self.work[micro]
        assert work.received is not None
        self._send(work.received.grad, self.prev_stage)

    def _reduce_stages(self) -> None:
        if self.module.plan.stages > 1 or self.num_stages == 1:
            return
        if self.using_bf16_optimizer:
            gradients = [value for group in self.optimizer.fp32_groups_gradients for value in group]
        else:
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [parameter.grad for parameter in trained]
        with self.sync.traffic.region(STAGES, {"tied": 1}):
            sum_in_buckets(gradients, self.mesh.pipe_group)

    def _take_gradients(self) -> None:
        """BF16_Optimizer keeps sums in fp32; without this it would see the last backward's alone."""
        if self.using_bf16_optimizer and not self._config.bfloat16_config.immediate_grad_update:
            self.optimizer.update_hp_grads(clear_lp_grads=True)

    def _send(self, value: Tensor | None, stage: int) -> None:
        assert value is not None
        message = value.detach().contiguous()
        self._sends.append((dist.isend(message, dst=self._rank_of(stage), group=self.mesh.pipe_group), message))

    def _rank_of(self, stage: int) -> int:
        return dist.get_global_rank(self.mesh.pipe_group, stage)

    _INSTRUCTION_MAP = {
        LoadChunks: _load,
        RecvState: _recv_state,
        EncodeState: _encode_state,
        SendState: _send_state,
        Forward: _forward,
        Backward: _backward,
        RecvStateGrad: _recv_state_grad,
        StateBackward: _state_backward,
        SendStateGrad: _send_state_grad,
        ReduceStages: _reduce_stages,
        ReduceGrads: PipelineEngine._INSTRUCTION_MAP[ReduceGrads],
        OptimizerStep: PipelineEngine._INSTRUCTION_MAP[OptimizerStep],
    }


@torch.no_grad()
def sum_in_buckets(values: list[Tensor], group: object, limit: int = BUCKET) -> None:
    """Sum tensors in place over a group, many in one message (collective)."""
    start = 0
    while start < len(values):
        stop, size = start, 0
        while stop < len(values) and (stop == start or size + values[stop].numel() <= limit):
            size += values[stop].numel()
            stop += 1
        flat = torch.cat([value.reshape(-1) for value in values[start:stop]])
        dist.all_reduce(flat, group=group)
        for value, part in zip(values[start:stop], flat.split([value.numel() for value in values[start:stop]])):
            value.copy_(part.view_as(value))
        start = stop

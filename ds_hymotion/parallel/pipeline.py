"""Pipeline by layers: the part of the network that one stage holds, and how a micro-batch passes through it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import torch
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from ds_hymotion.flow.objective import FlowObjective, Targets
from ds_hymotion.model.blocks import Stream
from ds_hymotion.model.experts import ExpertGenerator
from ds_hymotion.model.generator import GeneratorInputs, MotionGenerator, drop_condition
from ds_hymotion.model.geometry import Geometry
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.stages import StagePlan
from ds_hymotion.parallel.tensor import mark
from ds_hymotion.parallel.wire import Wire


def hollow(generator: MotionGenerator, held: Callable[[str], bool]) -> None:
    """Take every parameter whose released name is not ``held`` out of a network; its modules stay, unusable."""
    for name, _ in list(generator.named_parameters()):
        if not held(name):
            parent, _, child = name.rpartition(".")
            setattr(generator.get_submodule(parent), child, None)


class StageModule(PipelineModule):
    """One stage: embedding on the first, its blocks, head and loss on the last.

    Inside a stage the stream flows as in the plain network, and masks are built once; it is packed at the stage's end
    only. The parameters keep their released names below ``objective.generator``.

    Args:
        objective: the network with its loss, parameters of other stages on the meta device; they are taken out.
        plan: which stage holds what.
        mesh: this rank's place.

    Attributes:
        anchor: [1] a trained zero on a stage that trains nothing else, as where adapters are elsewhere: its optimizer
            needs a parameter, the engine's backward pass and its norms a gradient. None on other stages.
        parts: [C + 2] loss parts summed over the micro-batches since :meth:`begin`; None before the first one and on
            every stage but the last.
    """

    def __init__(self, objective: FlowObjective, plan: StagePlan, mesh: Mesh) -> None:
        self.plan = plan
        self._given = [objective]
        network = objective.generator.motion_transformer
        hollow(objective.generator, lambda name: plan.stage_of(name) == mesh.pipe_rank)
        topology = PipeModelDataParallelTopology(mesh.pipe_size, mesh.model_size, mesh.data_size)
        with contextlib.redirect_stdout(io.StringIO()):
            super().__init__(list(plan.units), topology=topology, loss_fn=self.measure)
        start = sum(plan.split[: self.stage_id])
        blocks = [*network.double_blocks, *network.single_blocks]
        end = min(start + plan.split[self.stage_id], len(blocks))  # experts' own blocks are not among them
        self._blocks = [(index, blocks[index]) for index in range(start, end)]
        self.parts: Tensor | None = None
        self._valid_frames = 1
        self._factor = 1.0

    def _partition_layers(self, method: str = "") -> None:
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(self.plan.bounds[stage], self.plan.bounds[stage + 1])

    def _build(self) -> None:
        """Take in the objective, which has the layers inside: DeepSpeed has none to build."""
        self.objective = self._given.pop()
        self.anchor: nn.Parameter | None = None
        if not any(parameter.requires_grad for parameter in self.objective.parameters()):
            self.anchor = nn.Parameter(torch.zeros(1))
            mark([("anchor", self.anchor)], CutPlan(), self._topo.get_coord(self.global_rank).model)
        for parameter in self.parameters():
            parameter.ds_pipe_replicated = False

    @property
    def generator(self) -> MotionGenerator:
        """The hollow network."""
        return self.objective.generator

    def begin(self, valid_frames: int, factor: float = 1.0) -> None:
        """Start a step of ``valid_frames`` over all ranks, its loss to be multiplied by ``factor`` for the engine."""
        self.parts, self._valid_frames, self._factor = None, valid_frames, factor

    def forward(self, received: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """From :class:`GeneratorInputs` or the wire to the wire, or on the last stage to (velocity, lengths)."""
        generator = self.generator
        learns = not isinstance(generator, ExpertGenerator) or generator.trunk_learns
        with torch.set_grad_enabled(torch.is_grad_enabled() and learns):
            stream, geometry, lengths, text_lengths, expert = self._trunk(received)
        if not learns and self.stage_id > 0:  # the stage before waits for a gradient: zero, of an empty slice's sum
            stream = stream._replace(motion=stream.motion + received[0][:0].sum())
        if self.stage_id < self.num_stages - 1:
            return Wire(stream, lengths, text_lengths, expert).pack()
        if expert is None:
            return generator.motion_transformer.head(stream), lengths
        assert isinstance(generator, ExpertGenerator)
        return generator.tails(stream, geometry, lengths, expert), lengths

    def _trunk(self, received: tuple[Tensor, ...]) -> tuple[Stream, Geometry, Tensor, Tensor, Tensor | None]:
        """This stage's shared blocks: the stream behind them, its geometry, lengths, text lengths and experts."""
        network, config = self.generator.motion_transformer, self.generator.config
        expert: Tensor | None = None
        if self.stage_id == 0:
            inputs = GeneratorInputs(*received[: len(GeneratorInputs._fields) - 2])
            expert = received[-1] if config.expert_names else None
            lengths, text_lengths = inputs.lengths, inputs.text_lengths
            frames, tokens = inputs.motion.shape[1], inputs.text.shape[1]
            geometry = Geometry.build(frames, tokens, lengths, text_lengths, config, inputs.motion.device)
            null = self.generator.null_ctxt_input, self.generator.null_vtxt_feat
            text, pooled = drop_condition(inputs.text, inputs.pooled, inputs.drop, *null)
            stream = network.embed(inputs.motion, text, pooled, inputs.t, geometry)
        else:
            stream, lengths, text_lengths, expert = Wire.unpack(received[0], received[1], bool(config.expert_names))
            frames, tokens = stream.motion.shape[1], stream.text.shape[1]
            geometry = Geometry.build(frames, tokens, lengths, text_lengths, config, lengths.device)
        for index, block in self._blocks:
            stream = network.run_block(index, block, stream, geometry)
        if self.anchor is not None:
            stream = stream._replace(motion=stream.motion + 0.0 * self.anchor)
        return stream, geometry, lengths, text_lengths, expert

    def measure(self, outputs: tuple[Tensor, Tensor], labels: tuple[Tensor, ...]) -> Tensor:
        """The loss that the engine differentiates; a row that either end could not read counts for nothing."""
        velocity, lengths = outputs
        targets = Targets(*labels)
        targets = targets._replace(lengths=torch.minimum(targets.lengths, lengths))
        loss, parts = self.objective.measure(velocity, targets, self._valid_frames)
        self.parts = parts if self.parts is None else self.parts + parts
        return loss * self._factor

"""The network by time: a motion in chunks, and a small state from chunk to chunk that is all they see of each other.

The state is made of the network's *input*, so that states run ahead of the heavy computation and all chunks can be
computed at once; by option of the clean motion, which training knows, and sampling only chunk after chunk. It enters
through the adapter by a projection that starts at zero: a fresh one is the plain network on each chunk, at the chunk's
own positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_hymotion.errors import UserError
from ds_hymotion.model.chunks import NOWHERE, Pieces, aligned, cut, join, packed
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.experts import ExpertGenerator
from ds_hymotion.model.generator import GeneratorInputs, MotionGenerator, drop_condition
from ds_hymotion.model.geometry import Geometry
from ds_hymotion.model.initialisation import own_name
from ds_hymotion.model.layers import dtype_of
from ds_hymotion.model.network import MotionTransformer

KERNEL = 5
STATE_PARTS = ("state_encoder.", "state_projection.")


class StateEncoder(nn.Module):
    """The next state [R, S] from the last frames of a chunk [R, n, channels] and the previous state [R, S]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, width, KERNEL, padding=KERNEL // 2)
        self.mix = nn.Linear(width, width)
        self.carry = nn.Linear(width, width)

    def features(self, tail: Tensor) -> Tensor:
        """[R, S] of frames alone."""
        hidden = self.convolution(tail.to(self.convolution.weight.dtype).transpose(1, 2))
        return self.mix(F.silu(hidden).mean(-1))

    def forward(self, features: Tensor, previous: Tensor) -> Tensor:
        return torch.tanh(features + self.carry(previous))


class ChunkPart(nn.Module):
    """What computes chunks: a network with its null condition and its states."""

    config: ModelConfig
    motion_transformer: MotionTransformer
    null_vtxt_feat: nn.Parameter
    null_ctxt_input: nn.Parameter
    state_encoder: StateEncoder
    state_projection: nn.Linear

    def states(self, motion: Tensor, pieces: Pieces, received: Tensor) -> tuple[Tensor, Tensor]:
        """The state that each chunk starts from, [lanes · depth, S], and those that leave the lanes, [lanes, S].

        Args:
            motion: [B, L, C] what states are made of.
            received: [lanes, S] what comes from the chunks before.
        """
        lanes, depth = pieces.starts.shape
        count = self.config.state_frames
        tails = cut(motion, pieces, self.config.chunk_frames - count, count)
        features = self.state_encoder.features(tails).view(lanes, depth, -1)
        state, used = received, []
        for place in range(depth):
            start = pieces.starts[:, place, None]
            state = torch.where(start == 0, torch.zeros_like(state), state)
            used.append(state)
            state = torch.where(start == NOWHERE, state, self.state_encoder(features[:, place], state))
        return torch.stack(used, 1).flatten(0, 1), state

    def velocity(self, inputs: GeneratorInputs, pieces: Pieces, states: Tensor) -> Tensor:
        """Velocity [lanes · depth, chunk_frames, C] of each chunk, from its frames, its halo and its state."""
        config, network, rows = self.config, self.motion_transformer, pieces.rows.flatten()
        text, pooled = drop_condition(
            inputs.text[rows], inputs.pooled[rows], inputs.drop[rows], self.null_ctxt_input, self.null_vtxt_feat
        )
        halo, frames = config.halo_frames, config.halo_frames + config.chunk_frames
        starts = pieces.starts.flatten() - halo
        lengths, text_lengths = inputs.lengths[rows], inputs.text_lengths[rows]
        geometry = Geometry.build(frames, text.shape[1], lengths, text_lengths, config, text.device, starts)
        motion = cut(inputs.motion, pieces, -halo, frames)
        stream = network.embed(motion, text, pooled, inputs.t[rows], geometry)
        stream = stream._replace(adapter=stream.adapter + self.state_projection(states)[:, None])
        return network.run(stream, geometry)[:, halo:]

    def first_state(self, lanes: int) -> Tensor:
        """[lanes, S] zeros: nothing came before."""
        weight = self.state_projection.weight
        return torch.zeros(lanes, self.config.state_dim, dtype=dtype_of(self.state_projection), device=weight.device)

    def _add_states(self, config: ModelConfig) -> None:
        self.state_encoder = StateEncoder(config.input_dim, config.state_dim)
        self.state_projection = nn.Linear(config.state_dim, config.feat_dim, bias=False)


class Specialist(ChunkPart):
    """The network of one later chunk."""

    def __init__(self, config: ModelConfig, checkpoint_blocks: int, checkpoint_kinds: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.motion_transformer = MotionTransformer(config, checkpoint_blocks, checkpoint_kinds)
        self.null_vtxt_feat = nn.Parameter(torch.zeros(1, 1, config.vtxt_input_dim))
        self.null_ctxt_input = nn.Parameter(torch.zeros(1, 1, config.ctxt_input_dim))
        self._add_states(config)


class TemporalGenerator(MotionGenerator, ChunkPart):
    """A :class:`MotionGenerator` by time, called like one: all chunks of all motions at once, on one device.

    Its first network has the released names; the networks of later chunks, where each has its own, are
    ``specialists.<i>``.
    """

    def __init__(
        self, config: ModelConfig, checkpoint_blocks: int = 0, checkpoint_kinds: Collection[str] = ("double", "single")
    ) -> None:
        super().__init__(config, checkpoint_blocks, checkpoint_kinds)
        self._add_states(config)
        others = range(config.chunk_networks - 1)
        self.specialists = nn.ModuleList([Specialist(config, checkpoint_blocks, checkpoint_kinds) for _ in others])

    def part(self, chunk: int) -> ChunkPart:
        """The network of a chunk."""
        return self if chunk == 0 or not len(self.specialists) else self.specialists[chunk - 1]  # type: ignore[return-value]

    def divide(self, lengths: Tensor, stages: int) -> list[Pieces]:
        """The chunks that each of ``stages`` computes of motions of ``lengths`` [B].

        Raises:
            UserError: a motion is longer than the networks of its chunks reach.
        """
        counts, frames, networks = lengths.tolist(), self.config.chunk_frames, self.config.chunk_networks
        if networks == 1:
            return packed(counts, frames, stages)
        if max(counts, default=0) > frames * networks:
            raise UserError(
                f"a motion of {max(counts)} frames: this network has {networks} chunks of {frames} frames with weights "
                f"of their own; use at most {frames * networks}"
            )
        return aligned(counts, frames, networks)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Velocity [B, L, input_dim], zero behind each motion's end; see :meth:`MotionGenerator.forward`."""
        given = GeneratorInputs(*inputs)
        if not len(given.motion) or not given.motion.shape[1]:  # one empty row, so that every weight has a gradient
            one = [value.new_zeros(1, *[max(1, size) for size in value.shape[1:]]) for value in inputs]
            return self.forward(*one)[: len(given.motion), : given.motion.shape[1]]
        velocity: Tensor | None = None
        state: Tensor | None = None
        for chunk, pieces in enumerate(self.divide(given.lengths, self.config.chunk_networks)):
            part, pieces = self.part(chunk), pieces.to(given.motion.device)
            received = part.first_state(len(pieces.rows)) if state is None else state
            states, state = part.states(given.state_source, pieces, received)
            joined = join(part.velocity(given, pieces, states), pieces, given.motion)
            velocity = joined if velocity is None else velocity + joined
        assert velocity is not None and state is not None
        return velocity + 0.0 * state.sum()


def build(
    config: ModelConfig, checkpoint_blocks: int = 0, checkpoint_kinds: Collection[str] = ("double", "single")
) -> MotionGenerator:
    """The network that a configuration describes: of whole motions, with experts, or by time."""
    kind: type[MotionGenerator] = ExpertGenerator if config.expert_names else MotionGenerator
    if config.chunk_frames:
        kind = TemporalGenerator
    return kind(config, checkpoint_blocks, checkpoint_kinds)


def is_state(name: str) -> bool:
    """Whether a parameter makes or reads states between chunks."""
    return own_name(name).startswith(STATE_PARTS)


def with_states(generator: MotionGenerator, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of whole motions as weights by time: every chunk's network is a copy, states keep their fresh values.

    Weights by time, and those for a plain network, stay as they are.
    """
    full = dict(state)
    if isinstance(generator, TemporalGenerator):
        for name, value in generator.named_parameters():
            plain = own_name(name)
            if name not in full and plain in state:
                full[name] = state[plain]
            elif name not in full and plain.startswith(STATE_PARTS):
                full[name] = value.detach()
    return full

"""The network with experts: one trunk for all motions, and one tail of last blocks and head per action type.

A row goes through the trunk and the tail of its own expert, chosen by a number that comes with it: no gate, nothing
learned. Tensors of the trunk have their released names, those of expert k the released names behind ``experts.<k>.``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ds_hymotion.model.blocks import FinalLayer, SingleBlock, Stream
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator, drop_condition
from ds_hymotion.model.geometry import Geometry
from ds_hymotion.model.initialisation import named_generator, own_name

PREFIX = re.compile(r"^experts\.(\d+)\.")


def expert_of(name: str) -> int | None:
    """The expert that a parameter belongs to; None for the trunk's."""
    found = PREFIX.match(name)
    return int(found.group(1)) if found else None


class TailTransformer(nn.Module):
    """The blocks and the head of one expert, under the names they have in a whole transformer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        numbers = range(config.single_layers - config.expert_blocks, config.single_layers)
        self.single_blocks = nn.ModuleDict({str(number): SingleBlock(config) for number in numbers})
        self.final_layer = FinalLayer(config)


class Expert(nn.Module):
    """One expert's part of a generator."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.motion_transformer = TailTransformer(config)


class Clips(NamedTuple):
    """Rows on their way into experts: the trunk's stream, valid frames, valid tokens and expert of each, [B]."""

    stream: Stream
    lengths: Tensor
    text_lengths: Tensor
    expert: Tensor


class ExpertGenerator(MotionGenerator):
    """A :class:`MotionGenerator` whose tail exists once per expert.

    Attributes:
        experts: the experts held here, by number; :meth:`keep` leaves out those that another process holds.
        trunk_learns: whether the backward pass goes on into the trunk.
        send: brings :class:`Clips` to where their experts are, with the velocities' way back; None where they are here.
    """

    def __init__(
        self, config: ModelConfig, checkpoint_blocks: int = 0, checkpoint_kinds: Collection[str] = ("double", "single")
    ) -> None:
        super().__init__(config, checkpoint_blocks, checkpoint_kinds)
        trunk = self.motion_transformer
        trunk.single_blocks = trunk.single_blocks[: config.single_layers - config.expert_blocks]
        del trunk.final_layer
        self.experts = nn.ModuleDict({str(number): Expert(config) for number in range(len(config.expert_names))})
        self.trunk_learns = True
        self.send: Callable[[Clips], tuple[Clips, Callable[[Tensor], Tensor]]] | None = None

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers of the experts held here."""
        return tuple(map(int, self.experts))

    def keep(self, numbers: Collection[int]) -> None:
        """Leave out all experts but ``numbers``."""
        for number in set(self.held) - set(numbers):
            del self.experts[str(number)]

    def forward(  # type: ignore[override]
        self,
        motion: Tensor,
        lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        pooled: Tensor,
        t: Tensor,
        drop: Tensor,
        expert: Tensor,
    ) -> Tensor:
        """Velocity [B, L, input_dim] as :meth:`MotionGenerator.forward`, row i by the expert number ``expert[i]``.

        Experts without a row run on none, so that all of them have gradients, zero ones.

        Raises:
            ValueError: a row's expert is not held here.
        """
        if expert.shape != lengths.shape:
            raise ValueError(f"{tuple(expert.shape)} expert numbers for {len(lengths)} rows")
        trunk = self.motion_transformer
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trunk_learns):
            text, pooled = drop_condition(text, pooled, drop, self.null_ctxt_input, self.null_vtxt_feat)
            geometry = Geometry.build(motion.shape[1], text.shape[1], lengths, text_lengths, self.config, motion.device)
            stream = trunk.embed(motion, text, pooled, t, geometry)
            for index, block in enumerate([*trunk.double_blocks, *trunk.single_blocks]):
                stream = trunk.run_block(index, block, stream, geometry)
        return self.tails(stream, geometry, lengths, expert)

    def tails(self, stream: Stream, geometry: Geometry, lengths: Tensor, expert: Tensor) -> Tensor:
        """Velocity [B, L, input_dim] from the trunk's stream, row i by the expert ``expert[i]``.

        Rows without a valid frame count for nothing, and pass through any expert that is held here.

        Raises:
            ValueError: a row's expert is not held here.
        """
        if self.send is not None:
            clips, way_back = self.send(Clips(stream, lengths, geometry.text_valid.sum(1), expert))
            frames, tokens = clips.stream.motion.shape[1], clips.stream.text.shape[1]
            geometry = Geometry.build(frames, tokens, clips.lengths, clips.text_lengths, self.config, lengths.device)
            return way_back(self._tails_here(clips.stream, geometry, clips.expert))
        return self._tails_here(stream, geometry, torch.where(lengths > 0, expert, self.held[0]))

    def _tails_here(self, stream: Stream, geometry: Geometry, expert: Tensor) -> Tensor:
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=len(self.config.expert_names)).tolist()
        absent = [number for number, count in enumerate(counts) if count and number not in self.held]
        if absent:
            raise ValueError(f"rows of expert {absent[0]}, held are {self.held}")
        velocities, start = [], 0
        for number in self.held:
            rows = order[start : start + counts[number]]
            start += counts[number]
            velocities.append(self._tail(number, Stream(*(value[rows] for value in stream)), geometry.rows(rows)))
        return torch.cat(velocities)[order.argsort()]

    def _tail(self, number: int, stream: Stream, geometry: Geometry) -> Tensor:
        tail: TailTransformer = self.experts[str(number)].motion_transformer  # type: ignore[assignment]
        for place, block in tail.single_blocks.items():
            index = self.config.double_layers + int(place)
            stream = self.motion_transformer.run_block(index, block, stream, geometry)
        return tail.final_layer(stream.motion, stream.adapter)


class Routed:
    """A generator with experts, called like one without: each of B rows has its expert.

    Also calls of a multiple of B rows, block by block in the rows' order, as guidance makes them.
    """

    def __init__(self, generator: ExpertGenerator, expert: Tensor) -> None:
        self.generator = generator
        self.expert = expert
        self.training = generator.training

    @property
    def config(self) -> ModelConfig:
        return self.generator.config

    @property
    def null_ctxt_input(self) -> Tensor:
        return self.generator.null_ctxt_input

    def train(self, mode: bool = True) -> object:
        self.training = mode
        return self.generator.train(mode)

    def __call__(self, *inputs: Tensor) -> Tensor:
        expert = self.expert.to(inputs[0].device).repeat(len(inputs[0]) // max(1, len(self.expert)))
        return self.generator(*inputs, expert)


def with_experts(
    generator: MotionGenerator, state: Mapping[str, Tensor], noise: float = 0.0, seed: int = 0
) -> dict[str, Tensor]:
    """Weights of a network without experts as weights of ``generator``: every expert's tail is a copy.

    Args:
        noise: to every copied tensor comes normal noise of this share of its own standard deviation, another for
            each expert.

    Weights with experts, and those for a network without, stay as they are.
    """
    full = dict(state)
    if not isinstance(generator, ExpertGenerator) or any(expert_of(name) is not None for name in state):
        return full
    copied = set()
    for name, value in generator.state_dict().items():
        plain = own_name(name)
        if expert_of(name) is None or plain not in state:
            continue
        copied.add(plain)
        full[name] = state[plain]
        if noise and not value.is_meta:
            drawn = torch.randn(state[plain].shape, generator=named_generator(seed, "upcycle " + name))
            full[name] = state[plain] + noise * state[plain].float().std(correction=0) * drawn
    for name in copied:
        del full[name]
    return full


def merged(state: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The plain network of one expert under released names: trunk and tail in one, the other experts left out.

    Raises:
        ValueError: there is no such expert.
    """
    held = {expert for expert in map(expert_of, state) if expert is not None}
    if number not in held:
        raise ValueError(f"expert {number} is not one of {sorted(held)}")
    return {own_name(name): value for name, value in state.items() if expert_of(name) in (None, number)}


def merged_config(config: ModelConfig) -> ModelConfig:
    """The sizes of :func:`merged`'s network."""
    return replace(config, expert_names=(), expert_blocks=0)

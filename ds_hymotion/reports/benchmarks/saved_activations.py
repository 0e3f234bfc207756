"""What autograd keeps for the backward pass of a stage, for a long clip whole and cut along time."""

from __future__ import annotations

import dataclasses

import torch

from ds_hymotion.model.chunks import Pieces
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import GeneratorInputs
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.presets import preset
from ds_hymotion.model.temporal import TemporalGenerator, build
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.training.memory import counting_saved

FRAMES, TOKENS, LAYERS = 300, 32, 3


def run(network: str = "hy-motion-1.0-lite") -> list[Row]:
    """Bytes that one clip of 300 frames with 32 text tokens leaves on one stage, in 1, 2 and 5 chunks.

    Counted by hooks on saved tensors in a real forward pass in bf16 of the preset's width with one double and two
    single blocks, the mixture that it repeats; each storage once, weights apart. A stage has one chunk; text is
    computed on every stage.
    """
    config = dataclasses.replace(preset(network, input_dim=219), num_layers=LAYERS)
    whole = saved_bytes(config, 1)
    return [
        Row(
            f"saved activations of a stage, {chunks} chunk(s) of {FRAMES // chunks} frames",
            value / 1e6,
            "MB",
            whole / 1e6,
            conditions={"preset": network, "layers": LAYERS, "clip": f"{FRAMES} frames", "precision": "bf16"},
        )
        for chunks, value in ((chunks, saved_bytes(config, chunks)) for chunks in (1, 2, 5))
    ]


def saved_bytes(config: ModelConfig, chunks: int) -> int:
    """Bytes that the last of ``chunks`` equal chunks of one clip keeps on its stage."""
    frames = FRAMES // chunks
    generator = build(dataclasses.replace(config, chunk_frames=frames, state_frames=min(30, frames)))
    assert isinstance(generator, TemporalGenerator)
    initialise(generator, 0, copy_noise=False)
    generator.bfloat16()
    given = GeneratorInputs(
        torch.zeros(1, FRAMES, config.input_dim),
        torch.tensor([FRAMES]),
        torch.zeros(1, TOKENS, config.ctxt_input_dim),
        torch.tensor([TOKENS]),
        torch.zeros(1, config.vtxt_input_dim),
        torch.zeros(1),
        torch.zeros(1, dtype=torch.bool),
    )
    stage = Stage(generator)
    pieces = generator.divide(given.lengths, chunks)[-1]
    with counting_saved(stage, stage) as saved:
        stage(given, pieces)
    return saved.network


class Stage(torch.nn.Module):
    """One stage's chunks as a module, with their states."""

    def __init__(self, generator: TemporalGenerator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, inputs: GeneratorInputs, pieces: Pieces) -> torch.Tensor:
        """Velocity of the chunks."""
        received = self.generator.first_state(1).requires_grad_()
        states, _ = self.generator.states(inputs.motion, pieces, received)
        return self.generator.velocity(inputs, pieces, states)

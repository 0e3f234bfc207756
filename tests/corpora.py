"""Small corpora and weights that tests make themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.prepare import Preparation, prepare
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.temporal import build
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import axis_angle_to_matrix
from ds_hymotion.training.weights import Provenance, save_weights

# The narrowest network that still has every part: two heads of width 8.
SMALL = {"feat_dim": 16, "num_layers": 3, "num_heads": 2, "ctxt_input_dim": 128, "vtxt_input_dim": 128}


def wavy_motion(frames: int, seed: int) -> Motion:
    """A smooth motion of no meaning: every joint swings at its own pace, the root drifts."""
    random = np.random.default_rng(seed)
    time = np.arange(frames)[:, None, None] / 30
    angles = random.normal(0, 0.3, (24, 3)) * np.sin(
        time * random.uniform(1, 4, (24, 3)) + random.uniform(0, 6, (24, 3))
    )
    path = np.cumsum(random.normal(0, 0.002, (frames, 3)), 0)
    rotations = axis_angle_to_matrix(torch.tensor(angles, dtype=torch.float32))
    return Motion(rotations, torch.tensor(path, dtype=torch.float32), 30.0)


def wavy_corpus(folder: Path, lengths: list[int], **settings: Any) -> Corpus:
    """A corpus of wavy motions of the given lengths, all in the train split, with hashed text features."""
    motions = folder / "motions"
    motions.mkdir(parents=True)
    for number, frames in enumerate(lengths):
        write_amass(motions / f"clip{number:03d}.npz", wavy_motion(frames, number))
        (motions / f"clip{number:03d}.txt").write_text(
            f"motion number {number} turns {'left' if number % 2 else 'right'}\n"
        )
    task = Preparation(
        motions, folder / "corpus", split=(1.0, 0.0, 0.0), encode_text="hashed", progress=False, **settings
    )
    return Corpus.open(prepare(task, say=lambda _: None))


def random_weights(path: Path, corpus: Corpus, sizes: Mapping[str, int] = SMALL, spread: float = 0.25) -> Path:
    """An export whose every trained tensor is N(0, spread²): a fresh DiT's gates are zero and hide most gradients.

    The spread is one over the square root of the small network's width, so that signals keep their size.
    """
    config = ModelConfig(**sizes, input_dim=corpus.representation.channels)
    generator = build(config)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in generator.named_parameters():
            # States are 256 wide: the same spread would saturate their tanh.
            scale = spread / 8 if ".state_" in "." + name else spread
            parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
        generator.mean.copy_(corpus.mean)
        generator.std.copy_(corpus.std)
    provenance = Provenance(vars(config), corpus.representation.name, corpus.fps, "hashed", "tiny")
    save_weights(path, generator.state_dict(), provenance)
    return path

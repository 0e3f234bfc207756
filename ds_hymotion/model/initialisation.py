"""Fresh weights. Every tensor is drawn by its own name, so a process that holds a part draws that part alike."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ds_hymotion.model.generator import MotionGenerator

INPUT = "motion_transformer.input_encoder.weight"
HEAD = "motion_transformer.final_layer.linear.weight"
MODULATIONS = ("_mod.linear", ".modulation.linear", ".adaLN_modulation.linear", "state_projection")
NULL_STD = 0.02


def initialise(generator: MotionGenerator, seed: int, copy_noise: bool) -> None:
    """Fill all parameters from ``seed``, whatever the global random state is; buffers stay.

    Linears are Xavier-uniform with zero biases, norm weights one, modulations and head zero, null features small.
    With ``copy_noise`` the fresh network predicts −x_t / rms(x_t), so it starts near the velocity's noise part: the
    input projection gets orthogonal columns and the head is minus its transpose (for training from scratch).
    """
    initialise_parameters(generator.named_parameters(), seed, copy_noise)


@torch.no_grad()
def initialise_parameters(parameters: Iterable[tuple[str, nn.Parameter]], seed: int, copy_noise: bool) -> None:
    """:func:`initialise` for some parameters, whole tensors under their names in the generator's state dict.

    Those on the meta device, which have no values, are passed over.
    """
    for name, parameter in parameters:
        if parameter.is_meta:
            continue
        parameter.copy_(fresh(own_name(name), tuple(parameter.shape), seed, copy_noise))


def own_name(name: str) -> str:
    """A parameter's name in a network of its own; the networks of later chunks, and experts, start alike."""
    return re.sub(r"^(specialists|experts)\.\d+\.", "", name)


def fresh(name: str, shape: tuple[int, ...], seed: int, copy_noise: bool) -> Tensor:
    """The fp32 starting value of one parameter."""
    if copy_noise and name == INPUT:
        return noise_projection(shape[0], shape[1], seed)
    if name == HEAD:
        return -noise_projection(shape[1], shape[0], seed).T if copy_noise else torch.zeros(shape)
    layer, _, kind = name.rpartition(".")
    if kind == "bias" or layer.endswith(MODULATIONS):
        return torch.zeros(shape)
    if name.startswith("null_"):
        return NULL_STD * torch.randn(shape, generator=named_generator(seed, name))
    if len(shape) == 1:
        return torch.ones(shape)
    return nn.init.xavier_uniform_(torch.empty(shape), generator=named_generator(seed, name))


def noise_projection(width: int, channels: int, seed: int) -> Tensor:
    """[width, channels] orthogonal matrix, scaled so that minus its transpose undoes it behind a LayerNorm.

    With orthonormal columns Q and W = s·Q, LayerNorm(W·x) has the scale of Q·x · sqrt(width / channels) / rms(x),
    hence s = sqrt(channels / width).
    """
    projection = nn.init.orthogonal_(torch.empty(width, channels), generator=named_generator(seed, INPUT))
    return projection * min(1.0, math.sqrt(channels / width))


def named_generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))

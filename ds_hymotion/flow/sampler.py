"""From noise to motion: the velocity field integrated over t from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torchdiffeq import odeint

from ds_hymotion.errors import UserError
from ds_hymotion.flow.losses import valid_frames
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.randomness import generator
from ds_hymotion.text.encoder import TextFeatures

Velocity = Callable[[Tensor, Tensor], Tensor]
METHODS = ("euler", "midpoint", "dopri5")


class VelocityNetwork(Protocol):
    """A :class:`MotionGenerator`, or what calls like one, with its parts on several devices."""

    training: bool

    @property
    def config(self) -> ModelConfig: ...

    @property
    def null_ctxt_input(self) -> Tensor:
        """Any tensor on the device that inputs go to."""

    def __call__(self, *inputs: Tensor) -> Tensor: ...

    def train(self, mode: bool = True) -> object: ...


def integrate(
    velocity: Velocity,
    noise: Tensor,
    lengths: Tensor,
    steps: int = 50,
    method: str = "euler",
    rtol: float = 1e-3,
    atol: float = 1e-3,
) -> Tensor:
    """Follow ``velocity`` from ``noise`` at t = 0 to the latent [B, L, C] at t = 1, in fp32 and without gradients.

    Args:
        velocity: (x [B, L, C] fp32, t [B] fp32) to the velocity [B, L, C]; any engine can supply it.
        noise: [B, L, C].
        lengths: [B] valid frames; the others are zero in the result and have no part in dopri5's error.
        steps: equal steps of euler or midpoint; dopri5 chooses its own by ``rtol`` and ``atol``.

    Raises:
        UserError: an unknown method or fewer than one step.
    """
    if method not in METHODS:
        raise UserError(f"sampling method {method!r} is unknown; use one of {', '.join(METHODS)}")
    if steps < 1:
        raise UserError(f"sampling steps = {steps} must be at least 1; 50 is usual")
    valid = valid_frames(lengths.to(noise.device), noise.shape[1])[..., None]

    def field(t: Tensor, x: Tensor) -> Tensor:
        return torch.where(valid, velocity(x, t.expand(len(x))).float(), 0.0)

    start = torch.where(valid, noise.float(), 0.0)
    if start.numel() == 0:
        return start
    grid = torch.linspace(0, 1, 2 if method == "dopri5" else steps + 1, device=noise.device)
    with torch.no_grad():
        return odeint(field, start, grid, rtol=rtol, atol=atol, method=method)[-1]


def guided(
    network: VelocityNetwork, text: TextFeatures, lengths: Tensor, guidance: float, clean: Tensor | None = None
) -> Velocity:
    """Velocity u + guidance · (c − u) of conditional c and unconditional u, both in one call of 2B rows.

    With ``guidance`` 1 the conditional rows run alone. ``clean`` [B, L, C] goes to the network as it is.
    """
    rows = 1 if guidance == 1 else 2
    device = network.null_ctxt_input.device
    features = text.to(device)
    tokens, pooled = features.tokens.repeat(rows, 1, 1), features.pooled.repeat(rows, 1)
    text_lengths = features.lengths.repeat(rows)
    frames = lengths.to(device).repeat(rows)
    drop = torch.arange(rows, device=device).repeat_interleave(len(lengths)) == 1
    more = [] if clean is None else [clean.repeat(rows, 1, 1)]

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        inputs = x.repeat(rows, 1, 1), frames, tokens, text_lengths, pooled, t.repeat(rows), drop
        both = network(*inputs, *more).float()
        if rows == 1:
            return both
        conditional, unconditional = both.chunk(2)
        return unconditional + guidance * (conditional - unconditional)

    return velocity


def sample(
    network: VelocityNetwork,
    text: TextFeatures,
    lengths: Tensor,
    noise: Tensor | None = None,
    seed: int = 0,
    steps: int = 50,
    method: str = "euler",
    guidance: float = 5.0,
    rtol: float = 1e-3,
    atol: float = 1e-3,
) -> Tensor:
    """Normalised motions [B, L, C] in fp32 for B texts, zero beyond ``lengths`` [B].

    Args:
        noise: [B, L, C]; without it, row i draws its own from ``seed`` and i, and L is the longest length.

    Raises:
        UserError: texts and lengths of different number, a length outside 1..text_position, or as in
            :func:`integrate`.
    """
    longest = network.config.text_position
    if len(text) != len(lengths):
        raise UserError(f"{len(text)} texts for {len(lengths)} lengths; give each text one length")
    for length in lengths.tolist():
        if not 1 <= length <= longest:
            raise UserError(f"a motion of {length} frames cannot be sampled; use 1..{longest}")
    if noise is None:
        noise = row_noise(lengths, network.config.input_dim, seed)
    noise = noise.to(network.null_ctxt_input.device)
    settings = steps, method, rtol, atol
    with evaluating(network):
        if network.config.clean_states:
            return _chunk_after_chunk(network, text, lengths.to(noise.device), noise, guidance, *settings)
        return integrate(guided(network, text, lengths, guidance), noise, lengths, *settings)


def _chunk_after_chunk(
    network: VelocityNetwork, text: TextFeatures, lengths: Tensor, noise: Tensor, guidance: float, *settings: Any
) -> Tensor:
    """Each chunk from the clean ones before it, which are computed along: (n + 1) / 2 times the work of n chunks."""
    latent = torch.zeros_like(noise, dtype=torch.float32)
    for start in range(0, noise.shape[1], network.config.chunk_frames):
        end = min(start + network.config.chunk_frames, noise.shape[1])
        before, reached = noise[:, :start], lengths.clamp(max=end)
        field = guided(network, text, reached, guidance, latent[:, :end])

        def velocity(
            x: Tensor, t: Tensor, start: int = start, before: Tensor = before, field: Velocity = field
        ) -> Tensor:
            on_the_way = torch.lerp(before.float(), latent[:, :start], t[:, None, None])
            return field(torch.cat([on_the_way, x], 1), t)[:, start:]

        own = (reached - start).clamp(min=0)
        latent[:, start:end] = integrate(velocity, noise[:, start:end], own, *settings)
    return latent


def row_noise(lengths: Tensor, channels: int, seed: int, first: int = 0) -> Tensor:
    """Noise [B, max length, channels], zero beyond each row's own frames, for which alone it is drawn.

    ``first`` is the number of the first row, where rows are sampled in parts.
    """
    rows = [
        torch.randn(length, channels, generator=generator(seed, "sample", first + row))
        for row, length in enumerate(lengths.tolist())
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 1, channels)


@contextmanager
def evaluating(network: VelocityNetwork) -> Iterator[None]:
    """Evaluation mode inside, the former mode after."""
    training = network.training
    network.train(False)
    try:
        yield
    finally:
        network.train(training)

"""Where tokens sit and what they see: RoPE tables and attention masks, built from integers alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ds_hymotion.model.config import ModelConfig


class Geometry(NamedTuple):
    """Positions and masks of one batch; every pipeline stage can build the same from the lengths.

    Attributes:
        motion_rope: [L, D/2, 2] fp32 cosines and sines at positions 0..L-1.
        text_rope: [T, D/2, 2] at positions text_position..text_position+T-1.
        motion_mask: [B, 1, L, L+T] bool, what a frame sees: valid frames inside the band and valid text.
        text_mask: [B, 1, T, T] bool, what a text token sees: valid text, never motion.
        text_valid: [B, T] bool.

    Every query also sees itself, so that a padded row has a finite softmax.
    """

    motion_rope: Tensor
    text_rope: Tensor
    motion_mask: Tensor
    text_mask: Tensor
    text_valid: Tensor

    @classmethod
    def build(
        cls,
        frames: int,
        tokens: int,
        lengths: Tensor,
        text_lengths: Tensor,
        config: ModelConfig,
        device: torch.device | str | None = None,
    ) -> Geometry:
        """Geometry of a canvas of ``frames`` × ``tokens`` for valid ``lengths`` and ``text_lengths`` [B].

        Raises:
            ValueError: the canvas is longer than the text's position.
        """
        if frames > config.text_position:
            raise ValueError(
                f"a canvas of {frames} frames runs into the text at position {config.text_position}; "
                f"use at most {config.text_position} frames"
            )
        device = lengths.device if device is None else torch.device(device)
        frame = torch.arange(frames, device=device)
        token = torch.arange(tokens, device=device)
        motion_valid = frame < lengths.to(device)[:, None]
        text_valid = token < text_lengths.to(device)[:, None]
        band = (frame[:, None] - frame).abs() <= config.band_frames
        same_frame = torch.eye(frames, dtype=torch.bool, device=device)
        same_token = torch.eye(tokens, dtype=torch.bool, device=device)
        motion_to_motion = motion_valid[:, None] & band | same_frame
        motion_to_text = text_valid[:, None].expand(-1, frames, -1)
        return cls(
            motion_rope=rope_table(frame, config.head_dim, config.rope_theta),
            text_rope=rope_table(config.text_position + token, config.head_dim, config.rope_theta),
            motion_mask=torch.cat([motion_to_motion, motion_to_text], dim=-1)[:, None],
            text_mask=(text_valid[:, None] | same_token)[:, None],
            text_valid=text_valid,
        )


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """fp32 [N, head_dim/2, 2] of (cos, sin)(position · theta^(-2i/head_dim))."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions[:, None].float() * (1.0 / theta**exponents)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """RoPE on interleaved pairs: x [B, H, N, D] turned by a table [N, D/2, 2]; computed and returned in fp32."""
    real, imaginary = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table.unbind(-1)
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).flatten(-2)

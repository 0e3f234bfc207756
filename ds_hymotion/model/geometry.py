"""Where tokens sit and what they see: RoPE tables and attention masks, built from integers alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ds_hymotion.model.config import ModelConfig


class Geometry(NamedTuple):
    """Positions and masks of one batch; every pipeline stage can build the same from the lengths.

    Attributes:
        motion_rope: [L, D/2, 2] fp32 cosines and sines at positions 0..L-1, or [B, 1, L, D/2, 2] of rows that start
            elsewhere.
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

    @property
    def joint_rope(self) -> Tensor:
        """The tables of frames and tokens in one."""
        text = self.text_rope.expand(*self.motion_rope.shape[:-3], *self.text_rope.shape)
        return torch.cat([self.motion_rope, text], -3)

    def rows(self, index: Tensor) -> Geometry:
        """The geometry of some rows, by their numbers [R]."""
        rope = self.motion_rope if self.motion_rope.dim() == 3 else self.motion_rope[index]
        return Geometry(rope, self.text_rope, self.motion_mask[index], self.text_mask[index], self.text_valid[index])

    @classmethod
    def build(
        cls,
        frames: int,
        tokens: int,
        lengths: Tensor,
        text_lengths: Tensor,
        config: ModelConfig,
        device: torch.device | str | None = None,
        starts: Tensor | None = None,
    ) -> Geometry:
        """Geometry of a canvas of ``frames`` × ``tokens`` for valid ``lengths`` and ``text_lengths`` [B].

        Args:
            starts: [B] the place of each row's first frame in its motion of ``lengths`` frames; frames before 0 are
                not valid. None = 0.

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
        place = frame if starts is None else starts.to(device)[:, None] + frame
        motion_valid = (place >= 0) & (place < lengths.to(device)[:, None])
        text_valid = token < text_lengths.to(device)[:, None]
        band = (frame[:, None] - frame).abs() <= config.band_frames
        same_frame = torch.eye(frames, dtype=torch.bool, device=device)
        same_token = torch.eye(tokens, dtype=torch.bool, device=device)
        motion_to_motion = motion_valid[:, None] & band | same_frame
        motion_to_text = text_valid[:, None].expand(-1, frames, -1)
        motion_rope = rope_table(place, config.head_dim, config.rope_theta)
        return cls(
            motion_rope=motion_rope if starts is None else motion_rope[:, None],
            text_rope=rope_table(config.text_position + token, config.head_dim, config.rope_theta),
            motion_mask=torch.cat([motion_to_motion, motion_to_text], dim=-1)[:, None],
            text_mask=(text_valid[:, None] | same_token)[:, None],
            text_valid=text_valid,
        )


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """fp32 [..., head_dim/2, 2] of (cos, sin)(position · theta^(-2i/head_dim))."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions[..., None].float() * (1.0 / theta**exponents)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """RoPE on interleaved pairs: x [B, H, N, D] turned by a table [N, D/2, 2] or [B, 1, N, D/2, 2], in fp32."""
    real, imaginary = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table.unbind(-1)
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).flatten(-2)

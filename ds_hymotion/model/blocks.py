"""The two kinds of transformer block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ds_hymotion.model.attention import attend, split_heads
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.geometry import Geometry, rotate
from ds_hymotion.model.layers import Mlp, Modulation, RMSNorm, modulate, normalise


class Stream(NamedTuple):
    """What flows from block to block: adapter [B, 1, C], motion [B, L, C], text [B, T, C]."""

    adapter: Tensor
    motion: Tensor
    text: Tensor


class DoubleBlock(nn.Module):
    """Motion and text with weights of their own; motion attends to both, text to text."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.head_dim = config.feat_dim, config.head_dim
        self.motion_mod = Modulation(width, 6)
        self.motion_qkv = nn.Linear(width, 3 * width)
        self.motion_q_norm = RMSNorm(self.head_dim)
        self.motion_k_norm = RMSNorm(self.head_dim)
        self.motion_out_proj = nn.Linear(width, width)
        self.motion_mlp = Mlp(width, config.mlp_dim, nn.GELU("tanh"))
        self.text_mod = Modulation(width, 6)
        self.text_qkv = nn.Linear(width, 3 * width)
        self.text_q_norm = RMSNorm(self.head_dim)
        self.text_k_norm = RMSNorm(self.head_dim)
        self.text_out_proj = nn.Linear(width, width)
        self.text_mlp = Mlp(width, config.mlp_dim, nn.GELU("tanh"))

    def forward(self, stream: Stream, geometry: Geometry) -> Stream:
        adapter, motion, text = stream
        shift_m, scale_m, gate_m, mlp_shift_m, mlp_scale_m, mlp_gate_m = self.motion_mod(adapter)
        shift_t, scale_t, gate_t, mlp_shift_t, mlp_scale_t, mlp_gate_t = self.text_mod(adapter)

        q_m, k_m, v_m = split_heads(self.motion_qkv(modulate(normalise(motion), shift_m, scale_m)), self.head_dim)
        q_t, k_t, v_t = split_heads(self.text_qkv(modulate(normalise(text), shift_t, scale_t)), self.head_dim)
        q_m = rotate(self.motion_q_norm(q_m), geometry.motion_rope)
        k_m = rotate(self.motion_k_norm(k_m), geometry.motion_rope)
        q_t = rotate(self.text_q_norm(q_t), geometry.text_rope)
        k_t = rotate(self.text_k_norm(k_t), geometry.text_rope)

        seen_m = attend(q_m, torch.cat([k_m, k_t], 2), torch.cat([v_m, v_t], 2), geometry.motion_mask)
        seen_t = attend(q_t, k_t, v_t, geometry.text_mask)
        motion = motion + gate_m * self.motion_out_proj(seen_m)
        text = text + gate_t * self.text_out_proj(seen_t)

        motion = motion + mlp_gate_m * self.motion_mlp(modulate(normalise(motion), mlp_shift_m, mlp_scale_m))
        text = text + mlp_gate_t * self.text_mlp(modulate(normalise(text), mlp_shift_t, mlp_scale_t))
        return Stream(adapter, motion, text)


class SingleBlock(nn.Module):
    """Motion and text with shared weights, attention and MLP side by side.

    Attributes:
        attention_width: width of q, of k and of v in the output of ``linear1``, here feat_dim.
        mlp_width: width of the rest of that output. A block with fewer heads or a narrower MLP sets both.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.head_dim = config.feat_dim, config.head_dim
        self.attention_width = width
        self.mlp_width = config.mlp_dim
        self.modulation = Modulation(width, 3)
        self.linear1 = nn.Linear(width, 3 * width + config.mlp_dim)
        self.linear2 = nn.Linear(width + config.mlp_dim, width)
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)

    def forward(self, stream: Stream, geometry: Geometry) -> Stream:
        adapter, motion, text = stream
        frames, tokens = motion.shape[1], text.shape[1]
        shift, scale, gate = self.modulation(adapter)
        joined = torch.cat([motion, text], 1)

        hidden = self.linear1(modulate(normalise(joined), shift, scale))
        qkv, mlp = hidden.split([3 * self.attention_width, self.mlp_width], dim=-1)
        q, k, v = split_heads(qkv, self.head_dim)
        rope = geometry.joint_rope
        q, k = rotate(self.q_norm(q), rope), rotate(self.k_norm(k), rope)

        seen_m = attend(q[:, :, :frames], k, v, geometry.motion_mask)
        seen_t = attend(q[:, :, frames:], k[:, :, frames:], v[:, :, frames:], geometry.text_mask)
        seen = torch.cat([seen_m, seen_t], 1)
        joined = joined + gate * self.linear2(torch.cat([seen, F.gelu(mlp, approximate="tanh")], -1))
        motion, text = joined.split([frames, tokens], dim=1)
        return Stream(adapter, motion, text)


class FinalLayer(nn.Module):
    """Velocity [B, L, input_dim] from the motion stream [B, L, C] and the adapter [B, 1, C]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.adaLN_modulation = Modulation(config.feat_dim, 2)
        self.linear = nn.Linear(config.feat_dim, config.input_dim)

    def forward(self, motion: Tensor, adapter: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(adapter)
        return self.linear(modulate(normalise(motion), shift, scale))

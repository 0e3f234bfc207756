"""The text refiner: bidirectional attention among the text tokens before they meet the motion."""

from __future__ import annotations

from torch import Tensor, nn

from ds_hymotion.model.attention import attend, split_heads
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.geometry import Geometry
from ds_hymotion.model.layers import LayerNorm, Mlp, Modulation, TimeEncoder, VectorEncoder


class RefinerBlock(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.head_dim = config.feat_dim, config.head_dim
        self.norm1 = LayerNorm(width)
        self.self_attn_qkv = nn.Linear(width, 3 * width)
        self.self_attn_q_norm = LayerNorm(self.head_dim)
        self.self_attn_k_norm = LayerNorm(self.head_dim)
        self.self_attn_proj = nn.Linear(width, width)
        self.norm2 = LayerNorm(width)
        self.mlp = Mlp(width, config.mlp_dim, nn.SiLU())
        self.adaLN_modulation = Modulation(width, 2)

    def forward(self, text: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        gate, mlp_gate = self.adaLN_modulation(condition)
        q, k, v = split_heads(self.self_attn_qkv(self.norm1(text)), self.head_dim)
        seen = attend(self.self_attn_q_norm(q), self.self_attn_k_norm(k), v, mask)
        text = text + gate * self.self_attn_proj(seen)
        return text + mlp_gate * self.mlp(self.norm2(text))


class TokenRefiner(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([RefinerBlock(config) for _ in range(config.refiner_layers)])

    def forward(self, text: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            text = block(text, condition, mask)
        return text


class TextRefiner(nn.Module):
    """Encoded text [B, T, C] and times [B] to refined text [B, T, C].

    Its time encoder takes t itself, not t · time_factor.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_embedder = nn.Linear(config.feat_dim, config.feat_dim)
        self.context_encoder = VectorEncoder(config.feat_dim, config.feat_dim)
        self.timestep_encoder = TimeEncoder(config.feat_dim, 1.0)
        self.individual_token_refiner = TokenRefiner(config)

    def forward(self, text: Tensor, t: Tensor, geometry: Geometry) -> Tensor:
        condition = self.timestep_encoder(t) + self.context_encoder(masked_mean(text, geometry.text_valid))
        return self.individual_token_refiner(self.input_embedder(text), condition, geometry.text_mask)


def masked_mean(text: Tensor, valid: Tensor) -> Tensor:
    """fp32 mean [B, 1, C] over valid tokens; zero where a text has none."""
    total = text.float().masked_fill(~valid[..., None], 0.0).sum(1, keepdim=True)
    return total / valid.sum(1).clamp(min=1)[:, None, None]

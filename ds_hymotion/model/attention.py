"""Attention on heads of which a process may hold only a part."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor
from torch.nn import functional as F


def split_heads(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """[B, N, 3·H·D], q before k before v, to three [B, H, N, D]; H follows from the width of ``qkv``."""
    q, k, v = rearrange(qkv, "b n (three h d) -> three b h n d", three=3, d=head_dim)
    return q, k, v


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of q [B, H, N, D] over k, v [B, H, M, D] where mask [B, 1, N, M] is true; returns [B, N, H·D].

    q and k may be fp32 and are cast to the dtype of v. An empty batch needs no attention kernel, and gets none.
    """
    q, k = q.to(v.dtype), k.to(v.dtype)
    if q.numel() == 0:
        return rearrange(q @ k.transpose(-1, -2) @ v, "b h n d -> b n (h d)")
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return rearrange(out, "b h n d -> b n (h d)")

"""``hymotion.model``: which network is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ds_hymotion.config.section import Section

SIZES = (
    "feat_dim",
    "num_layers",
    "num_heads",
    "mlp_ratio",
    "ctxt_input_dim",
    "vtxt_input_dim",
    "band_frames",
    "text_position",
)
"""Fields of :class:`ModelSection` that change a preset's :class:`ds_hymotion.model.config.ModelConfig`."""


class ModelSection(Section):
    """Which network is trained and what it starts from."""

    preset: str = Field("tiny", description="hy-motion-1.0, hy-motion-1.0-lite or tiny; the sizes below change it")
    feat_dim: int | None = Field(None, ge=8, description="width C of the residual streams; C / num_heads must be even")
    num_layers: int | None = Field(
        None, ge=3, description="blocks in all, divisible by 3: a third double, the rest single"
    )
    num_heads: int | None = Field(None, ge=1, description="attention heads; must divide feat_dim")
    mlp_ratio: float | None = Field(None, gt=0, description="width of the MLPs over feat_dim")
    ctxt_input_dim: int | None = Field(None, ge=1, description="width of a text token's features")
    vtxt_input_dim: int | None = Field(None, ge=1, description="width of the pooled text vector")
    band_frames: int | None = Field(None, ge=0, description="motion attends to motion within this many frames")
    text_position: int | None = Field(
        None, ge=1, description="RoPE position of the first text token; at least max_frames"
    )
    init: Literal["copy_noise", "released"] = Field(
        "copy_noise",
        description="fresh weights: copy_noise (head starts as minus the transposed input projection, for training "
        "from scratch) or released (zero gates and head)",
    )
    init_from: str | None = Field(None, description="start from this latest.ckpt, safetensors export or run folder")
    allow_fresh: bool = Field(
        False, description="where init_from lacks a tensor or has it in another shape, start with a fresh one"
    )
    checkpoint_blocks: int = Field(0, ge=0, description="recompute activations of every n-th block; 0 = keep all")
    checkpoint_kinds: list[Literal["double", "single"]] = Field(
        ["double", "single"], description="kinds of block that checkpoint_blocks applies to"
    )
    fps: float = Field(30.0, gt=0, description="frame rate the network is made for, in Hz")
    allow_fps: bool = Field(False, description="train on a corpus of another frame rate all the same")

"""HY-Motion's diffusion transformer on one device."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ds_hymotion.model.blocks import DoubleBlock, FinalLayer, SingleBlock, Stream
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.geometry import Geometry
from ds_hymotion.model.layers import TimeEncoder, VectorEncoder, dtype_of
from ds_hymotion.model.refiner import TextRefiner


class Embedder(nn.Module):
    """Everything before the first block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.input_encoder = nn.Linear(config.input_dim, config.feat_dim)
        self.ctxt_encoder = nn.Linear(config.ctxt_input_dim, config.feat_dim)
        self.vtxt_encoder = VectorEncoder(config.vtxt_input_dim, config.feat_dim)
        self.timestep_encoder = TimeEncoder(config.feat_dim, config.time_factor)
        self.text_refiner = TextRefiner(config)

    def embed(self, motion: Tensor, text: Tensor, pooled: Tensor, t: Tensor, geometry: Geometry) -> Stream:
        """Inputs of any float dtype, as in :meth:`MotionTransformer.forward`, to the stream of the first block."""
        adapter = self.timestep_encoder(t) + self.vtxt_encoder(pooled[:, None])
        motion = self.input_encoder(motion.to(dtype_of(self.input_encoder)))
        text = self.ctxt_encoder(text.to(dtype_of(self.ctxt_encoder)))
        return Stream(adapter, motion, self.text_refiner(text, t, geometry))


class MotionTransformer(Embedder):
    """The velocity field of a noised motion, given a text and a time.

    Args:
        config: the sizes.
        checkpoint_blocks: recompute the activations of every n-th block in the backward pass; 0 keeps all.
        checkpoint_kinds: which kinds of block may be recomputed, of ``double`` and ``single``.
    """

    def __init__(
        self, config: ModelConfig, checkpoint_blocks: int = 0, checkpoint_kinds: Collection[str] = ("double", "single")
    ) -> None:
        super().__init__(config)
        self.checkpoint_blocks = checkpoint_blocks
        self.checkpoint_kinds = checkpoint_kinds
        self.double_blocks = nn.ModuleList([DoubleBlock(config) for _ in range(config.double_layers)])
        self.single_blocks = nn.ModuleList([SingleBlock(config) for _ in range(config.single_layers)])
        self.final_layer = FinalLayer(config)

    def forward(
        self, motion: Tensor, lengths: Tensor, text: Tensor, text_lengths: Tensor, pooled: Tensor, t: Tensor
    ) -> Tensor:
        """Velocity [B, L, input_dim] in the dtype of the weights; padded frames carry no meaning.

        Args:
            motion: [B, L, input_dim] noised motion, L ≤ text_position.
            lengths: [B] valid frames.
            text: [B, T, ctxt_input_dim] token features.
            text_lengths: [B] valid tokens.
            pooled: [B, vtxt_input_dim] pooled text vector.
            t: [B] times, 0 = noise and 1 = data.

        B may be 0, and single lengths may be 0.
        """
        geometry = Geometry.build(motion.shape[1], text.shape[1], lengths, text_lengths, self.config, motion.device)
        return self.run(self.embed(motion, text, pooled, t, geometry), geometry)

    def run(self, stream: Stream, geometry: Geometry) -> Tensor:
        """Velocity from the stream of the first block: all blocks and the head."""
        for index, block in enumerate([*self.double_blocks, *self.single_blocks]):
            stream = self.run_block(index, block, stream, geometry)
        return self.head(stream)

    def run_block(self, index: int, block: nn.Module, stream: Stream, geometry: Geometry) -> Stream:
        """Block number ``index`` of all, its activations recomputed if it is one of every ``checkpoint_blocks``."""
        kind = "double" if index < self.config.double_layers else "single"
        chosen = self.checkpoint_blocks and (index + 1) % self.checkpoint_blocks == 0 and kind in self.checkpoint_kinds
        if chosen and torch.is_grad_enabled():
            return checkpoint(block, stream, geometry, use_reentrant=False, preserve_rng_state=False)
        return block(stream, geometry)

    def head(self, stream: Stream) -> Tensor:
        return self.final_layer(stream.motion, stream.adapter)

"""The network with its null condition and statistics: what the released checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.network import MotionTransformer


class GeneratorInputs(NamedTuple):
    """What a network is called with; shapes as in :meth:`MotionGenerator.forward`.

    ``clean`` is what states between chunks are made of, where it is not the network's input: motions without noise.
    ``expert`` [B] is each row's expert, in a network that has them.
    """

    motion: Tensor
    lengths: Tensor
    text: Tensor
    text_lengths: Tensor
    pooled: Tensor
    t: Tensor
    drop: Tensor
    clean: Tensor | None = None
    expert: Tensor | None = None

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that are there."""
        return tuple(value for value in self if value is not None)

    @property
    def state_source(self) -> Tensor:
        """[B, L, C] what states between chunks are made of."""
        return self.motion if self.clean is None else self.clean

    def to(self, device: torch.device) -> GeneratorInputs:
        """The same on another device."""
        there = {name: value for name, value in self._asdict().items() if value is not None}
        return self._replace(**{name: value.to(device, non_blocking=True) for name, value in there.items()})


class MotionGenerator(nn.Module):
    """A :class:`MotionTransformer` whose condition can be dropped row by row.

    ``state_dict()`` has the keys of the released ``latest.ckpt``. Buffers (statistics and the release's special
    features, which training never touches) stay fp32 when the module is cast to another dtype.
    """

    mean: Tensor
    std: Tensor
    special_game_vtxt_feat: Tensor
    special_game_ctxt_feat: Tensor

    def __init__(
        self, config: ModelConfig, checkpoint_blocks: int = 0, checkpoint_kinds: Collection[str] = ("double", "single")
    ) -> None:
        super().__init__()
        self.config = config
        self.motion_transformer = MotionTransformer(config, checkpoint_blocks, checkpoint_kinds)
        self.null_vtxt_feat = nn.Parameter(torch.zeros(1, 1, config.vtxt_input_dim))
        self.null_ctxt_input = nn.Parameter(torch.zeros(1, 1, config.ctxt_input_dim))
        self.register_buffer("special_game_vtxt_feat", torch.zeros(1, 1, config.vtxt_input_dim))
        self.register_buffer("special_game_ctxt_feat", torch.zeros(1, 1, config.ctxt_input_dim))
        self.register_buffer("mean", torch.zeros(config.input_dim))
        self.register_buffer("std", torch.ones(config.input_dim))

    def forward(
        self,
        motion: Tensor,
        lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        pooled: Tensor,
        t: Tensor,
        drop: Tensor,
    ) -> Tensor:
        """Velocity [B, L, input_dim] as :meth:`MotionTransformer.forward`; rows with ``drop`` [B] see no condition."""
        text, pooled = drop_condition(text, pooled, drop, self.null_ctxt_input, self.null_vtxt_feat)
        return self.motion_transformer(motion, lengths, text, text_lengths, pooled, t)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MotionGenerator:
        exact = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, before in exact.items():
            after = self._buffers[name]
            assert before is not None and after is not None
            self._buffers[name] = after if after.dtype == before.dtype else restored(before, after)
        return self


def restored(exact: Tensor, cast: Tensor) -> Tensor:
    """``exact`` on the device of ``cast``."""
    return torch.empty_like(exact, device=cast.device) if exact.is_meta else exact.to(cast.device)


def drop_condition(
    text: Tensor, pooled: Tensor, drop: Tensor, null_text: Tensor, null_pooled: Tensor
) -> tuple[Tensor, Tensor]:
    """Text [B, T, D] and pooled [B, V] with the null features [1, 1, D] and [1, 1, V] in the rows of ``drop`` [B].

    The null token stands at every position of the row's own text, so lengths stay as they are.
    """
    text = torch.where(drop[:, None, None], null_text, text.to(null_text.dtype))
    return text, torch.where(drop[:, None], null_pooled[0], pooled.to(null_pooled.dtype))

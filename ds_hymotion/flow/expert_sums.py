"""The velocity loss by expert, for logs."""

from __future__ import annotations

import torch
from torch import Tensor

from ds_hymotion.flow.losses import channel_sums


class ExpertSums:
    """Adds up the loss of every expert's rows since the last :meth:`take`.

    Args:
        number: how many experts there are.
        kind: loss per element, as in :func:`channel_sums`.
        weights: weight of every channel that is predicted here, over the sum of all channels' weights.
        first: whether frames are counted here, where several ranks predict channels of the same rows.
    """

    def __init__(self, number: int, kind: str, weights: Tensor, first: bool = True) -> None:
        self.number = number
        self.kind = kind
        self.weights = weights
        self.first = first
        self._sums: Tensor | None = None

    @torch.no_grad()
    def add(self, prediction: Tensor, target: Tensor, lengths: Tensor, experts: Tensor) -> None:
        """Rows of velocities [B, L, C] with ``lengths`` and ``experts`` [B]."""
        weights = self.weights.to(prediction.device)
        sums = []
        for number in range(self.number):
            rows = (experts == number).nonzero()[:, 0]
            channels = channel_sums(prediction[rows], target[rows], lengths[rows], self.kind)  # type: ignore[arg-type]
            sums.append(torch.stack([(weights * channels).sum(), self.first * lengths[rows].sum().float()]))
        here = torch.stack(sums)
        self._sums = here if self._sums is None else self._sums + here

    def take(self) -> Tensor:
        """[experts, 2]: the sum over channels' weighted mean and frames, and the frames; starts anew."""
        sums = torch.zeros(self.number, 2) if self._sums is None else self._sums
        self._sums = None
        return sums

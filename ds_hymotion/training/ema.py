"""An exponential moving average of the fp32 weights, kept per rank like the optimizer's masters."""

from __future__ import annotations

from collections.abc import Container

import torch

from ds_hymotion.parallel.states import MASTER, Fragment, ParameterStates


class WeightAverage:
    """``average ← d·average + (1 − d)·weight`` with d = min(decay, (1 + n)/(10 + n)) after n updates.

    The ramp (as in TensorFlow's ExponentialMovingAverage with ``num_updates``) forgets the fresh weights quickly.
    """

    def __init__(self, states: ParameterStates, decay: float) -> None:
        self.states = states
        self.decay = decay
        self.updates = 0
        self._fragments = list(states.fragments())
        self._values = [states.local(fragment, MASTER).detach().clone().float() for fragment in self._fragments]

    @torch.no_grad()
    def update(self, moved: Container[str]) -> None:
        """Take in the weights of the parameters named in ``moved``; the average of those that stood still stays."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        pairs = [(value, part) for value, part in zip(self._values, self._fragments) if part.name in moved]
        weights = [self.states.local(part, MASTER) for _, part in pairs]
        if pairs:  # a rank may hold none of what moved
            torch._foreach_lerp_([value for value, _ in pairs], weights, 1.0 - decay)
        self.updates += 1

    def pieces(self) -> dict[str, tuple[Fragment, torch.Tensor]]:
        """This rank's slices by parameter name."""
        return {fragment.name: (fragment, value) for fragment, value in zip(self._fragments, self._values)}

    def put(self, fragment: Fragment, whole: torch.Tensor) -> None:
        """Write this rank's slice of a whole tensor."""
        value = self.pieces()[fragment.name][1]
        value.copy_(self.states.slice_of(fragment, whole))

"""An exponential moving average of the fp32 weights, kept per rank like the optimizer's masters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import torch

from ds_hymotion.parallel.states import MASTER, Fragment, ParameterStates


class WeightAverage:
    """``average ← d·average + (1 − d)·weight`` with d = min(decay, (1 + n)/(10 + n)) after n updates of it.

    Attributes:
        updates: of this rank's parameters by name: what rests longer than others has a ramp of its own.

    The ramp (as in TensorFlow's ExponentialMovingAverage with ``num_updates``) forgets the fresh weights quickly.
    """

    def __init__(self, states: ParameterStates, decay: float) -> None:
        self.states = states
        self.decay = decay
        self.updates: Counter[str] = Counter()
        self._fragments = list(states.fragments())
        self._values = [states.local(fragment, MASTER).detach().clone().float() for fragment in self._fragments]

    @torch.no_grad()
    def update(self, moved: Container[str]) -> None:
        """Take in the weights of the parameters named in ``moved``; the average of those that stood still stays."""
        alike: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for value, part in zip(self._values, self._fragments):
            if part.name in moved:
                alike.setdefault(self.updates[part.name], []).append((value, self.states.local(part, MASTER)))
                self.updates[part.name] += 1
        for updates, pairs in alike.items():
            decay = min(self.decay, (1 + updates) / (10 + updates))
            torch._foreach_lerp_([value for value, _ in pairs], [weight for _, weight in pairs], 1.0 - decay)

    def restore(self, updates: dict[str, int] | int) -> None:
        """Go on after so many updates of each parameter; one number means all of them."""
        counts = {
            part.name: updates if isinstance(updates, int) else updates.get(part.name, 0) for part in self._fragments
        }
        self.updates = Counter(counts)

    def pieces(self) -> dict[str, tuple[Fragment, torch.Tensor]]:
        """This rank's slices by parameter name."""
        return {fragment.name: (fragment, value) for fragment, value in zip(self._fragments, self._values)}

    def put(self, fragment: Fragment, whole: torch.Tensor) -> None:
        """Write this rank's slice of a whole tensor."""
        value = self.pieces()[fragment.name][1]
        value.copy_(self.states.slice_of(fragment, whole))

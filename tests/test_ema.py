"""The weight average by small numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ds_hymotion.parallel.states import Fragment
from ds_hymotion.training.ema import WeightAverage


def average_of(weights: dict[str, torch.Tensor]) -> WeightAverage:
    states: Any = SimpleNamespace(
        fragments=lambda: [Fragment(name, 0, 1) for name in weights], local=lambda fragment, _: weights[fragment.name]
    )
    return WeightAverage(states, 0.9)


def test_what_moves_seldom_has_a_ramp_of_its_own() -> None:
    """d is 1/10, then 2/11; a weight that rested for a step still starts with 1/10."""
    weights = {"often": torch.zeros(1), "seldom": torch.zeros(1)}
    average = average_of(weights)
    weights["often"].fill_(1.0)
    average.update({"often"})
    weights["seldom"].fill_(1.0)
    average.update({"often", "seldom"})
    found = {name: float(value) for name, (_, value) in average.pieces().items()}
    assert found == pytest.approx({"often": 1 - 0.1 * 2 / 11, "seldom": 0.9})
    assert average.updates == {"often": 2, "seldom": 1}


def test_older_checkpoints_have_one_number_for_all() -> None:
    average = average_of({"a": torch.zeros(1), "b": torch.zeros(1)})
    average.restore(5)
    assert average.updates == {"a": 5, "b": 5}
    average.restore({"a": 3})
    assert average.updates == {"a": 3, "b": 0}

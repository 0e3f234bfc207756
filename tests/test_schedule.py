"""The learning rate as a function of the step."""

from __future__ import annotations

import pytest

from ds_hymotion.config.training import TrainingSection
from ds_hymotion.training.schedule import rate_factor


def test_warm_up_and_decay() -> None:
    constant = TrainingSection(max_steps=10, warmup_steps=4)
    assert [rate_factor(step, constant) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = TrainingSection(max_steps=10, schedule="linear", min_lr_ratio=0.5)
    assert [rate_factor(step, linear) for step in (0, 5, 10, 20)] == [1.0, 0.75, 0.5, 0.5]
    cosine = TrainingSection(max_steps=10, warmup_steps=2, schedule="cosine", min_lr_ratio=0.2)
    assert [rate_factor(step, cosine) for step in (2, 6, 10)] == pytest.approx([1.0, 0.6, 0.2])

"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from ds_hymotion.config.training import TrainingSection


def rate_factor(step: int, settings: TrainingSection) -> float:
    """Factor on the full learning rate for optimizer step ``step`` (from 0): linear warm-up, then the schedule."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    span = max(1, settings.max_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    fall = progress if settings.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * progress)
    return 1.0 - (1.0 - settings.min_lr_ratio) * fall

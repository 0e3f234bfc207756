"""``hymotion.evaluation``: the held-out loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ds_hymotion.config.section import Section


class EvaluationSection(Section):
    """Held-out loss."""

    eval_steps: int = Field(0, ge=0, description="steps between evaluations; 0 = none")
    split: Literal["val", "test", "train"] = Field(
        "val", description="which clips; train = training clips, other noise"
    )
    times: list[float] = Field([0.1, 0.3, 0.5, 0.7, 0.9], min_length=1, description="fixed t of the held-out loss")
    max_clips: int = Field(64, ge=1, description="at most so many clips")

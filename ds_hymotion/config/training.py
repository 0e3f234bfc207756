"""``hymotion.training``: length, learning rate, averages, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ds_hymotion.config.section import Section


class TrainingSection(Section):
    """Length, learning rate, averages, checkpoints."""

    max_steps: int = Field(1000, ge=1, description="optimizer steps")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    schedule: Literal["constant", "cosine", "linear"] = Field("constant", description="learning rate after warm-up")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="final over full learning rate for cosine and linear")
    ema_decay: float = Field(0.999, ge=0, lt=1, description="decay of the weight average; 0 = none")
    seed: int = Field(0, ge=0, description="seed of weights, batches, noise and times")
    log_steps: int = Field(10, ge=1, description="steps between log lines")
    save_steps: int = Field(500, ge=0, description="steps between checkpoints; 0 = only at the end")
    keep_last: int = Field(2, ge=1, description="newest checkpoints kept")
    keep_every: int = Field(
        0, ge=0, description="checkpoints of steps that are multiples of this are kept beside the newest; 0 = none"
    )
    joint_groups: str | None = Field(
        None,
        description="joint groups whose loss is logged, and by which the motion head is cut over tensor ranks: names "
        "with commas, groups with colons; without it hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others are "
        "logged and the head's joints are balanced over the ranks",
    )
    joint_loss_weights: list[Annotated[float, Field(ge=0)]] = Field(
        [], description="weight in the loss of each joint group's channels; [] = 1 for all"
    )
    joint_update_every: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="steps between updates of each joint group's rows of the motion head; [] = 1 for all"
    )

"""``hymotion.flow``: what is regressed, and at which times."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ds_hymotion.config.section import Section


class FlowSection(Section):
    """Flow matching: what is regressed, and at which times."""

    loss: Literal["mse", "smooth_l1"] = Field("mse", description="loss on the velocity per element")
    time: Literal["uniform", "stratified", "logit_normal"] = Field("uniform", description="distribution of t in [0, 1]")
    timesteps_per_sample: int = Field(1, ge=1, description="rows per clip and step, each with its own t and noise")
    condition_drop: float = Field(0.1, ge=0, le=1, description="share of rows trained with the null text features")
    joint_position_weight: float = Field(0.0, ge=0, description="weight of the squared error of decoded joints, in m²")
    foot_contact_weight: float = Field(0.0, ge=0, description="weight of squared foot speed during contact, in (m/s)²")

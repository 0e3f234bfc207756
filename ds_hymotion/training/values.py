"""What a training step is logged with."""

from __future__ import annotations

import hashlib
import math

import torch

from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.data.plan import Step
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.training.joints import JointPlan


class StepValues:
    """Turns the summed loss parts of a step into named values.

    Args:
        engine: what made the step.
        maker: knows the clips and their representation.
        joints: the joint groups whose loss is logged on its own.
    """

    def __init__(self, engine: DataEngine, maker: BatchMaker, joints: JointPlan) -> None:
        self.engine = engine
        self.maker = maker
        self.representation = maker.corpus.representation
        self.joints = joints

    def of(self, parts: torch.Tensor, step: Step, rate_factor: float) -> dict[str, float | str]:
        """The values of ``step`` with all ranks' loss ``parts`` [C + 2].

        ``clips`` is a hash of the ids of the step's clips, equal on every layout; ``comm/…`` are means since the last
        call, per step.
        """
        flow = self.engine.objective.flow
        values: dict[str, float | str] = {"loss": float(self.engine.objective.total(parts, step.valid_frames))}
        values.update(self.joints.losses(parts, step.valid_frames))
        if flow.joint_position_weight:
            values["loss_joint_position_m2"] = float(parts[-2]) / (step.valid_frames * self.representation.joints)
        if flow.foot_contact_weight:
            values["loss_foot_contact"] = float(parts[-1]) / (2 * step.valid_frames)
        numbers = {
            "lr": self.engine.full_rate * rate_factor,
            "grad_norm": self.engine.gradient_norm,
            "epoch": float(step.epoch),
            "bucket": float(step.bucket),
            "useful_share": step.useful_share,
            **self.engine.traffic.scalars(),
        }
        if self.engine.engine.fp16_enabled():
            numbers["loss_scale"] = self.engine.loss_scale
        values.update({name: number for name, number in numbers.items() if not math.isnan(number)})
        values["clips"] = self._hash(step)
        return values

    def _hash(self, step: Step) -> str:
        ids = sorted(self.maker.samples[clip].id for clip in step.clips)
        return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]

"""The training objective: a batch in, this rank's share of the step's loss and its parts out."""

from __future__ import annotations

import torch
from torch import nn

from ds_hymotion.config import FlowSection
from ds_hymotion.data.batches import Batch
from ds_hymotion.flow.losses import channel_sums, foot_contact_sum, joint_position_sum
from ds_hymotion.flow.matching import interpolate, predicted_data
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.motion.representation import Representation
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.live import TextTower


class BodyLosses:
    """Losses on decoded joints. Holds statistics in fp32, outside the module whose precision an engine changes."""

    def __init__(
        self, representation: Representation, mean: torch.Tensor, std: torch.Tensor, fps: float, flow: FlowSection
    ) -> None:
        self.representation = representation
        self.mean = mean
        self.std = std
        self.fps = fps
        self.flow = flow

    def sums(self, batch: Batch, x_t: torch.Tensor, prediction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of squared joint errors in m² and of squared foot speeds during contact in (m/s)², over valid frames."""
        data = predicted_data(x_t, prediction, batch.t)
        mean, std = self.mean.to(data.device), self.std.to(data.device)
        position = foot = data.new_zeros(())
        if self.flow.joint_position_weight:
            position = joint_position_sum(data, batch.motion, batch.lengths, self.representation, mean, std)
        if self.flow.foot_contact_weight:
            foot = foot_contact_sum(data, batch.motion, batch.lengths, self.representation, mean, std, self.fps)
        return position, foot


class FlowObjective(nn.Module):
    """The network with its loss, as one module for an engine.

    ``forward(batch, valid_frames)`` returns the rank's share of the step's loss, normalised by all ranks' valid
    elements, and a detached vector [C + 2]: the sums of the loss over valid elements per channel, then the two body
    losses. Adding the vectors of all ranks and micro-batches gives the step's, whatever the layout. With a
    ``text_tower``, batches bring captions as tokens, and it makes their features.
    """

    def __init__(
        self, generator: MotionGenerator, flow: FlowSection, body: BodyLosses, text_tower: TextTower | None = None
    ) -> None:
        super().__init__()
        self.generator = generator
        self.text_tower = text_tower
        self.flow = flow
        self.body = body

    def forward(self, batch: Batch, valid_frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        x_t, target = interpolate(batch.motion, batch.noise, batch.t)
        text = self._text(batch)
        prediction = self.generator(x_t, batch.lengths, text.tokens, text.lengths, text.pooled, batch.t, batch.drop)
        sums = channel_sums(prediction, target, batch.lengths, self.flow.loss)
        position, foot = self.body.sums(batch, x_t, prediction)
        parts = torch.cat([sums, position.view(1), foot.view(1)])
        return self.total(parts, valid_frames), parts.detach()

    def _text(self, batch: Batch) -> TextFeatures:
        if self.text_tower is None:
            return TextFeatures(batch.text, batch.text_lengths, batch.pooled)
        assert batch.captions is not None
        return self.text_tower(batch.captions)

    def total(self, parts: torch.Tensor, valid_frames: int) -> torch.Tensor:
        """The weighted loss of summed ``parts`` [C + 2]."""
        channels = len(parts) - 2
        joints = self.body.representation.joints
        velocity = parts[:channels].sum() / (valid_frames * channels)
        body = (
            self.flow.joint_position_weight * parts[channels] / joints + self.flow.foot_contact_weight * parts[-1] / 2
        )
        return velocity + body / valid_frames

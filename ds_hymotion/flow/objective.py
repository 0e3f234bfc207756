"""The training objective: a batch in, this rank's share of the step's loss and its parts out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.data.batches import Batch
from ds_hymotion.flow.expert_sums import ExpertSums
from ds_hymotion.flow.losses import channel_sums, foot_contact_sum, joint_position_sum
from ds_hymotion.flow.matching import interpolate, predicted_data
from ds_hymotion.model.generator import GeneratorInputs, MotionGenerator
from ds_hymotion.motion.representation import Representation
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.live import TextTower

NO_EXPERTS = torch.zeros(0, dtype=torch.long)


@dataclass(frozen=True)
class ChannelShare:
    """What a rank predicts of the motion's channels.

    Attributes:
        weights: [C] weight of every channel in the loss.
        own: the channels of this rank's predictions, in their order; None for all.
        gather: makes decoded rotations and translation whole where other ranks predict the rest.
        first: whether this rank counts what all tensor ranks compute alike.
    """

    weights: torch.Tensor
    own: torch.Tensor | None = None
    gather: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None
    first: bool = True


class Targets(NamedTuple):
    """What the loss needs of a batch: data and noise [B, L, C], times [B], valid frames [B]; for logs, experts [B]."""

    motion: torch.Tensor
    noise: torch.Tensor
    t: torch.Tensor
    lengths: torch.Tensor
    experts: torch.Tensor = NO_EXPERTS

    @classmethod
    def of(cls, batch: Batch) -> Targets:
        """The batch without its conditions."""
        return cls(batch.motion, batch.noise, batch.t, batch.lengths, batch.experts)


def noised_inputs(
    batch: Batch, text: TextFeatures | None = None, clean_states: bool = False, experts: bool = False
) -> GeneratorInputs:
    """The noised motion of a batch with its conditions, of ``text`` where the batch itself has none.

    With ``clean_states``, states between chunks are made of the motions without noise; with ``experts``, every row
    names its own.
    """
    if text is None:
        text = TextFeatures(batch.text, batch.text_lengths, batch.pooled)
    x_t, _ = interpolate(batch.motion, batch.noise, batch.t)
    conditions = (text.tokens, text.lengths, text.pooled, batch.t, batch.drop)
    clean, expert = batch.motion if clean_states else None, batch.experts if experts else None
    return GeneratorInputs(x_t, batch.lengths, *conditions, clean, expert)


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

    def sums(
        self, batch: Targets, x_t: torch.Tensor, prediction: torch.Tensor, share: ChannelShare
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of squared joint errors in m² and of squared foot speeds during contact in (m/s)², over valid frames.

        ``x_t`` and ``prediction`` hold the channels of ``share``. Where it is not the first, the values are 0 and
        the gradients are the first's.
        """
        position = foot = prediction.new_zeros((), dtype=torch.float32)
        if not (self.flow.joint_position_weight or self.flow.foot_contact_weight):
            return position, foot
        data = predicted_data(x_t, prediction, batch.t)
        if share.own is not None:
            # The true motion stands where other ranks predict: what is decoded there must be a rotation.
            data = batch.motion.float().index_copy(-1, share.own.to(data.device), data)
        mean, std = self.mean.to(data.device), self.std.to(data.device)
        about = (batch.motion, batch.lengths, self.representation, mean, std)
        if self.flow.joint_position_weight:
            position = joint_position_sum(data, *about, complete=share.gather)
        if self.flow.foot_contact_weight:
            foot = foot_contact_sum(data, *about, self.fps, complete=share.gather)
        return (position, foot) if share.first else (position - position.detach(), foot - foot.detach())


class FlowObjective(nn.Module):
    """The network with its loss, as one module for an engine.

    ``forward(batch, valid_frames)`` returns the rank's share of the step's loss, normalised by all ranks' valid
    elements, and a detached vector [C + 2]: the sums of the loss over valid elements per channel, then the two body
    losses. Adding the vectors of all ranks and micro-batches gives the step's, whatever the layout. With a
    ``text_tower``, batches bring captions as tokens, and it makes their features.
    """

    def __init__(
        self,
        generator: MotionGenerator,
        flow: FlowSection,
        body: BodyLosses,
        share: ChannelShare | None = None,
        text_tower: TextTower | None = None,
    ) -> None:
        super().__init__()
        self.generator = generator
        self.text_tower = text_tower
        self.flow = flow
        self.body = body
        self.share = share or ChannelShare(torch.ones(len(body.mean)))
        experts = len(generator.config.expert_names)
        weights = self.share.weights / self.share.weights.sum()
        if self.share.own is not None:
            weights = weights[self.share.own]
        self.expert_sums = ExpertSums(experts, flow.loss, weights, self.share.first) if experts else None

    def forward(self, batch: Batch, valid_frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        network = self.generator.config
        inputs = noised_inputs(batch, self._text(batch), network.clean_states, bool(network.expert_names))
        prediction = self.generator(*inputs.given)
        return self.measure(prediction, Targets.of(batch), valid_frames)

    def measure(self, prediction: torch.Tensor, batch: Targets, valid_frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What ``forward`` returns, for a velocity [B, L, channels of ``share``] that was predicted elsewhere."""
        x_t, target = interpolate(batch.motion, batch.noise, batch.t)
        if self.share.own is not None:
            own = self.share.own.to(target.device)
            x_t, target = x_t[..., own], target[..., own]
        if self.expert_sums is not None and self.training:
            self.expert_sums.add(prediction, target, batch.lengths, batch.experts)
        sums = channel_sums(prediction, target, batch.lengths, self.flow.loss)
        if self.share.own is not None:
            sums = sums.new_zeros(batch.motion.shape[-1]).index_copy(0, own, sums)
        position, foot = self.body.sums(batch, x_t, prediction, self.share)
        parts = torch.cat([sums, position.view(1), foot.view(1)])
        return self.total(parts, valid_frames), parts.detach()

    def _text(self, batch: Batch) -> TextFeatures | None:
        if self.text_tower is None:
            return None
        assert batch.captions is not None
        return self.text_tower(batch.captions)

    def total(self, parts: torch.Tensor, valid_frames: int) -> torch.Tensor:
        """The weighted loss of summed ``parts`` [C + 2]."""
        weights = self.share.weights.to(parts.device)
        joints = self.body.representation.joints
        velocity = (weights * parts[:-2]).sum() / (valid_frames * float(weights.sum()))
        body = self.flow.joint_position_weight * parts[-2] / joints + self.flow.foot_contact_weight * parts[-1] / 2
        return velocity + body / valid_frames

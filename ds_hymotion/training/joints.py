"""A run's joint groups: what is logged and weighted, how often head rows move, and which rank predicts what."""

from __future__ import annotations

import torch

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.config.training import TrainingSection
from ds_hymotion.errors import UserError
from ds_hymotion.flow.objective import ChannelShare
from ds_hymotion.motion.groups import JointGroups
from ds_hymotion.motion.representation import Representation
from ds_hymotion.parallel.joint_head import RotationGather
from ds_hymotion.parallel.mesh import Mesh

LOGGED = "hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others"
"""The groups where a run names none; the head is then cut by joints, not by these."""


class JointPlan:
    """Joint groups of a representation, over ``ranks`` tensor ranks.

    Attributes:
        groups: the groups that are logged and weighted.
        channels: the channels of every group.
        weights: [C] weight of every channel in the loss.
        every: [C] steps between updates of every channel's head row.
        by_rank: one group per tensor rank: the joints whose channels it predicts.
        rank_channels: the channels of every rank.

    Raises:
        UserError: a group, a weight or an interval that does not fit, or fewer groups than ranks.
    """

    def __init__(self, settings: TrainingSection, representation: Representation, ranks: int) -> None:
        self.representation = representation
        self.groups = JointGroups.parse(settings.joint_groups or LOGGED, representation.joint_names)
        self.channels = self.groups.channels(representation)
        self.weights = self._per_channel("joint_loss_weights", settings.joint_loss_weights)
        if not float(self.weights.sum()) > 0:
            raise UserError("hymotion.training.joint_loss_weights are all 0; give at least one group weight, such as 1")
        self.every = self._per_channel("joint_update_every", settings.joint_update_every).long()
        self.by_rank = (
            self.groups.over_ranks(ranks, representation)
            if settings.joint_groups
            else JointGroups.balanced(representation, ranks)
        )
        self.rank_channels = [part.tolist() for part in self.by_rank.channels(representation)]

    def _per_channel(self, key: str, values: list[float] | list[int]) -> torch.Tensor:
        if values and len(values) != len(self.channels):
            raise UserError(
                f"hymotion.training.{key} has {len(values)} value(s) for {len(self.channels)} joint groups; give one "
                f"for each of {', '.join(self.groups.labels)}"
            )
        result = torch.ones(sum(map(len, self.channels)))
        for channels, value in zip(self.channels, values):
            result[channels] = value
        return result

    def share(self, mesh: Mesh) -> ChannelShare:
        """What ``mesh``'s rank has of the loss."""
        if mesh.model_size == 1:
            return ChannelShare(self.weights)
        own = torch.tensor(self.rank_channels[mesh.model_rank])
        gather = RotationGather(self.by_rank.joints, 0, mesh.model_group)
        return ChannelShare(self.weights, own, gather, first=mesh.model_rank == 0)

    def losses(self, parts: torch.Tensor, valid_frames: int) -> dict[str, float]:
        """``loss_fm_joint_<group>``: every group's mean loss per element, from summed loss parts [C + 2]."""
        return {
            f"loss_fm_joint_{label}": float(parts[channels].sum()) / (valid_frames * len(channels))
            for label, channels in zip(self.groups.labels, self.channels)
        }

    def suggestion(self) -> str:
        """Joint groups, one per tensor rank, with nearly equal numbers of channels."""
        balanced = JointGroups.balanced(self.representation, len(self.by_rank.joints))
        return balanced.text(self.representation.joint_names)

    def describe(self, flow: FlowSection) -> str:
        """How many channels every tensor rank predicts, and whose; what is gathered."""
        parts = [f"{len(channels)} ({label})" for label, channels in zip(self.by_rank.labels, self.rank_channels)]
        text = f"motion head: {' + '.join(parts)} channels on {len(parts)} tensor ranks"
        if flow.joint_position_weight or flow.foot_contact_weight:
            text += "; losses on joint positions gather the decoded rotations of every rank's joints"
        return text

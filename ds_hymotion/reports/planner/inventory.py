"""Which parameters every stage and tensor rank holds, counted on the meta device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.expert_owners import owned_experts
from ds_hymotion.errors import UserError
from ds_hymotion.model.adapters import LowRank, add_adapters
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.experts import expert_of
from ds_hymotion.model.temporal import build
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.parameter_groups import SyncGroups, sync_groups
from ds_hymotion.parallel.stages import StagePlan, check_trained
from ds_hymotion.parallel.tensor import plan_cuts
from ds_hymotion.reports.planner.load import Load
from ds_hymotion.reports.planner.states import Held
from ds_hymotion.training.adapters import adapted_linears
from ds_hymotion.training.joints import JointPlan
from ds_hymotion.training.network import sized_network, stages_by_layers


@dataclass(frozen=True)
class Inventory:
    """The network of a configuration and where its tensors lie.

    Attributes:
        network: its sizes.
        shapes: whole shape of every parameter, by released name.
        cuts: how tensors are cut over the tensor ranks.
        stages: which stage holds what.
        groups: which parameters are trained, and which are averaged every step.
        joints: which tensor rank predicts which channels.
        experts: how many there are, and over how many groups of data ranks they are divided.
        low_rank: the adapters, of a run that trains them alone.
    """

    network: ModelConfig
    shapes: dict[str, tuple[int, ...]]
    cuts: CutPlan
    stages: StagePlan
    groups: SyncGroups
    joints: JointPlan
    experts: tuple[int, int]
    low_rank: LowRank | None

    @classmethod
    def of(cls, config: RunConfig, load: Load) -> Inventory:
        """Divide the network as a run would.

        Raises:
            UserError: what a run would refuse, and what is not planned: pipelines by time, encoders in the run.
        """
        settings = config.hymotion
        for key, value, planned in (
            ("pipeline.mode", settings.pipeline.mode, "layers"),
            ("text.mode", settings.text.mode, "cached"),
        ):
            if value != planned:
                raise UserError(f"{config.name}: hymotion.{key} = {value} is not planned; plan with {planned}")
        network = sized_network(settings, load.space.channels)
        with torch.device("meta"):
            generator = build(network)
        low_rank = adapted_linears(settings.lora, network) if settings.lora else None
        if low_rank:
            add_adapters(generator, low_rank, 0, lambda _: False)
        joints = JointPlan(settings.training, load.space, settings.parallel.model)
        shapes = {name: tuple(value.shape) for name, value in generator.named_parameters()}
        trained = [name for name, value in generator.named_parameters() if value.requires_grad]
        frozen = tuple(name for name in shapes if name not in trained)
        groups = SyncGroups(tuple(trained), (), frozen) if low_rank else sync_groups(settings.gradient_sync, trained)
        stages = stages_by_layers(config, network, load.mean_frames(settings.data.bucket_bounds[-1]))
        check_trained(stages, groups)
        return cls(
            network,
            shapes,
            plan_cuts(generator, network, joints.rank_channels),
            stages,
            groups,
            joints,
            (settings.experts.number, settings.experts.size),
            low_rank,
        )

    def held(self, stage: int, rank: int, sharers: int) -> Held:
        """What tensor rank ``rank`` of a stage holds, shared by ``sharers`` data ranks; owners of experts are alike."""
        sizes = {name: self._size(name, rank) for name in self._names(stage)}
        frozen = sum(size for name, size in sizes.items() if name in self.groups.frozen)
        experts = sum(size for name, size in sizes.items() if expert_of(name) is not None)
        owners = self.experts[1]
        return Held(
            sum(sizes.values()) - frozen - experts, frozen, sharers, max(sizes.values()), experts, sharers // owners
        )

    def _names(self, stage: int) -> list[str]:
        """Parameters of a stage on the first data rank."""
        own = owned_experts(0, *self.experts) if self.experts[0] else ()
        return [name for name in self.shapes if self.stages.holds(stage, name) and expert_of(name) in (None, *own)]

    def replicated(self, stage: int) -> int:
        """Numbers of a stage that every tensor rank holds whole."""
        names = [name for name in self._names(stage) if name not in self.cuts.cuts]
        return sum(math.prod(self.shapes[name]) for name in names) if self.cuts.size > 1 else 0

    def always(self, stage: int, rank: int) -> int:
        """Trained numbers of a rank's trunk that are averaged every step."""
        names = [name for name in self._names(stage) if expert_of(name) is None and name in self.groups.always]
        return sum(self._size(name, rank) for name in names)

    def _size(self, name: str, rank: int) -> int:
        shape = self.shapes[name]
        return math.prod(self.cuts.cuts[name].part_shape(shape, rank) if name in self.cuts.cuts else shape)

"""Parameters and optimizer bytes per tensor rank of the released network, counted on the meta device."""

from __future__ import annotations

import torch

from ds_hymotion.config.training import TrainingSection
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import preset
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.tensor import cut_network, plan_cuts
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.training.joints import JointPlan

NETWORK = "hy-motion-1.0"
BYTES = {"bf16 weights": 2, "fp32 master, two moments": 12, "average": 4}


def run() -> list[Row]:
    """The largest rank's parameters and state at 1, 2, 4 and 5 ranks."""
    rows = []
    whole = max(parameters_per_rank(NETWORK, 1))
    for ranks in (1, 2, 4, 5):
        counts = parameters_per_rank(NETWORK, ranks)
        most = max(counts)
        conditions = {
            "network": NETWORK,
            "tensor ranks": ranks,
            "rank": f"largest (smallest {min(counts) / 1e6:.2f} M)",
            "how": "counted",
        }
        rows.append(Row("parameters per rank", most / 1e6, "M", whole / 1e6, most / whole, conditions))
        for name, size in BYTES.items():
            rows.append(Row(f"{name} per rank", most * size / 1e9, "GB", whole * size / 1e9, most / whole, conditions))
    return rows


def parameters_per_rank(network: str, ranks: int) -> list[int]:
    """How many parameters every tensor rank of a preset holds, its motion head balanced by joints."""
    joints = JointPlan(TrainingSection(), representation("hymotion-201"), ranks)
    counts = []
    for rank in range(ranks):
        with torch.device("meta"):
            generator = MotionGenerator(preset(network))
        plan = plan_cuts(generator, generator.config, joints.rank_channels)
        cut_network(generator, plan, rank, None)
        counts.append(sum(value.numel() for value in generator.parameters()))
    return counts

"""Memory per rank: what is counted, and what is said about a spread."""

from __future__ import annotations

import torch
from torch import nn

from ds_hymotion.training.memory import MemoryUse, counting_saved, describe, describe_peaks


class Objective(nn.Module):
    """A network of 8 × 8 weights, and a loss that keeps one value per output."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x).square().sum()


def test_saved_bytes_of_the_largest_call() -> None:
    objective = Objective()
    with counting_saved(objective, objective.network) as saved:
        for rows in (3, 5, 2):
            objective(torch.randn(rows, 8)).backward()
    assert (saved.network, saved.loss) == (4 * 5 * 8, 4 * 5 * 8)
    assert not objective._forward_pre_hooks and not objective.network._forward_hooks


def test_a_spread_names_its_rank_and_its_cause() -> None:
    even = MemoryUse(4_000_000, 8_000_000, 500_000, 3_000_000)
    (line,) = describe([even, even])
    assert line.startswith("memory per rank, MB: 0: 15.5 (weights 4.000, states 8.000, head 0.500, activations 3.000)")
    long = MemoryUse(4_000_000, 8_000_000, 500_000, 9_000_000)
    _, cause = describe([even, even, long], "hip:others")
    assert cause.startswith("rank 2 holds 39 % more than rank 0, mostly activations: ")
    assert "activations +6.000" in cause and "--joint_groups" not in cause
    _, cause = describe([even, MemoryUse(4_000_000, 8_000_000, 4_500_000, 3_000_000)], "hip:others")
    assert "rank 1 holds 26 % more than rank 0, mostly head" in cause
    assert cause.endswith("balance the head with --joint_groups hip:others")
    many = describe([even] * 20 + [long])[0]
    assert many.count("weights") == 2 and "; 20: 21.5 (" in many
    assert many.endswith("; spread 39 %") and line.endswith("; spread 0 %")
    assert describe_peaks([100_000_000, 90_000_000]) == (
        "allocated per device at most, MB: 0: 100.0; 1: 90.0; spread 11 %"
    )
    assert len(describe([even, MemoryUse(4_000_000, 8_000_000, 1_500_000, 3_000_000)])) == 1

"""Units over stages: costs, balance, explicit splits, and what is refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from ds_hymotion.config.pipeline import PipelineSection
from ds_hymotion.errors import UserError
from ds_hymotion.model import blocks
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.geometry import Geometry
from ds_hymotion.model.presets import preset
from ds_hymotion.parallel.stages import Unit, layer_costs, network_units, plan_stages

LITE = preset("hy-motion-1.0-lite")
FULL = preset("hy-motion-1.0")


def units(*costs: float) -> list[Unit]:
    """An embedding, blocks, and a head of the given costs."""
    inner = [Unit(f"single {i}", f"b{i}.", 1, cost, 10) for i, cost in enumerate(costs[1:-1])]
    return [Unit("embed", "", 0, costs[0], 5), *inner, Unit("head", "head.", 0, costs[-1], 1)]


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) + attn_mask) @ v


def test_costs_are_the_counted_operations() -> None:
    config = ModelConfig(32, 3, 2, input_dim=11, ctxt_input_dim=24, vtxt_input_dim=12, refiner_layers=2)
    frames, tokens = 40, 7
    network = MotionGenerator(config).motion_transformer
    lengths, text_lengths = torch.tensor([frames]), torch.tensor([tokens])
    geometry = Geometry.build(frames, tokens, lengths, text_lengths, config)
    text, pooled, t = torch.randn(1, tokens, 24), torch.randn(1, 12), torch.rand(1)
    stream = network.embed(torch.randn(1, frames, 11), text, pooled, t, geometry)
    calls = [
        lambda: network.embed(torch.randn(1, frames, 11), text, pooled, t, geometry),
        lambda: network.double_blocks[0](stream, geometry),
        lambda: network.single_blocks[0](stream, geometry),
        lambda: network.head(stream),
    ]
    counted = []
    with mock.patch.object(blocks.F, "scaled_dot_product_attention", plain_attention):
        for call in calls:
            with FlopCounterMode(display=False) as counter:
                call()
            counted.append(counter.get_total_flops() / 2)
    assert list(layer_costs(config, frames, tokens)) == counted


@pytest.mark.parametrize(("config", "total"), [(FULL, 1_042_868_681 + 4864), (LITE, 460_841_673 + 4864)])
def test_units_hold_every_parameter_once(config: ModelConfig, total: int) -> None:
    parts = network_units(config, 120, 30)
    assert sum(unit.parameters for unit in parts) == total
    assert sum(unit.blocks for unit in parts) == config.num_layers
    if config is FULL:
        assert (parts[1].parameters, parts[10].parameters) == (59_021_056, 24_590_208)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6, 8])
def test_the_released_network_balances(stages: int) -> None:
    plan = plan_stages(network_units(FULL, 150, 30), stages, PipelineSection())
    assert plan.stages == stages and sum(plan.split) == 27 and min(plan.split) > 0
    assert plan.imbalance < 1.2
    assert plan.table().count("\n") == stages
    with torch.device("meta"):
        names = [name for name, _ in MotionGenerator(FULL).named_parameters()]
    held = [[name for name in names if plan.stage_of(name) == stage] for stage in range(stages)]
    assert all(held) and sum(map(len, held)) == len(names)
    assert "null_ctxt_input" in held[0] and "motion_transformer.text_refiner.input_embedder.weight" in held[0]
    assert "motion_transformer.final_layer.linear.weight" in held[-1]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=8), st.integers(1, 5))
def test_no_cut_has_a_lighter_heaviest_stage(costs: list[int], stages: int) -> None:
    if stages > len(costs):
        return
    plan = plan_stages(units(*costs), stages, PipelineSection(max_imbalance=1e9))
    inner = itertools.combinations(range(1, len(costs)), stages - 1)
    cuts = [[0, *chosen, len(costs)] for chosen in inner]
    heaviest = min(max(sum(costs[a:b]) for a, b in itertools.pairwise(cut)) for cut in cuts)
    assert max(plan.costs()) == heaviest
    assert all(plan.held(stage) for stage in range(stages))


def test_balances_differ_where_costs_do() -> None:
    parts = units(1, 6, 1, 1, 1, 1, 1)
    assert plan_stages(parts, 2, PipelineSection()).split == [1, 4]
    assert plan_stages(parts, 2, PipelineSection(balance="uniform", max_imbalance=9)).split in ([2, 3], [3, 2])
    assert plan_stages(parts, 2, PipelineSection(split=[3, 2], max_imbalance=9)).bounds == (0, 4, 7)


def test_a_heavy_tail_is_one_piece() -> None:
    parts = [*units(1, 1, 1, 1, 1, 1, 1)[:-3], Unit("tail", "tail.", 2, 4, 99)]
    assert plan_stages(parts, 2, PipelineSection()).split == [3, 2]
    with pytest.raises(UserError, match="one piece"):
        plan_stages(parts, 2, PipelineSection(split=[4, 1]))


def test_experts_are_one_heavy_piece_at_the_end() -> None:
    six = replace(FULL, expert_names=tuple("ABCDEF"), expert_blocks=4)
    parts, plain = network_units(six, 150, 30, 2, held_experts=6), network_units(FULL, 150, 30, 2)
    assert (parts[-1].name, parts[-1].blocks, len(parts)) == ("experts", 4, len(plain) - 4)
    assert parts[-1].parameters == 6 * sum(unit.parameters for unit in plain[-5:])
    assert network_units(six, 150, 30, 2, held_experts=1)[-1].cost == pytest.approx(sum(u.cost for u in plain[-5:]))
    assert parts[-1].cost > 1.5 * network_units(six, 150, 30, 2, held_experts=1)[-1].cost
    plan = plan_stages(parts, 2, PipelineSection())
    assert plan.stage_of("experts.5.motion_transformer.final_layer.linear.weight") == 1 and sum(plan.split) == 27
    with pytest.raises(UserError, match="one piece"):
        plan_stages(parts, 2, PipelineSection(split=[25, 2]))
    with pytest.raises(UserError, match=rf"the best split is \[{plan.split[0]}, {plan.split[1]}\] with 1.0"):
        plan_stages(parts, 2, PipelineSection(split=[5, 22]))
    with pytest.raises(UserError, match="use . stages, or raise max_imbalance"):
        plan_stages(parts, 8, PipelineSection())


def test_an_embedding_may_stand_alone() -> None:
    assert plan_stages(units(3, 3, 3, 0), 3, PipelineSection(split=[0, 1, 1])).bounds == (0, 1, 2, 4)
    assert plan_stages(units(3, 3, 3, 3), 2, PipelineSection(split=[2, 0], max_imbalance=2)).bounds == (0, 3, 4)


@pytest.mark.parametrize(
    ("costs", "stages", "changes", "message"),
    [
        ((1, 1, 1), 4, {}, "use 1 to 3"),
        ((1, 1, 1, 1), 2, {"split": [1, 2]}, r"such as \[1, 1\]"),
        ((1, 1, 1, 1), 3, {"split": [1, 0, 1]}, "empty"),
        ((1, 1, 1, 1), 2, {"split": [3, -1]}, "empty"),
        ((1, 9, 1, 1, 1, 1, 1), 2, {"split": [4, 1]}, r"the best split is \[1, 4\] with 1.33"),
        ((1, 9, 1, 1, 1), 3, {}, r"has 2.08: use 1 stages, or raise max_imbalance"),
    ],
)
def test_refusals_say_what_is_legal(
    costs: tuple[float, ...], stages: int, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plan_stages(units(*costs), stages, PipelineSection(**changes))


def test_the_table_names_runs_of_layers() -> None:
    lines = plan_stages(network_units(LITE, 120, 30), 2, PipelineSection()).table().splitlines()
    assert lines[1].startswith("0      embed, double 0-5, single 0")
    assert lines[2].startswith("1      single ") and "-11, head" in lines[2]
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[1:]]
    assert math.isclose(sum(shares), 100, abs_tol=0.11)

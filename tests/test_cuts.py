"""Cutting whole tensors and joining them again, and which tensors of the network are cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import PRESETS, preset
from ds_hymotion.parallel.cuts import Cut, CutPlan, ListCut, SegmentCut
from ds_hymotion.parallel.tensor import RULES, check_size, cut_network, legal_sizes, plan_cuts, rule_of


def test_segments_are_cut_one_by_one() -> None:
    cut = SegmentCut(0, (4, 4, 4, 2), 2)
    assert cut.index(0).tolist() == [0, 1, 4, 5, 8, 9, 12]
    assert cut.index(1).tolist() == [2, 3, 6, 7, 10, 11, 13]
    assert cut.part_shape((14, 5), 1) == (7, 5) and cut.whole_shape((7, 5)) == (14, 5)
    with pytest.raises(ValueError, match="segment of 2 cannot be cut into 4"):
        SegmentCut(0, (4, 2), 4)
    with pytest.raises(ValueError, match=r"dim 0 of \(13, 5\) is not 14"):
        cut.cut(torch.zeros(13, 5), 0)
    with pytest.raises(ValueError, match="every index once"):
        ListCut(0, ((0, 1), (1, 2)))


@given(
    size=st.integers(1, 4),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    dim=st.integers(0, 1),
    uneven=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_joining_undoes_cutting(size: int, widths: list[int], dim: int, uneven: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    length = size * sum(widths)
    cut: Cut = SegmentCut(dim, tuple(size * width for width in widths), size)
    if uneven:
        owner = torch.randint(size, (length,), generator=random).tolist()
        cut = ListCut(dim, tuple(tuple(i for i in range(length) if owner[i] == rank) for rank in range(size)))
    whole = torch.randn(*((length, 3) if dim == 0 else (3, length)), generator=random)
    parts = [cut.cut(whole, rank) for rank in range(size)]
    assert [tuple(part.shape) for part in parts] == [cut.part_shape(whole.shape, rank) for rank in range(size)]
    assert torch.equal(cut.join(parts), whole)
    assert all(cut.whole_shape(part.shape) == tuple(whole.shape) for part in parts)


def even_channels(channels: int, size: int) -> list[list[int]]:
    return [part.tolist() for part in torch.arange(channels).chunk(size)]


def meta_network(config: ModelConfig) -> MotionGenerator:
    with torch.device("meta"):
        return MotionGenerator(config)


def parameters_on(config: ModelConfig, size: int, rank: int) -> int:
    network = meta_network(config)
    plan = plan_cuts(network, config, even_channels(config.input_dim, size))
    cut_network(network, plan, rank, None)
    return sum(value.numel() for value in network.motion_transformer.parameters())


@pytest.mark.parametrize(("size", "most"), [(1, 1_042_868_681), (2, 555e6), (4, 310e6), (5, 261e6)])
def test_parameters_per_rank_of_the_released_network(size: int, most: float) -> None:
    assert parameters_on(preset("hy-motion-1.0"), size, 0) <= most
    assert (
        abs(parameters_on(preset("hy-motion-1.0"), size, size - 1) - parameters_on(preset("hy-motion-1.0"), size, 0))
        < 1e6
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_layer_of_the_blocks_has_a_rule(name: str) -> None:
    network = meta_network(PRESETS[name])
    used = set()
    for module_name, module in network.named_modules():
        matching = [rule for rule in RULES if rule is rule_of(module_name)]
        used.update(matching)
        if (
            isinstance(module, nn.Linear)
            and "blocks" in module_name
            and not module_name.endswith(("blocks.0", "blocks.2"))
        ):
            assert matching, module_name
    assert used == set(RULES)


def test_names_and_whole_shapes_stay() -> None:
    config = PRESETS["tiny"]
    plain = meta_network(config)
    before = {name: tuple(value.shape) for name, value in plain.named_parameters()}
    for size in legal_sizes(config):
        network = meta_network(config)
        plan = plan_cuts(network, config, even_channels(config.input_dim, size))
        cut_network(network, plan, size - 1, None)
        assert {name: plan.whole_shape(name, value.shape) for name, value in network.named_parameters()} == before
        assert bool(plan.cuts) == (size > 1)
        if size > 1:
            marked = {name for name, value in network.named_parameters() if value.tensor_model_parallel}  # type: ignore[attr-defined]
            assert marked == set(plan.cuts)


def test_legal_sizes() -> None:
    assert legal_sizes(PRESETS["hy-motion-1.0"]) == [1, 2, 4, 5, 10, 20]
    assert legal_sizes(PRESETS["hy-motion-1.0-lite"]) == [1, 2, 4, 8, 16]
    with pytest.raises(UserError, match=r"= 8 does not divide the network's 20 heads .* use one of 1, 2, 4, 5, 10, 20"):
        check_size(PRESETS["hy-motion-1.0"], 8)
    assert legal_sizes(preset("tiny", mlp_ratio=1.99)) == [1]


def test_an_empty_plan_changes_nothing() -> None:
    whole = torch.arange(6.0)
    assert CutPlan().cut("any", whole, 0) is whole and CutPlan().join("any", [whole]) is whole

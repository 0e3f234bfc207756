"""The network with experts on one device: routing, copies, merging."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ds_hymotion.errors import UserError
from ds_hymotion.flow.sampler import sample
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.experts import ExpertGenerator, Routed, expert_of, merged, merged_config, with_experts
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.released import load_into
from ds_hymotion.model.temporal import build
from ds_hymotion.text.encoder import TextFeatures

PLAIN = ModelConfig(feat_dim=16, num_layers=6, num_heads=2, input_dim=5, ctxt_input_dim=6, vtxt_input_dim=7)
THREE = replace(PLAIN, expert_names=("A", "B", "C"), expert_blocks=2)


def filled(config: ModelConfig, seed: int = 0) -> MotionGenerator:
    generator, random = build(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.2)
    return generator


def inputs(rows: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=random)  # noqa: E731
    lengths = torch.arange(5, 5 + rows)
    return (
        draw(rows, 12, 5),
        lengths,
        draw(rows, 4, 6),
        torch.full((rows,), 4),
        draw(rows, 7),
        torch.rand(rows, generator=random),
        torch.arange(rows) % 2 == 0,
    )


def test_every_row_is_made_by_the_trunk_and_the_tail_of_its_expert() -> None:
    generator = filled(THREE)
    expert = torch.tensor([2, 0, 0, 2, 2])
    velocity = generator(*inputs(5), expert)
    for number in (0, 2):
        alone = build(merged_config(THREE))
        load_into(alone, merged(generator.state_dict(), number))
        rows = expert == number
        expected = alone(*(value[rows] for value in inputs(5)))
        torch.testing.assert_close(velocity[rows], expected, rtol=0, atol=2e-6)
    assert float((velocity[1] - velocity[0]).detach().abs().max()) > 1e-2


def test_names_and_sizes_are_the_released_ones_with_a_prefix() -> None:
    plain, three = build(PLAIN).state_dict(), build(THREE).state_dict()
    tail = {name for name in plain if "single_blocks.2." in name or "single_blocks.3." in name or "final_layer" in name}
    expected = {name: value.shape for name, value in plain.items() if name not in tail}
    expected |= {f"experts.{k}.{name}": plain[name].shape for k in range(3) for name in tail}
    assert {name: value.shape for name, value in three.items()} == expected


def test_copies_of_a_plain_network_compute_what_it_does() -> None:
    plain, generator = filled(PLAIN), filled(THREE, 3)
    load_into(generator, with_experts(generator, plain.state_dict()))
    expert = torch.tensor([0, 1, 2, 1])
    torch.testing.assert_close(generator(*inputs(4), expert), plain(*inputs(4)), rtol=0, atol=2e-6)


def test_noise_makes_copies_differ_by_a_share_of_their_spread() -> None:
    plain, generator = filled(PLAIN), filled(THREE)
    noisy = with_experts(generator, plain.state_dict(), noise=0.1, seed=4)
    name = "motion_transformer.single_blocks.3.linear1.weight"
    spread = plain.get_parameter(name).std(correction=0)
    for k in range(3):
        ratio = (noisy[f"experts.{k}.{name}"] - plain.get_parameter(name)).std() / spread
        assert float(ratio) == pytest.approx(0.1, rel=0.05)
    assert not torch.equal(noisy[f"experts.0.{name}"], noisy[f"experts.1.{name}"])
    assert torch.equal(noisy["null_vtxt_feat"], plain.null_vtxt_feat)


def test_experts_without_rows_have_zero_gradients() -> None:
    generator = filled(THREE)
    generator(*inputs(2), torch.tensor([1, 1])).sum().backward()
    for name, parameter in generator.named_parameters():
        assert parameter.grad is not None, name
        if expert_of(name) in (0, 2):
            assert not parameter.grad.any(), name
    generator(*(value[:0] for value in inputs(2)), torch.zeros(0, dtype=torch.long)).sum().backward()


def test_a_trunk_that_does_not_learn_has_no_gradient() -> None:
    generator = filled(THREE)
    assert isinstance(generator, ExpertGenerator)
    whole = generator(*inputs(3), torch.tensor([0, 1, 2]))
    generator.trunk_learns = False
    frozen = generator(*inputs(3), torch.tensor([0, 1, 2]))
    frozen.sum().backward()
    assert torch.equal(whole, frozen)
    assert all(
        (parameter.grad is None) == (expert_of(name) is None) for name, parameter in generator.named_parameters()
    )


def test_a_row_of_an_expert_held_elsewhere_is_refused() -> None:
    generator = filled(THREE)
    assert isinstance(generator, ExpertGenerator)
    generator.keep((1,))
    assert {expert_of(name) for name in generator.state_dict()} == {None, 1}
    generator(*inputs(2), torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="expert 2"):
        generator(*inputs(2), torch.tensor([1, 2]))


def test_sampling_with_guidance_takes_one_expert_per_row() -> None:
    generator = filled(THREE)
    assert isinstance(generator, ExpertGenerator)
    _, lengths, text, text_lengths, pooled, _, _ = inputs(2)
    features, noise = TextFeatures(text, text_lengths, pooled), torch.randn(2, 6, 5)
    both = sample(Routed(generator, torch.tensor([2, 1])), features, lengths, noise, steps=2)
    plain = build(PLAIN)
    for row, number in enumerate((2, 1)):
        load_into(plain, merged(generator.state_dict(), number))
        alone = sample(plain, features, lengths, noise, steps=2)
        torch.testing.assert_close(both[row], alone[row], rtol=0, atol=1e-5)


def test_the_first_layers_are_always_shared() -> None:
    release = PRESETS["hy-motion-1.0-lite"]
    assert replace(release, expert_names=("A",), expert_blocks=10).single_layers == 12
    for config, blocks in ((release, 11), (PLAIN, 5), (PLAIN, 0)):
        with pytest.raises(UserError, match="expert_blocks"):
            replace(config, expert_names=("A",), expert_blocks=blocks)
    with pytest.raises(UserError, match="twice"):
        replace(PLAIN, expert_names=("A", "A"), expert_blocks=1)


def test_an_expert_of_the_release_has_102_million_parameters() -> None:
    names = ("LOCOMOTION", "MANIPULATION", "GESTURE", "POSTURE", "BALANCE", "TRANSITION")
    with torch.device("meta"):
        generator = build(replace(PRESETS["hy-motion-1.0"], expert_names=names, expert_blocks=4))
    counts: dict[int | None, int] = {}
    for name, parameter in generator.named_parameters():
        counts[expert_of(name)] = counts.get(expert_of(name), 0) + parameter.numel()
    assert {counts[number] for number in range(6)} == {counts[0]}
    assert counts[0] / 1e6 == pytest.approx(101.9, abs=0.5)
    assert sum(counts.values()) / 1e9 == pytest.approx(1.55, abs=0.01)

"""The network by time on one device: what a chunk sees, and how it follows from the plain network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.flow.sampler import sample
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.released import load_into
from ds_hymotion.model.temporal import TemporalGenerator, build, with_states
from ds_hymotion.parallel.parameter_groups import members
from ds_hymotion.text.encoder import TextFeatures

SIZES = {"feat_dim": 16, "num_layers": 3, "num_heads": 2, "input_dim": 5, "ctxt_input_dim": 6, "vtxt_input_dim": 7}


def network(**changes: int) -> TemporalGenerator:
    generator = build(ModelConfig(**{**SIZES, "chunk_frames": 10, "halo_frames": 3, "state_frames": 4, **changes}))
    assert isinstance(generator, TemporalGenerator)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.25)
    return generator


def inputs(lengths: list[int], seed: int = 2) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    rows, frames = len(lengths), max(lengths)
    return [
        torch.randn(rows, frames, 5, generator=random),
        torch.tensor(lengths),
        torch.randn(rows, 4, 6, generator=random),
        torch.full((rows,), 3),
        torch.randn(rows, 7, generator=random),
        torch.rand(rows, generator=random),
        torch.zeros(rows, dtype=torch.bool),
    ]


@pytest.mark.parametrize("networks", [1, 4])
def test_frames_without_a_band_are_those_of_the_plain_network(networks: int) -> None:
    """Where a frame sees itself and the text alone, and the state enters with zero, cutting changes nothing."""
    plain = MotionGenerator(ModelConfig(**SIZES, band_frames=0))
    initialise(plain, 3, copy_noise=False)
    source = network(band_frames=0)
    load_into(plain, {name: value for name, value in source.state_dict().items() if name in plain.state_dict()})
    parts = build(
        ModelConfig(**SIZES, band_frames=0, chunk_frames=10, halo_frames=3, state_frames=4, chunk_networks=networks)
    )
    initialise(parts, 0, copy_noise=False)
    load_into(parts, with_states(parts, plain.state_dict()))
    given = inputs([35, 20, 7])
    got, wanted = parts(*given), plain(*given)
    assert wanted.abs().max() > 0.1
    for row, length in enumerate([35, 20, 7]):
        assert torch.allclose(got[row, :length], wanted[row, :length], atol=2e-6)
        assert not got[row, -(-length // 10) * 10 :].any()


@pytest.mark.parametrize("networks", [1, 3])
def test_a_chunk_sees_its_frames_its_halo_and_states(networks: int) -> None:
    generator = network(chunk_networks=networks)
    given = inputs([30])
    given[0].requires_grad_()
    (gradient,) = torch.autograd.grad(generator(*given)[0, 20:30].square().sum(), given[0])
    seen = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
    assert seen == [*range(6, 10), *range(16, 30)], "chunk 2, its halo of 3 inside the 4 frames of state 1, and state 0"


def test_motions_do_not_see_each_other() -> None:
    generator = network()
    together = inputs([25, 12, 30])
    whole = generator(*together)
    for row, length in enumerate([25, 12, 30]):
        alone = [value[row : row + 1] for value in together]
        assert torch.allclose(generator(*alone)[0, :length], whole[row, :length], atol=1e-6)


def test_an_empty_batch_gives_every_weight_a_gradient() -> None:
    generator = network()
    empty = [value[:0] for value in inputs([12])]
    velocity = generator(*empty)
    assert velocity.shape == (0, 12, 5)
    velocity.sum().backward()
    assert all(parameter.grad is not None for parameter in generator.parameters())


def test_fresh_networks_of_later_chunks_are_copies() -> None:
    generator = network(chunk_networks=3)
    initialise(generator, 7, copy_noise=True)
    values = dict(generator.named_parameters())
    name = "motion_transformer.input_encoder.weight"
    assert torch.equal(values[name], values["specialists.1." + name]) and values[name].any()
    assert not values["specialists.0.state_projection.weight"].any()


def test_groups_of_parameters_are_those_of_every_network() -> None:
    names = [name for name, _ in network(chunk_networks=3).named_parameters()]
    found = members(["null_condition", "motion_head"], names, "frozen")
    assert len(found) == 3 * 4 and "specialists.1.null_vtxt_feat" in found
    assert members(["specialists.0.state_*"], names, "frozen") == {n for n in names if "specialists.0.state_" in n}


def test_sampling_computes_all_chunks_together() -> None:
    generator = network()
    given = inputs([25, 12])
    text = TextFeatures(given[2], given[3], given[4])
    motions = sample(generator, text, given[1], seed=1, steps=3, guidance=2.0)
    assert motions.shape == (2, 25, 5) and motions[0].any() and not motions[1, 12:].any()


def test_clean_states_sample_one_chunk_after_the_other() -> None:
    """A sampled chunk follows from the finished ones before it, and from nothing behind it."""
    generator = network(clean_states=True)
    given = inputs([25, 12])
    text = TextFeatures(given[2], given[3], given[4])
    noise = torch.randn(2, 25, 5, generator=torch.Generator().manual_seed(4))
    motions = sample(generator, text, given[1], noise, steps=3, guidance=2.0)
    assert motions[0].any() and not motions[1, 12:].any()
    changed = noise.clone()
    changed[:, 20:] += 1
    again = sample(generator, text, given[1], changed, steps=3, guidance=2.0)
    assert torch.equal(again[:, :20], motions[:, :20]) and not torch.equal(again[0, 20:], motions[0, 20:])
    changed = noise.clone()
    changed[:, 7] += 1  # frame 7 makes the first state and lies in the halo of the second chunk
    again = sample(generator, text, given[1], changed, steps=3, guidance=2.0)
    assert not torch.equal(again[0, 10:20], motions[0, 10:20])


def test_clean_states_come_from_the_clean_motion() -> None:
    generator = network(halo_frames=0, clean_states=True)
    given = inputs([20])
    clean = torch.zeros_like(given[0])
    first, second = generator(*given, clean), generator(*given, clean + 1)
    assert torch.equal(first[0, :10], second[0, :10]) and not torch.equal(first[0, 10:], second[0, 10:])


def test_a_motion_beyond_the_last_network_is_refused() -> None:
    with pytest.raises(UserError, match="a motion of 35 frames: this network has 3 chunks of 10 .* at most 30"):
        network(chunk_networks=3)(*inputs([35]))


def test_a_halo_longer_than_a_chunk_is_refused() -> None:
    with pytest.raises(UserError, match="halo_frames = 11 must be at most chunk_frames = 10"):
        ModelConfig(**SIZES, chunk_frames=10, halo_frames=11, state_frames=4)

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.flow.sampler import guided, integrate, row_noise, sample
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.text.encoder import TextFeatures
from tests.golden_network import golden_generator, golden_numbers, randomised

SMALL = ModelConfig(
    24, 3, 3, input_dim=6, ctxt_input_dim=5, vtxt_input_dim=4, refiner_layers=1, text_position=40, band_frames=3
)


def small_generator() -> MotionGenerator:
    generator = MotionGenerator(SMALL)
    randomised(generator)
    return generator


def small_text(rows: int = 2) -> TextFeatures:
    random = torch.Generator().manual_seed(3)
    tokens, pooled = torch.randn(rows, 3, 5, generator=random), torch.randn(rows, 4, generator=random)
    return TextFeatures(tokens, torch.arange(rows) % 3 + 1, pooled)


def test_golden_latent(shared: Path) -> None:
    numbers = golden_numbers(shared)
    text = TextFeatures(numbers["input/ctxt"], numbers["input/text_length"], numbers["input/vtxt"][:, 0])
    lengths = numbers["input/motion_length"]
    latent = sample(golden_generator(numbers), text, lengths, numbers["sample/noise"], steps=10, guidance=5.0)
    valid = torch.arange(360) < lengths[:, None]
    assert (latent - numbers["sample/latent"])[valid].abs().max() < 1e-4
    assert not latent[~valid].any()


def test_guidance_combines_both_branches() -> None:
    network, text, lengths = small_generator(), small_text(), torch.tensor([10, 7])
    x, t = row_noise(lengths, 6, 0), torch.full((2,), 0.3)
    with torch.no_grad():
        branches = [
            network(x, lengths, text.tokens, text.lengths, text.pooled, t, torch.full((2,), drop))
            for drop in (False, True)
        ]
        conditional, unconditional = branches
        for scale in (0.0, 1.0, 5.0):
            expected = unconditional + scale * (conditional - unconditional)
            assert torch.allclose(guided(network, text, lengths, scale)(x, t), expected, atol=1e-5)


def test_guidance_runs_the_network_once_a_step() -> None:
    network, rows = small_generator(), []
    network.motion_transformer.register_forward_pre_hook(lambda _module, inputs: rows.append(len(inputs[0])))
    sample(network, small_text(), torch.tensor([10, 7]), steps=3)
    assert rows == [4, 4, 4]
    rows.clear()
    sample(network, small_text(), torch.tensor([10, 7]), steps=3, guidance=1.0)
    assert rows == [2, 2, 2]


def growth(x: Tensor, t: Tensor) -> Tensor:
    return x * (1 + t.view(-1, 1, 1))


@pytest.mark.parametrize(
    ("method", "steps", "tolerance"), [("euler", 400, 2e-2), ("midpoint", 40, 2e-3), ("dopri5", 1, 1e-4)]
)
def test_methods_solve_an_equation(method: str, steps: int, tolerance: float) -> None:
    noise = torch.tensor([[[1.0], [2.0]]])
    latent = integrate(growth, noise, torch.tensor([2]), steps, method, rtol=1e-6, atol=1e-6)
    assert torch.allclose(latent, noise * math.exp(1.5), atol=tolerance * 5)


def test_euler_takes_equal_steps_and_midpoint_their_middles() -> None:
    times: list[float] = []

    def record(x: Tensor, t: Tensor) -> Tensor:
        assert t.shape == (len(x),)
        times.append(round(float(t[0]), 6))
        return torch.zeros_like(x)

    integrate(record, torch.ones(1, 2, 1), torch.tensor([2]), 4)
    assert times == [0, 0.25, 0.5, 0.75]
    times.clear()
    integrate(record, torch.ones(1, 2, 1), torch.tensor([2]), 2, "midpoint")
    assert times == [0, 0.25, 0.5, 0.75]


def test_padding_has_no_part_in_the_solution() -> None:
    def wild(x: Tensor, t: Tensor) -> Tensor:
        return torch.where(torch.arange(3)[None, :, None] < 2, x, torch.nan)

    noise = torch.ones(1, 3, 1)
    latent = integrate(wild, noise, torch.tensor([2]), method="dopri5")
    assert latent[0, :, 0].tolist() == pytest.approx([math.e, math.e, 0], rel=1e-2)


def test_16_bit_velocities_are_summed_in_fp32() -> None:
    latent = integrate(lambda x, t: torch.full_like(x, 1.0).bfloat16(), torch.zeros(1, 1, 1), torch.tensor([1]), 1000)
    assert latent.dtype == torch.float32
    assert float(latent) == pytest.approx(1, abs=1e-4)


def test_a_clip_does_not_depend_on_its_neighbours() -> None:
    network, text = small_generator(), small_text()
    together = sample(network, text, torch.tensor([7, 10]), seed=1, steps=4)
    alone = sample(
        network, TextFeatures(text.tokens[:1], text.lengths[:1], text.pooled[:1]), torch.tensor([7]), seed=1, steps=4
    )
    assert together.shape == (2, 10, 6) and alone.shape == (1, 7, 6)
    assert torch.allclose(together[0, :7], alone[0], atol=1e-4)
    assert not together[0, 7:].any()


def test_a_seed_decides_the_sample() -> None:
    network, text, lengths = small_generator(), small_text(), torch.tensor([7, 7])
    first = sample(network, text, lengths, seed=1, steps=2)
    torch.manual_seed(0)
    assert torch.equal(sample(network, text, lengths, seed=1, steps=2), first)
    assert not torch.equal(sample(network, text, lengths, seed=2, steps=2), first)
    noise = row_noise(lengths, 6, 1)
    assert not torch.equal(noise[0], noise[1])
    assert torch.equal(sample(network, text, lengths, noise, steps=2), first)


@pytest.mark.parametrize("training", [True, False])
def test_sampling_leaves_the_network_as_it_was(training: bool) -> None:
    network = small_generator().train(training)
    latent = sample(network, small_text(), torch.tensor([7, 7]), steps=2)
    assert network.training is training and network.motion_transformer.training is training
    assert not latent.requires_grad and torch.is_grad_enabled()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


def test_an_empty_batch_is_an_empty_sample() -> None:
    assert sample(small_generator(), small_text(0), torch.zeros(0, dtype=torch.long)).shape == (0, 1, 6)


def test_16_bit_weights_sample() -> None:
    latent = sample(small_generator().bfloat16(), small_text(), torch.tensor([7, 5]), steps=2)
    assert latent.dtype == torch.float32 and latent.isfinite().all()


def test_mistakes_name_the_legal_values() -> None:
    network, text = small_generator(), small_text()
    with pytest.raises(UserError, match="'rk4' is unknown; use one of euler, midpoint, dopri5"):
        sample(network, text, torch.tensor([7, 7]), method="rk4")
    with pytest.raises(UserError, match="steps = 0 must be at least 1"):
        sample(network, text, torch.tensor([7, 7]), steps=0)
    with pytest.raises(UserError, match="41 frames cannot be sampled; use 1..40"):
        sample(network, text, torch.tensor([7, 41]))
    with pytest.raises(UserError, match="2 texts for 1 lengths"):
        sample(network, text, torch.tensor([7]))

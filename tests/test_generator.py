from __future__ import annotations

import math

import pytest
import torch

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import HEAD, INPUT, initialise, initialise_parameters
from ds_hymotion.model.precision import accumulate_in_fp32
from tests.golden_network import randomised

SMALL = ModelConfig(24, 3, 3, input_dim=6, ctxt_input_dim=5, vtxt_input_dim=4, refiner_layers=1)


def inputs(rows: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return {
        "motion": torch.randn(rows, 8, 6, generator=random),
        "lengths": torch.full((rows,), 8),
        "text": torch.randn(rows, 3, 5, generator=random),
        "text_lengths": torch.arange(rows) % 4,
        "pooled": torch.randn(rows, 4, generator=random),
        "t": torch.rand(rows, generator=random),
    }


def test_dropped_rows_see_the_null_features_under_their_own_mask() -> None:
    generator = MotionGenerator(SMALL)
    randomised(generator)
    batch = inputs(4)
    velocity = generator(**batch, drop=torch.tensor([False, True, False, True]))
    null = {
        "text": generator.null_ctxt_input.expand(4, 3, 5),
        "pooled": generator.null_vtxt_feat[0].expand(4, 4),
    }
    conditional = generator.motion_transformer(**batch)
    unconditional = generator.motion_transformer(**{**batch, **null})
    assert torch.equal(velocity[[0, 2]], conditional[[0, 2]])
    assert torch.equal(velocity[[1, 3]], unconditional[[1, 3]])
    assert not torch.allclose(velocity[1], conditional[1])


@pytest.mark.parametrize("rows", [0, 2])
def test_null_features_have_gradients_without_a_dropped_row(rows: int) -> None:
    generator = MotionGenerator(SMALL)
    randomised(generator)
    generator(**inputs(rows), drop=torch.zeros(rows, dtype=torch.bool)).sum().backward()
    for name, parameter in generator.named_parameters():
        assert parameter.grad is not None, name
        if name.startswith("null_") or rows == 0:
            assert not parameter.grad.any(), name


def test_fp32_inputs_meet_16_bit_weights() -> None:
    generator = MotionGenerator(SMALL).bfloat16()
    randomised(generator)
    velocity = generator(**inputs(2), drop=torch.tensor([True, False]))
    assert velocity.dtype == torch.bfloat16 and velocity.isfinite().all()


def test_statistics_stay_exact_in_16_bit() -> None:
    generator = MotionGenerator(SMALL)
    exact = torch.tensor([0.1, 0.2, 0.3, 1.001, 5.0, 7.7])
    generator.mean.copy_(exact)
    generator.to(torch.bfloat16)
    assert generator.null_vtxt_feat.dtype == torch.bfloat16
    assert torch.equal(generator.mean, exact)
    assert generator.state_dict()["std"].dtype == torch.float32
    assert generator.to("meta").mean.is_meta
    generator.half().to_empty(device="cpu")
    assert (generator.mean.dtype, generator.mean.device.type) == (torch.float32, "cpu")
    assert generator.mean is generator.get_buffer("mean")


def test_a_seed_decides_all_weights() -> None:
    torch.manual_seed(5)
    first, second, third = MotionGenerator(SMALL), MotionGenerator(SMALL), MotionGenerator(SMALL)
    initialise(first, 1, copy_noise=False)
    before = torch.get_rng_state()
    torch.manual_seed(6)
    initialise(second, 1, copy_noise=False)
    torch.set_rng_state(before)
    initialise(third, 2, copy_noise=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    assert not torch.equal(first.motion_transformer.input_encoder.weight, third.motion_transformer.input_encoder.weight)
    block = first.motion_transformer.double_blocks[0]
    assert not torch.equal(block.motion_qkv.weight, block.text_qkv.weight)


@pytest.mark.parametrize("copy_noise", [False, True])
def test_a_part_is_initialised_like_the_whole(copy_noise: bool) -> None:
    whole, part = MotionGenerator(SMALL), MotionGenerator(SMALL)
    initialise(whole, 3, copy_noise)
    names = [INPUT, HEAD, "motion_transformer.single_blocks.1.linear1.weight"]
    own = dict(part.named_parameters())
    initialise_parameters([(name, own[name]) for name in reversed(names)], 3, copy_noise)
    for name in names:
        assert torch.equal(own[name], whole.state_dict()[name])


def test_fresh_weights_by_kind() -> None:
    generator = MotionGenerator(SMALL)
    initialise(generator, 0, copy_noise=False)
    network = generator.motion_transformer
    for name, parameter in network.named_parameters():
        if any(part in name for part in ("mod.linear", "modulation.linear", "final_layer.linear")) or "bias" in name:
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.9 * bound < parameter.abs().max() <= bound, name
    assert 0 < generator.null_ctxt_input.abs().max() < 0.1
    assert not generator(**inputs(2), drop=torch.tensor([True, False])).any()


@pytest.mark.parametrize(("width", "channels"), [(32, 6), (32, 32), (16, 24)])
def test_a_network_from_scratch_copies_the_noise(width: int, channels: int) -> None:
    config = ModelConfig(width, 3, 4, input_dim=channels, ctxt_input_dim=5, vtxt_input_dim=4)
    generator = MotionGenerator(config)
    initialise(generator, 0, copy_noise=True)
    network = generator.motion_transformer
    assert torch.equal(network.final_layer.linear.weight, -network.input_encoder.weight.T)
    gram = network.input_encoder.weight.T @ network.input_encoder.weight
    if channels <= width:
        assert torch.allclose(gram, channels / width * torch.eye(channels), atol=1e-5)
    noise = torch.randn(2, 50, channels, generator=torch.Generator().manual_seed(4))
    batch = {**inputs(2), "motion": noise, "lengths": torch.tensor([50, 50]), "t": torch.zeros(2)}
    velocity = generator(**batch, drop=torch.tensor([False, True]))
    correlation = torch.corrcoef(torch.stack([velocity.flatten(), -noise.flatten()]))[0, 1]
    assert correlation > (0.9 if channels <= width else 0.5)
    scaled = noise / noise.square().mean(-1, keepdim=True).sqrt()
    slope = float((velocity.detach() * -scaled).sum() / scaled.square().sum())
    assert slope == pytest.approx(min(1.0, width / channels), abs=0.15)


def test_16_bit_products_accumulate_in_fp32() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = True
    accumulate_in_fp32()
    assert not matmul.allow_fp16_reduced_precision_reduction
    assert not matmul.allow_bf16_reduced_precision_reduction

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ds_hymotion.model.blocks import SingleBlock, Stream
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.geometry import Geometry, rope_table, rotate
from ds_hymotion.model.layers import RMSNorm, normalise, sinusoid
from ds_hymotion.model.network import MotionTransformer
from tests.golden_network import golden_numbers, golden_transformer, randomised

SMALL = ModelConfig(
    24, 3, 3, input_dim=6, ctxt_input_dim=5, vtxt_input_dim=4, band_frames=2, text_position=40, refiner_layers=1
)


def small_network(config: ModelConfig = SMALL, checkpoint_blocks: int = 0) -> MotionTransformer:
    network = MotionTransformer(config, checkpoint_blocks)
    randomised(network)
    return network


def small_inputs(lengths: list[int], text_lengths: list[int], frames: int = 20, tokens: int = 5) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    rows = len(lengths)
    return [
        torch.randn(rows, frames, SMALL.input_dim, generator=random),
        torch.tensor(lengths, dtype=torch.long),
        torch.randn(rows, tokens, SMALL.ctxt_input_dim, generator=random),
        torch.tensor(text_lengths, dtype=torch.long),
        torch.randn(rows, SMALL.vtxt_input_dim, generator=random),
        torch.rand(rows, generator=random),
    ]


def golden_inputs(numbers: dict[str, Tensor]) -> list[Tensor]:
    names = ("x", "motion_length", "ctxt", "text_length", "vtxt", "timesteps")
    inputs = [numbers[f"input/{name}"] for name in names]
    inputs[4] = inputs[4][:, 0]
    return inputs


def test_golden_velocity_loss_and_gradients(shared: Path) -> None:
    numbers = golden_numbers(shared)
    network = golden_transformer(numbers)
    velocity = network(*golden_inputs(numbers))
    valid = torch.arange(360) < numbers["input/motion_length"][:, None]
    assert (velocity - numbers["output/velocity"])[valid].abs().max() < 2e-5

    loss = (velocity - numbers["loss/target"])[valid].square().mean()
    loss.backward()
    assert loss.item() == pytest.approx(numbers["loss/mse"].item(), rel=1e-6)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        expected = float(numbers[f"gradnorm/{name}"])
        assert float(parameter.grad.norm()) == pytest.approx(expected, rel=1e-3, abs=1e-8), name


def test_golden_modules(shared: Path) -> None:
    numbers = golden_numbers(shared)
    network = golden_transformer(numbers)
    motion, lengths, text, text_lengths, pooled, t = golden_inputs(numbers)
    geometry = Geometry.build(360, 128, lengths, text_lengths, network.config)
    frames = torch.arange(360) < lengths[:, None]
    tokens = geometry.text_valid

    def close(ours: Tensor, name: str, valid: Tensor | None = None, part: slice = slice(None)) -> None:
        error = (ours - numbers[f"tap/{name}"][:, part]).abs()
        assert (error if valid is None else error[valid]).max() < 1e-5, name

    with torch.no_grad():
        close(network.timestep_encoder(t), "timestep_encoder")
        close(network.vtxt_encoder(pooled[:, None]), "vtxt_encoder")
        stream = network.embed(motion, text, pooled, t, geometry)
        close(stream.text, "text_refiner", tokens)
        stream = network.double_blocks[0](stream, geometry)
        close(stream.motion, "double_blocks.0.motion", frames)
        close(stream.text, "double_blocks.0.text", tokens)
        stream = network.single_blocks[0](stream, geometry)
        close(stream.motion, "single_blocks.0", frames, slice(0, 360))
        close(stream.text, "single_blocks.0", tokens, slice(360, None))


def test_a_short_canvas_is_exact(shared: Path) -> None:
    numbers = golden_numbers(shared)
    network = golden_transformer(numbers)
    motion, lengths, text, text_lengths, pooled, t = (tensor[1:2] for tensor in golden_inputs(numbers))
    with torch.no_grad():
        alone = network(motion[:, :120], lengths, text[:, :20], text_lengths, pooled, t)
    assert (alone - numbers["output/velocity"][1:2, :120]).abs().max() < 1e-5


def test_geometry_of_a_small_canvas() -> None:
    config = replace(SMALL, band_frames=1)
    geometry = Geometry.build(4, 2, torch.tensor([3]), torch.tensor([1]), config)
    assert geometry.motion_mask[0, 0].int().tolist() == [
        [1, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 1, 0],
        [0, 1, 1, 0, 1, 0],
        [0, 0, 1, 1, 1, 0],
    ]
    assert geometry.text_mask[0, 0].int().tolist() == [[1, 0], [1, 1]]
    assert geometry.text_valid.tolist() == [[True, False]]
    assert torch.equal(geometry.motion_rope, rope_table(torch.arange(4), 8, 10000.0))
    assert torch.equal(geometry.text_rope, rope_table(torch.tensor([40, 41]), 8, 10000.0))
    assert geometry.text_rope[0, 1].tolist() == pytest.approx([math.cos(4.0), math.sin(4.0)], abs=1e-6)


def test_rope_turns_interleaved_pairs_by_position() -> None:
    table = rope_table(torch.tensor([0, 3]), 4, 100.0)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, 2, 4)
    turned = rotate(x.bfloat16(), table)
    assert turned.dtype == torch.float32
    assert torch.equal(turned[0, 0, 0], x[0, 0, 0])
    a, b = torch.tensor(3.0), torch.tensor(0.3)
    expected = torch.stack(
        [a.cos() - 2 * a.sin(), a.sin() + 2 * a.cos(), 3 * b.cos() - 4 * b.sin(), 3 * b.sin() + 4 * b.cos()]
    )
    assert torch.allclose(turned[0, 0, 1], expected, atol=1e-6)


def test_a_canvas_that_reaches_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="41 frames .* at most 40"):
        Geometry.build(41, 2, torch.tensor([3]), torch.tensor([1]), SMALL)


def test_padding_does_not_matter() -> None:
    network = small_network()
    motion, lengths, text, text_lengths, pooled, t = small_inputs([20, 7, 1], [5, 2, 0])
    expected = network(motion, lengths, text, text_lengths, pooled, t)
    valid_frames = (torch.arange(20) < lengths[:, None])[..., None]
    valid_tokens = (torch.arange(5) < text_lengths[:, None])[..., None]
    motion = torch.where(valid_frames, motion, 9.0)
    text = torch.where(valid_tokens, text, -9.0)
    other = network(motion, lengths, text, text_lengths, pooled, t)
    assert torch.allclose(torch.where(valid_frames, other - expected, 0.0), torch.zeros(()), atol=1e-5)
    assert other.isfinite().all()
    trimmed = network(motion[1:2, :7], lengths[1:2], text[1:2, :2], text_lengths[1:2], pooled[1:2], t[1:2])
    assert torch.allclose(trimmed, expected[1:2, :7], atol=1e-5)


def test_motion_is_seen_inside_the_band_only() -> None:
    network = small_network()
    inputs = small_inputs([20], [5])
    before = network(*inputs)
    inputs[0] = inputs[0].clone()
    inputs[0][:, 0] += 1
    changed = (network(*inputs) - before).abs().amax(-1)[0]
    reach = SMALL.num_layers * SMALL.band_frames
    assert (changed[: reach + 1] > 0).all()
    assert (changed[reach + 1 :] == 0).all()


def test_text_never_sees_motion() -> None:
    network = small_network()
    motion, lengths, text, text_lengths, pooled, t = small_inputs([20], [5])
    geometry = Geometry.build(20, 5, lengths, text_lengths, SMALL)
    texts = []
    for moved in (motion, motion + 1):
        stream = network.embed(moved, text, pooled, t, geometry)
        for block in [*network.double_blocks, *network.single_blocks]:
            stream = block(stream, geometry)
        texts.append(stream.text)
    assert torch.equal(*texts)


@pytest.mark.parametrize("checkpoint_blocks", [0, 1])
@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_batch_gives_zero_gradients(checkpoint_blocks: int, tokens: int, dtype: torch.dtype) -> None:
    network = small_network(checkpoint_blocks=checkpoint_blocks).to(dtype)
    velocity = network(*small_inputs([], [], tokens=tokens))
    assert velocity.shape == (0, 20, 6)
    velocity.float().square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize(
    ("lengths", "text_lengths", "tokens"), [([20, 7], [0, 0], 3), ([20, 7], [0, 0], 0), ([0, 9], [2, 3], 3)]
)
def test_a_row_without_text_or_frames_is_finite(lengths: list[int], text_lengths: list[int], tokens: int) -> None:
    network = small_network()
    velocity = network(*small_inputs(lengths, text_lengths, tokens=tokens))
    valid = torch.arange(20) < torch.tensor(lengths)[:, None]
    velocity[valid].square().sum().backward()
    assert velocity.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.012), (torch.float16, 0.0015)])
def test_16_bit_weights_agree_with_fp32(shared: Path, dtype: torch.dtype, tolerance: float) -> None:
    numbers = golden_numbers(shared)
    motion, lengths, text, text_lengths, pooled, _ = (tensor[:2] for tensor in golden_inputs(numbers))
    exact, rounded = golden_transformer(numbers), golden_transformer(numbers).to(dtype)
    valid = torch.arange(360) < lengths[:, None]
    for time in (0.0, 0.335, 1.0):
        t = torch.full((2,), time)
        with torch.no_grad():
            expected = exact(motion, lengths, text, text_lengths, pooled, t)
            velocity = rounded(motion, lengths, text, text_lengths, pooled, t)
        assert velocity.dtype == dtype
        assert velocity.isfinite().all()
        error = (velocity.float() - expected)[valid].square().mean().sqrt() / expected[valid].square().mean().sqrt()
        assert error < tolerance


def test_16_bit_gradients_are_finite(shared: Path) -> None:
    numbers = golden_numbers(shared)
    network = golden_transformer(numbers).bfloat16()
    inputs = [tensor[1:] for tensor in golden_inputs(numbers)]
    inputs[0] = inputs[0][:, :120]
    network(*inputs).float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_norms_and_sinusoids_are_computed_in_fp32() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(normalise(x), F.layer_norm(x.float(), (64,), eps=1e-6).bfloat16())
    norm = RMSNorm(64).bfloat16()
    assert torch.allclose(norm(x), x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6))
    features = sinusoid(torch.tensor([1000.0], dtype=torch.bfloat16), 6)
    rates = torch.tensor([1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3)])
    assert torch.allclose(features[0, 0], torch.cat([(1000 * rates).cos(), (1000 * rates).sin()]), atol=1e-4)


@pytest.mark.parametrize(("every", "recomputed"), [(0, 0), (1, 3), (2, 1), (3, 1), (4, 0)])
def test_recomputed_blocks_give_equal_gradients(every: int, recomputed: int) -> None:
    inputs = small_inputs([20, 7], [5, 2])
    plain, saving = small_network(), small_network(checkpoint_blocks=every)
    runs: list[torch.nn.Module] = []
    for block in [*saving.double_blocks, *saving.single_blocks]:
        block.register_forward_pre_hook(lambda module, _inputs: runs.append(module))
    plain(*inputs).square().sum().backward()
    saving(*inputs).square().sum().backward()
    assert len(runs) == 3 + recomputed
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def narrowed(block: SingleBlock, head: int, heads: int) -> SingleBlock:
    """A single block with one of the heads and its share of the MLP."""
    width, mlp = SMALL.feat_dim // heads, SMALL.mlp_dim // heads
    part = SingleBlock(SMALL)
    part.load_state_dict(block.state_dict())
    sections = block.linear1.weight.split([SMALL.feat_dim] * 3 + [SMALL.mlp_dim])
    biases = block.linear1.bias.split([SMALL.feat_dim] * 3 + [SMALL.mlp_dim])
    part.linear1 = torch.nn.Linear(SMALL.feat_dim, 3 * width + mlp)
    part.linear1.weight = torch.nn.Parameter(torch.cat([section.chunk(heads)[head] for section in sections]))
    part.linear1.bias = torch.nn.Parameter(torch.cat([bias.chunk(heads)[head] for bias in biases]))
    columns = block.linear2.weight.split([SMALL.feat_dim, SMALL.mlp_dim], dim=1)
    part.linear2.weight = torch.nn.Parameter(torch.cat([column.chunk(heads, 1)[head] for column in columns], 1))
    part.linear2.bias = torch.nn.Parameter(block.linear2.bias / heads)
    part.attention_width, part.mlp_width = width, mlp
    return part


def test_narrower_single_blocks_add_up() -> None:
    block = SingleBlock(SMALL)
    randomised(block)
    random = torch.Generator().manual_seed(2)
    stream = Stream(*(torch.randn(2, n, SMALL.feat_dim, generator=random) for n in (1, 6, 4)))
    geometry = Geometry.build(6, 4, torch.tensor([6, 3]), torch.tensor([4, 1]), SMALL)
    whole = block(stream, geometry)
    parts = [narrowed(block, head, 3)(stream, geometry) for head in range(3)]
    for field in ("motion", "text"):
        start = getattr(stream, field)
        added = start + sum(getattr(part, field) - start for part in parts)
        assert torch.allclose(added, getattr(whole, field), atol=1e-4)


def test_a_double_block_takes_its_heads_from_its_weights() -> None:
    network = small_network()
    block = network.double_blocks[0]
    width = SMALL.feat_dim
    stream = Stream(*(torch.randn(2, n, width, generator=torch.Generator().manual_seed(n)) for n in (1, 6, 4)))
    geometry = Geometry.build(6, 4, torch.tensor([6, 3]), torch.tensor([4, 1]), SMALL)
    with torch.no_grad():
        for kind in ("motion", "text"):
            getattr(block, f"{kind}_out_proj").weight[:, 8:] = 0
        whole = block(stream, geometry)
        for kind in ("motion", "text"):
            qkv, out = getattr(block, f"{kind}_qkv"), getattr(block, f"{kind}_out_proj")
            qkv.weight = torch.nn.Parameter(torch.cat([third[:8] for third in qkv.weight.chunk(3)]))
            qkv.bias = torch.nn.Parameter(torch.cat([third[:8] for third in qkv.bias.chunk(3)]))
            out.weight = torch.nn.Parameter(out.weight[:, :8].clone())
        one_head = block(stream, geometry)
    assert torch.allclose(one_head.motion, whole.motion, atol=1e-5)
    assert torch.allclose(one_head.text, whole.text, atol=1e-5)

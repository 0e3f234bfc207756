from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.network import MotionTransformer
from ds_hymotion.model.presets import PRESETS, preset

SIZES = [
    ("hy-motion-1.0", 422, 1_042_868_681, 428, 1_042_878_811),
    ("hy-motion-1.0-lite", 302, 460_841_673, 308, 460_851_803),
]


@pytest.mark.parametrize(("name", "tensors", "parameters", "checkpoint_tensors", "checkpoint_numbers"), SIZES)
def test_released_sizes(
    shared: Path, name: str, tensors: int, parameters: int, checkpoint_tensors: int, checkpoint_numbers: int
) -> None:
    expected = json.loads((shared / "golden" / f"parameters_{name}.json").read_text())
    with torch.device("meta"):
        generator = MotionGenerator(preset(name))
    shapes = {key: list(value.shape) for key, value in generator.motion_transformer.state_dict().items()}
    assert shapes == expected
    assert len(shapes) == tensors
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters

    state = generator.state_dict()
    others = {key: tuple(value.shape) for key, value in state.items() if not key.startswith("motion_transformer.")}
    assert others == {
        "null_vtxt_feat": (1, 1, 768),
        "null_ctxt_input": (1, 1, 4096),
        "special_game_vtxt_feat": (1, 1, 768),
        "special_game_ctxt_feat": (1, 1, 4096),
        "mean": (201,),
        "std": (201,),
    }
    assert len(state) == checkpoint_tensors
    assert sum(value.numel() for value in state.values()) == checkpoint_numbers


def test_block_sizes() -> None:
    def count(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    with torch.device("meta"):
        network = MotionTransformer(preset("hy-motion-1.0"))
    assert (len(network.double_blocks), len(network.single_blocks)) == (9, 18)
    assert count(network.double_blocks[0]) == 59_021_056
    assert count(network.single_blocks[0]) == 24_590_208


def test_the_released_constants() -> None:
    for name in ("hy-motion-1.0", "hy-motion-1.0-lite"):
        config = preset(name)
        assert (config.head_dim, config.band_frames, config.text_position) == (64, 60, 360)
        assert (config.time_factor, config.rope_theta, config.mlp_dim) == (1000.0, 10000.0, 4 * config.feat_dim)


def test_fields_can_be_changed() -> None:
    config = preset("tiny", input_dim=219)
    assert (config.input_dim, config.feat_dim, config.head_dim) == (219, 256, 64)
    assert (config.double_layers, config.single_layers) == (1, 2)
    assert PRESETS["tiny"].input_dim == 201


def test_mistakes_name_the_legal_values() -> None:
    with pytest.raises(UserError, match="'large' is unknown; use one of hy-motion-1.0, hy-motion-1.0-lite, tiny"):
        preset("large")
    with pytest.raises(UserError, match="'width' is unknown; use one of feat_dim, num_layers"):
        preset("tiny", width=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 4}, "num_layers = 4 must be divisible by 3, such as 3"),
        ({"num_layers": 0}, "num_layers = 0 must be at least 1"),
        ({"num_heads": 3}, "feat_dim = 256 must be an even multiple of num_heads = 3, such as 252"),
        ({"feat_dim": 12}, "feat_dim = 12 must be an even multiple of num_heads = 4, such as 8"),
        ({"band_frames": -1}, "band_frames = -1 must not be negative"),
        ({"rope_theta": float("nan")}, "rope_theta = nan must be positive"),
        ({"mlp_ratio": 0.001}, "mlp_ratio = 0.001 gives MLPs of width 0"),
    ],
)
def test_impossible_sizes(change: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        preset("tiny", **change)


def test_a_config_is_a_value() -> None:
    assert ModelConfig(48, 3, 4) == ModelConfig(48, 3, 4)
    assert hash(ModelConfig(48, 3, 4)) == hash(ModelConfig(48, 3, 4))

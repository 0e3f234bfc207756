"""What a pipeline's configuration refuses, and a network of which one stage has memory; no processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.training.network import build_generator, network_config, stage_plan
from tests.corpora import random_weights, wavy_corpus
from tests.runs import run_settings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 30])


@pytest.mark.parametrize(
    ("changes", "ranks", "message"),
    [
        ({"zero_optimization": {"stage": 2}}, 2, "zero_optimization.stage 0 or 1, not 2; use 1"),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}, 2, "leave it out"),
        (
            {"hymotion__text": {"mode": "live", "encoder": "qwen_clip"}},
            2,
            "hymotion.text.mode = live; cache the features",
        ),
        ({"wall_clock_breakdown": True}, 2, "wall_clock_breakdown = true; leave it out"),
        ({"pipeline": {"stages": 2}}, 2, "key pipeline is not supported: stages are hymotion.parallel.pipeline"),
        ({"hymotion__pipeline__mode": "sideways"}, 2, "hymotion.pipeline.mode = 'sideways'"),
        ({"hymotion__pipeline__blance": "cost"}, 2, "did you mean balance"),
        ({}, 3, "start a multiple of 2, such as"),
        (
            {
                "hymotion__pipeline": {"mode": "temporal"},
                "zero_optimization": {"stage": 1},
                "data_types": {"grad_accum_dtype": "bf16"},
            },
            2,
            "grad_accum_dtype = 'bf16' on 2 stages does not work .* use fp32",
        ),
        (
            {"hymotion__pipeline": {"mode": "temporal", "chunk_frames": 20}},
            2,
            "hymotion.pipeline.state_frames = 30 is more than chunk_frames = 20",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], ranks: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        RunConfig(run_settings(hymotion__parallel__pipeline=2, **changes), "test", ranks=ranks)


def test_the_data_axis_takes_what_stages_leave() -> None:
    config = RunConfig(run_settings(hymotion__parallel__pipeline=2, train_batch_size=6), "test", ranks=6)
    assert (config.shape.pipe, config.shape.data, config.shape.model) == (2, 3, 1)
    assert config.deepspeed["train_micro_batch_size_per_gpu"] == 2


@pytest.mark.parametrize("from_file", [False, True])
def test_a_stage_alone_has_the_whole_networks_values(corpus: Corpus, tmp_path: Path, from_file: bool) -> None:
    weights = random_weights(tmp_path / "weights.safetensors", corpus) if from_file else None
    config = RunConfig(run_settings(weights, hymotion__parallel__pipeline=2), "test")
    network = network_config(config.hymotion, corpus)
    plan = stage_plan(config, network, corpus)
    whole = build_generator(config.hymotion, network, corpus)
    seen = 0
    for stage in range(2):
        part = build_generator(config.hymotion, network, corpus, lambda name, s=stage: plan.stage_of(name) == s)
        for name, parameter in part.named_parameters():
            assert parameter.is_meta == (plan.stage_of(name) != stage), name
            if not parameter.is_meta:
                assert torch.equal(parameter, whole.get_parameter(name)), name
                seen += 1
        assert all(torch.equal(value, whole.get_buffer(name)) for name, value in part.named_buffers())
    assert seen == len(list(whole.parameters()))


def test_only_the_chosen_kinds_are_recomputed() -> None:
    def called(kinds: list[str]) -> list[int]:
        """How often each block runs in a forward and a backward pass."""
        config = ModelConfig(8, 3, 2, input_dim=5, ctxt_input_dim=6, vtxt_input_dim=7)
        network = MotionGenerator(config, 1, kinds).motion_transformer
        counts = [0, 0, 0]
        for index, block in enumerate([*network.double_blocks, *network.single_blocks]):
            block.register_forward_pre_hook(lambda *_, i=index: counts.__setitem__(i, counts[i] + 1))
        inputs = torch.zeros(1, 4, 5), torch.tensor([4]), torch.zeros(1, 2, 6), torch.tensor([2]), torch.zeros(1, 7)
        network(*inputs, torch.zeros(1)).sum().backward()
        return counts

    assert called(["double", "single"]) == [2, 2, 2]
    assert called(["double"]) == [2, 1, 1]
    assert called(["single"]) == [1, 2, 2]

"""What a run starts from: fresh weights, or a file's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.motion.skeleton import smpl24
from ds_hymotion.training.network import build_generator, network_config, starting_weights
from ds_hymotion.training.weights import Provenance, load_weights, save_weights
from tests.corpora import random_weights, wavy_corpus
from tests.runs import run_settings

HEAD = "motion_transformer.final_layer.linear.weight"


def build(corpus: Corpus, weights: Path | None, **changes: Any) -> MotionGenerator:
    settings = RunConfig(run_settings(weights, **changes)).hymotion
    return build_generator(settings, network_config(settings, corpus), corpus, weights=starting_weights(settings))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 30], representation="hymotion-201")


def test_positions_relative_to_another_point_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    weights = random_weights(tmp_path / "weights.safetensors", corpus)
    assert torch.equal(build(corpus, weights).mean, corpus.mean)
    state, provenance = load_weights(weights)
    state["mean"][135:138] = smpl24().offsets[0]
    save_weights(weights, state, provenance)
    with pytest.raises(UserError, match="--positions_relative_to rest_root"):
        build(corpus, weights)


def test_other_channels_start_fresh_and_without_the_trick_for_networks_from_scratch(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wider = wavy_corpus(tmp_path, [20, 30])
    weights = random_weights(tmp_path / "weights.safetensors", corpus)
    with pytest.raises(UserError, match="another number of channels.*--allow_fresh"):
        build(wider, weights)
    generator = build(wider, weights, hymotion__model__allow_fresh=True)
    assert "input_encoder" in capsys.readouterr().out
    state = generator.state_dict()
    assert state[HEAD].shape[0] == 219 and not state[HEAD].any()
    assert torch.equal(generator.mean, wider.mean)
    name = "motion_transformer.single_blocks.1.linear1.weight"
    assert torch.equal(state[name], load_weights(weights)[0][name])
    assert build(wider, None).state_dict()[HEAD].any()
    assert not build(wider, None, hymotion__model__init="released").state_dict()[HEAD].any()


def test_experts_of_other_names_or_order_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    names = ["WALK", "SIT"]
    experts = {"number": 2, "names": names}
    weights = tmp_path / "weights.safetensors"
    generator = build(corpus, None, hymotion__experts=experts)
    settings = RunConfig(run_settings(None, hymotion__experts=experts)).hymotion
    config = asdict(network_config(settings, corpus))
    save_weights(weights, generator.state_dict(), Provenance(config, "hymotion-201", 30.0, "hashed", "tiny"))
    again = build(corpus, weights, hymotion__experts=experts).state_dict()
    assert all(torch.equal(again[name], value) for name, value in generator.state_dict().items())
    for others in (names[::-1], ["WALK", "RUN"]):
        with pytest.raises(UserError, match=f"has experts WALK, SIT, hymotion.experts.names asks for {others[0]}, "):
            build(corpus, weights, hymotion__experts={"number": 2, "names": others})


def test_a_start_that_is_not_there_is_named(corpus: Corpus, tmp_path: Path) -> None:
    for name in ("gone.ckpt", "gone.safetensors", "gone"):
        with pytest.raises(UserError, match=f"{name}: no such file or folder; give a run, its weights.safetensors"):
            build(corpus, tmp_path / name)

"""What experts are refused with: one line with the key, its value and what to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ds_hymotion.config.data import DataSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.actions.types import ActionTypes, samples_digest
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.errors import UserError
from ds_hymotion.training.network import network_config
from tests.expert_runs import NAMES, expert_corpus, expert_settings

CASES: list[tuple[dict[str, Any], str]] = [
    ({"hymotion__pipeline__mode": "temporal"}, "mode = temporal .* use layers"),
    ({"hymotion__gradient_sync__others_every": 2}, "others_every = 2 .* use 1"),
    ({"hymotion__training__joint_update_every": [1, 2]}, "joint_update_every .* leave it out"),
    ({"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}, "fp16.enabled = true .* use bf16 or fp32"),
    ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}, "offload .* leave"),
    (
        {
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "bf16"},
        },
        "grad_accum_dtype = 'bf16' .* use fp32",
    ),
    ({"zero_optimization": {"stage": 1, "overlap_comm": True}}, "overlap_comm .* false"),
    (
        {"hymotion__experts__size": 2, "gradient_clipping": 0.0, "hymotion__data__frames_per_gpu": 999},
        "frames_per_gpu = 999 .* use train_micro",
    ),
    (
        {"hymotion__experts__size": 2},
        r"gradient_clipping = 1.0 with .*stage = 0 .* use stage 1, or gradient_clipping = 0",
    ),
    ({"hymotion__experts__size": 2, "zero_optimization": {"stage": 1, "reduce_scatter": False}}, "reduce_scatter"),
    (
        {"hymotion__experts__size": 2, "gradient_clipping": 0.0, "hymotion__gradient_sync__frozen": ["text"]},
        "frozen .* use phases, or size 1",
    ),
    (
        {"hymotion__experts__dispatch": "all_to_all"},
        "dispatch = all_to_all .*size = 1 .* use affinity, or another size",
    ),
    ({"hymotion__experts__class_weights": [1, 2, 3]}, "class_weights holds 3 .* 2 experts; give one for each of WALK"),
    ({"hymotion__experts__class_weights": [1, 0]}, "class_weights"),
    (
        {"hymotion__parallel__model": 2, "hymotion__experts__size": 2, "gradient_clipping": 0.0},
        r"size = 2 does not divide both 2 experts and 1 data rank\(s\); use 1",
    ),
    ({"hymotion__experts__noise": 0.1}, "noise = 0.1 without hymotion.model.init_from .* set init_from, or noise to 0"),
    ({"zero_optimization": {"stage": 3}}, "number = 2 does not run with zero_optimization.stage = 3; use stage 1 or 2"),
    ({"hymotion__experts__size": 3}, "size = 3 does not divide .* use 1 or 2"),
    ({"hymotion__experts__names": ["A"]}, "holds 1 names, .*number is 2; set it to 1"),
    ({"hymotion__experts__names": ["A", "a"]}, "'A' twice"),
    ({"hymotion__experts__names": []}, "without hymotion.experts.names; .* use 6: LOCOMOTION"),
    ({"hymotion__experts__number": 0}, "names = .* no effect .*number = 0"),
    ({"hymotion__experts__phases": [{"until": 5}, {"until": 5}]}, "phases.1.until = 5 .* use 6 or more"),
    ({"hymotion__experts__phases": [{"until": 5, "drop_experts": 2}]}, "drop_experts = 2 .* at most 1"),
    ({"hymotion__experts__phases": [{"until": 5, "train": ["trunk"], "drop_experts": 1}]}, "without experts .* use 0"),
    ({"hymotion__experts__phases": [{"until": 5, "train": []}]}, "at least 1"),
]


@pytest.mark.parametrize(("changes", "words"), CASES, ids=[words for _, words in CASES])
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        RunConfig(expert_settings(None, NAMES, **changes), "x.json", ranks=2)
    assert "\n" not in str(caught.value)


def test_a_file_alone_may_ask_for_any_size_that_divides_the_experts() -> None:
    changes = {"hymotion__experts__size": 2, "zero_optimization": {"stage": 1}}
    assert RunConfig(expert_settings(None, NAMES, **changes), "x.json").hymotion.experts.size == 2
    with pytest.raises(UserError, match="1 data rank"):
        RunConfig(expert_settings(None, NAMES, **changes), "x.json", ranks=1)


def test_clips_without_an_expert_are_named(tmp_path: Path) -> None:
    corpus = expert_corpus(tmp_path, [(20, "WALK"), (22, "walk"), (24, "SIT")])
    assert expert_ids(corpus.samples[:2], NAMES, lambda sample: sample.action) == [0, 0]
    with pytest.raises(UserError, match="'SIT' of 1 clips has no expert; add it to .* WALK, REACH"):
        expert_ids(corpus.samples, NAMES, lambda sample: sample.action)
    for blocks, expected in ((None, 1), (2, 2)):
        settings = RunConfig(expert_settings(None, NAMES, hymotion__experts__blocks=blocks), "x").hymotion
        network = network_config(settings, corpus)
        assert (network.expert_names, network.expert_blocks) == (tuple(NAMES), expected)
    with pytest.raises(UserError, match="hymotion.experts.blocks = 3 must be in 1..2: of 3 layers the first 1 are"):
        network_config(RunConfig(expert_settings(None, NAMES, hymotion__experts__blocks=3), "x").hymotion, corpus)


def test_types_that_a_corpus_was_sorted_into_count_before_given_ones(tmp_path: Path) -> None:
    corpus = expert_corpus(tmp_path, [(20, "WALK"), (22, "REACH"), (24, "WALK")])
    mixture = Mixture.open(corpus, DataSection())
    assert expert_ids(mixture.samples, NAMES, mixture.action_of) == [0, 1, 0]
    ActionTypes(("REACH", "WALK"), (0, 0, 1), "labels", samples_digest(corpus.samples)).write(corpus.folder)
    assert expert_ids(mixture.samples, NAMES, mixture.action_of) == [1, 1, 0]

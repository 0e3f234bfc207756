"""Selective gradient sync and frozen layers of a network over pipeline stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.parallel.stages import check_trained
from ds_hymotion.training.network import network_config, parameter_names, stage_plan
from ds_hymotion.training.weights import load_weights
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train


def settings(weights: Path | None, steps: int, stages: int, sync: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return run_settings(
        weights,
        hymotion__training__max_steps=steps,
        hymotion__gradient_sync={"check_steps": 1, **sync},
        hymotion__parallel={"pipeline": stages, "memory_steps": 0},
        gradient_accumulation_steps=2,
        gradient_clipping=0.05,
        **changes,
    )


@pytest.mark.parametrize(
    ("zero", "bf16"),
    [(0, False), pytest.param(1, False, marks=pytest.mark.full), pytest.param(1, True, marks=pytest.mark.full)],
)
def test_stages_of_data_ranks_stopped_between_two_syncs(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, zero: int, bf16: bool
) -> None:
    """Two stages x two data ranks, resumed at step 3 of 4 with sums of every rank, against one process."""
    sync = {"others_every": 2}
    ranks.run(1, train, settings(weights, 4, 1, sync), corpus.folder, tmp_path / "one")
    changes = {"zero_optimization": {"stage": zero}, "bf16": {"enabled": bf16}}
    ranks.run(4, train, settings(weights, 3, 2, sync, **changes), corpus.folder, tmp_path / "four")
    ranks.run(4, train, settings(weights, 4, 2, sync, **changes), corpus.folder, tmp_path / "four", True)
    bound = 2e-2 if bf16 else 1e-5
    assert logged(tmp_path / "four") == pytest.approx(logged(tmp_path / "one"), rel=bound)
    if not bf16:
        assert logged(tmp_path / "four", "grad_norm") == pytest.approx(logged(tmp_path / "one", "grad_norm"), rel=1e-5)
    for kind in ("master", "exp_avg", "ema"):
        a, b = final_weights(tmp_path / "one", kind), final_weights(tmp_path / "four", kind)
        assert largest_difference(a, b) < bound, kind


def test_frozen_layers_of_every_stage_are_saved_and_exported(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    sync = {"frozen": ["text", "*_blocks.*.*mod*"]}
    ranks.run(2, train, settings(weights, 1, 2, sync), corpus.folder, tmp_path)
    # Resumed without the weights it started from, a run takes its frozen layers from the checkpoint.
    ranks.run(2, train, settings(None, 2, 2, sync), corpus.folder, tmp_path, True)
    start, end = load_weights(weights)[0], load_weights(tmp_path / "weights.safetensors")[0]
    trained = final_weights(tmp_path).keys()
    assert start.keys() == end.keys() and any(name not in trained for name in start if "single_blocks" in name)
    for name, value in start.items():
        assert torch.equal(value, end[name]) == (name not in trained), name


@pytest.mark.parametrize(
    ("sync", "message"),
    [
        ({"frozen": ["*final_layer*", "*.single_blocks.*"]}, "stage 1 of 2 without .* averaged every step"),
        ({"always": ["*.double_blocks.*"], "others_every": 2}, "stage 1 of 2 without .* averaged every step"),
    ],
)
def test_a_stage_without_trained_parameters_is_refused(corpus: Corpus, sync: dict[str, Any], message: str) -> None:
    config = RunConfig(settings(None, 1, 2, sync), "test")
    network = network_config(config.hymotion, corpus)
    groups = sync_groups(config.hymotion.gradient_sync, parameter_names(network))
    with pytest.raises(UserError, match=message):
        check_trained(stage_plan(config, network, corpus), groups)

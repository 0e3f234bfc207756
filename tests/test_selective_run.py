"""Whole runs with selective gradient sync: resume at any step, other layouts, frozen layers, averages, bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.training.checkpoint import checkpoint_folders, read_kind, read_state
from ds_hymotion.training.weights import load_weights
from tests.corpora import SMALL, random_weights
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

HOT = ("out_proj", "self_attn_proj", "mlp.fc2", "linear2", "final_layer.linear")


def selective(weights: Path | None, steps: int, every: int, **changes: Any) -> dict[str, Any]:
    return run_settings(
        weights,
        hymotion__training__max_steps=steps,
        hymotion__training__keep_last=9,
        hymotion__gradient_sync={"others_every": every, "check_steps": 1},
        gradient_clipping=1.0,
        **changes,
    )


def assert_same_runs(whole: Path, parts: Path) -> None:
    assert logged(parts) == logged(whole) and logged(parts, "clips") == logged(whole, "clips")
    for kind in ("master", "exp_avg", "exp_avg_sq", "ema"):
        a, b = final_weights(whole, kind), final_weights(parts, kind)
        assert all(torch.equal(a[name], b[name]) for name in a), kind


MODES: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"zero_optimization": {"stage": 1}}, (3, 5)),
    ({"zero_optimization": {"stage": 0}}, (2,)),
    ({"zero_optimization": {"stage": 2}}, (4,)),
    ({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}, (2,)),
    ({"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2}, (1,)),
]


EVERY_STEP = [pytest.param(mode, (1, 2, 3, 4, 5), marks=pytest.mark.full) for mode, _ in MODES]


@pytest.mark.parametrize(("mode", "stops"), [*MODES, *EVERY_STEP], ids=str)
def test_stopping_between_two_syncs_changes_no_bit(
    ranks: RankPool, corpus: Corpus, tmp_path: Path, mode: dict[str, Any], stops: tuple[int, ...]
) -> None:
    """Syncs are steps 3 and 6 of 6; a run stopped after 1, 2, 4 or 5 holds sums."""
    ranks.run(2, train, selective(None, 6, 3, **mode), corpus.folder, tmp_path / "whole")
    for stop in stops:
        parts = tmp_path / f"stopped{stop}"
        ranks.run(2, train, selective(None, stop, 3, **mode), corpus.folder, parts)
        sums = sorted(path.name for path in checkpoint_folders(parts)[-1].glob("sums*"))
        assert len(sums) == (0 if stop == 3 else 2), sums
        ranks.run(2, train, selective(None, 6, 3, **mode), corpus.folder, parts, True)
        assert_same_runs(tmp_path / "whole", parts)


def test_other_numbers_of_ranks_continue_from_the_mean(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    ranks.run(1, train, selective(weights, 4, 2), corpus.folder, tmp_path / "whole")
    for first, second in ((2, 1), (1, 2)):
        parts = tmp_path / f"{first}to{second}"
        ranks.run(first, train, selective(weights, 3, 2), corpus.folder, parts)
        ranks.run(second, train, selective(weights, 4, 2), corpus.folder, parts, True)
        assert logged(parts) == pytest.approx(logged(tmp_path / "whole"), rel=1e-5)
        for kind in ("master", "exp_avg", "ema"):
            a, b = final_weights(tmp_path / "whole", kind), final_weights(parts, kind)
            assert largest_difference(a, b) < 1e-5, kind


def test_what_is_deferred_and_what_is_sent(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    """One step of two: the deferred weights, their moments and their average stand still and send nothing."""
    ranks.run(2, train, selective(weights, 2, 2, hymotion__training__save_steps=1), corpus.folder, tmp_path)
    start = load_weights(weights)[0]
    first = checkpoint_folders(tmp_path)[0]
    assert read_state(first)["deferred"]["held"] == 1
    for kind in ("master", "ema", "exp_avg"):
        tensors = dict(read_kind(first, kind))
        for name, value in tensors.items():
            before = torch.zeros_like(value) if kind == "exp_avg" else start[name]
            still = torch.equal(value, before)
            assert still != any(part in name for part in HOT), (kind, name)
    numel = {name: value.numel() for name, value in final_weights(tmp_path).items()}
    hot = sum(count for name, count in numel.items() if any(part in name for part in HOT))
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["comm/allreduce_bytes"] for entry in entries] == [4 * hot, 4 * sum(numel.values())]
    assert entries[1]["comm/gradients_others_bytes"] == pytest.approx(4 * (sum(numel.values()) - hot))
    after = final_weights(tmp_path)
    assert all(not torch.equal(after[name], start[name]) for name in after)


def test_frozen_layers_neither_move_nor_vanish(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    sync = {"others_every": 2, "frozen": ["text", "*.double_blocks.*"], "check_steps": 1}
    settings = selective(weights, 2, 2)
    settings["hymotion"]["gradient_sync"] = sync
    ranks.run(2, train, settings, corpus.folder, tmp_path)
    # Resumed without the weights it started from, a run takes its frozen layers from the checkpoint.
    settings["hymotion"]["training"]["max_steps"] = 3
    del settings["hymotion"]["model"]["init_from"]
    ranks.run(2, train, settings, corpus.folder, tmp_path, True)
    start, end = load_weights(weights)[0], load_weights(tmp_path / "weights.safetensors")[0]
    assert start.keys() == end.keys()
    trained = final_weights(tmp_path).keys()
    for name in start:
        frozen = "double_blocks" in name or "text_refiner" in name or "txt_encoder" in name
        assert (name in trained) != (frozen or name in ("mean", "std") or name.startswith("special"))
        assert torch.equal(start[name], end[name]) == (name not in trained), name


def test_another_division_of_the_parameters_is_refused(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    ranks.run(1, train, selective(None, 1, 2), corpus.folder, tmp_path)
    other = selective(None, 2, 2)
    other["hymotion"]["gradient_sync"]["always"] = ["motion_head"]
    with pytest.raises(AssertionError, match="the same always"):
        ranks.run(1, train, other, corpus.folder, tmp_path, True)


@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.full)])
def test_on_a_network_cut_over_tensor_ranks(ranks: RankPool, corpus: Corpus, tmp_path: Path, stage: int) -> None:
    """Two tensor x two data ranks, stopped between two syncs, against one process."""
    weights = random_weights(tmp_path / "weights.safetensors", corpus, {**SMALL, "num_heads": 4})
    cut = {"hymotion__model__num_heads": 4, "hymotion__training__joint_groups": None}
    ranks.run(1, train, selective(weights, 4, 2, **cut), corpus.folder, tmp_path / "whole")
    cut |= {"hymotion__parallel__model": 2, "zero_optimization": {"stage": stage}}
    ranks.run(4, train, selective(weights, 3, 2, **cut), corpus.folder, tmp_path / "cut")
    ranks.run(4, train, selective(weights, 4, 2, **cut), corpus.folder, tmp_path / "cut", True)
    assert logged(tmp_path / "cut") == pytest.approx(logged(tmp_path / "whole"), rel=1e-5)
    assert logged(tmp_path / "cut", "grad_norm") == pytest.approx(logged(tmp_path / "whole", "grad_norm"), rel=1e-5)
    for kind in ("master", "exp_avg", "ema"):
        a, b = final_weights(tmp_path / "whole", kind), final_weights(tmp_path / "cut", kind)
        assert largest_difference(a, b) < 1e-5, kind

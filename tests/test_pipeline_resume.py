"""Checkpoints of a pipeline: bit-identical on the same stages, and on any others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.training.weights import load_model
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train


def settings(weights: Path, steps: int, stages: int, zero: int = 1, **changes: Any) -> dict[str, Any]:
    return run_settings(
        weights,
        hymotion__training__max_steps=steps,
        hymotion__training__save_steps=4,
        hymotion__training__keep_last=9,
        hymotion__parallel={"pipeline": stages, "memory_steps": 0},
        gradient_accumulation_steps=2,
        gradient_clipping=1.0,
        zero_optimization={"stage": zero},
        **changes,
    )


KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")


@pytest.mark.parametrize(
    ("zero", "bf16"),
    [pytest.param(0, False, marks=pytest.mark.full), pytest.param(1, False, marks=pytest.mark.full), (1, True)],
)
def test_the_same_stages_continue_bit_for_bit(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, zero: int, bf16: bool
) -> None:
    half = {"bf16": {"enabled": bf16}}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ranks.run(2, train, settings(weights, 8, 2, zero, **half), corpus.folder, whole)
    ranks.run(2, train, settings(weights, 4, 2, zero, **half), corpus.folder, parts)
    ranks.run(2, train, settings(weights, 8, 2, zero, **half), corpus.folder, parts, True)
    assert logged(parts) == logged(whole) and len(logged(parts)) == 8
    for kind in KINDS:
        a, b = final_weights(whole, kind), final_weights(parts, kind)
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a), kind


@pytest.mark.parametrize(("before", "after"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.full)])
def test_other_stages_continue_where_they_were(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, before: int, after: int
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ranks.run(after, train, settings(weights, 8, after), corpus.folder, whole)
    ranks.run(before, train, settings(weights, 4, before), corpus.folder, parts)
    ranks.run(after, train, settings(weights, 8, after, 0), corpus.folder, parts, True)
    assert logged(parts) == pytest.approx(logged(whole), rel=1e-5)
    for kind in KINDS:
        assert largest_difference(final_weights(whole, kind), final_weights(parts, kind)) < 1e-5, kind
    exported = load_model(parts / "weights.safetensors").generator.state_dict()
    average = final_weights(parts, "ema")
    assert set(exported) > set(average) and all(torch.equal(exported[name], average[name]) for name in average)


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"),
    [((4, 1), (1, 1)), ((1, 1), (3, 1)), ((2, 2), (1, 1)), ((2, 1), (2, 2)), ((1, 2), (4, 1)), ((4, 1), (2, 2))],
)
def test_any_layout_continues_any_other(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Layouts are (stages, tensor ranks); four processes, so that two stages alone mean two pipelines."""

    def layout(steps: int, stages: int, model: int) -> tuple[int, dict[str, Any]]:
        changes = {"hymotion__parallel__model": model, "hymotion__pipeline": {"max_imbalance": 9}}
        world = 3 if stages == 3 else 4
        return world, settings(weights, steps, stages, **changes, train_batch_size=8)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    world, asked = layout(6, *after)
    ranks.run(world, train, asked, corpus.folder, whole)
    first, begun = layout(4, *before)
    ranks.run(first, train, begun, corpus.folder, parts)
    ranks.run(world, train, asked, corpus.folder, parts, True)
    assert logged(parts) == pytest.approx(logged(whole), rel=1e-5)
    for kind in KINDS:
        assert largest_difference(final_weights(whole, kind), final_weights(parts, kind)) < 1e-5, kind

"""Checkpoints of a pipeline continue bit for bit on the same stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from tests.ranks import RankPool
from tests.runs import final_weights, logged, run_settings, train


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

"""Optimizer states on the CPU: the same run as without, and one that resumes bit for bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.parallel import cpu_adam
from ds_hymotion.training.weights import load_weights
from tests.ranks import RankPool
from tests.runs import count_from_zero, final_weights, largest_difference, logged, run_settings, train

CPU = {"device": "cpu"}
KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")


def train_with(compiler: bool, *arguments: Any) -> str:
    """Train on this rank with or without a compiler; return which Adam ran."""
    original, used = cpu_adam.compiles, []
    from ds_hymotion.parallel import engine, engine_settings

    engine_settings.compiles = lambda: compiler  # type: ignore[assignment]
    start = engine.DataEngine.begin_step

    def begin_step(self: Any, *args: Any) -> None:
        used.append(type(self.engine.basic_optimizer).__name__)
        start(self, *args)

    engine.DataEngine.begin_step = begin_step  # type: ignore[method-assign]
    count_from_zero()
    try:
        train(*arguments)
    finally:
        engine_settings.compiles = original
        engine.DataEngine.begin_step = start  # type: ignore[method-assign]
    return used[0]


def settings(steps: int, zero: dict[str, Any], weights: Path | None = None, **changes: Any) -> dict[str, Any]:
    return run_settings(
        weights,
        zero_optimization=zero,
        gradient_clipping=0.5,
        hymotion__training__max_steps=steps,
        hymotion__training__keep_last=9,
        **changes,
    )


@pytest.mark.parametrize(
    ("compiler", "changes"),
    [
        (False, {}),
        pytest.param(True, {}, marks=pytest.mark.full),
        pytest.param(True, {"bf16": {"enabled": True}}, marks=pytest.mark.full),
        pytest.param(False, {"gradient_accumulation_steps": 2}, marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(600)
def test_optimizer_states_on_the_cpu(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, compiler: bool, changes: dict[str, Any]
) -> None:
    with_offload = {"stage": 2, "offload_optimizer": CPU}
    plain, whole, parts = tmp_path / "plain", tmp_path / "whole", tmp_path / "parts"
    ranks.run(2, train, settings(5, {"stage": 2}, weights, **changes), corpus.folder, plain)
    given = settings(5, with_offload, weights, **changes)
    kind = ranks.run(2, train_with, compiler, given, corpus.folder, whole, seconds=300)
    assert kind == ["DeepSpeedCPUAdam" if compiler else "AdamW"] * 2
    rounding = 1e-2 if changes.get("bf16") else 1e-5
    assert logged(whole) == pytest.approx(logged(plain), rel=rounding)
    assert logged(whole, "grad_norm") == pytest.approx(logged(plain, "grad_norm"), rel=rounding)
    assert largest_difference(final_weights(whole), final_weights(plain)) < rounding
    assert largest_difference(final_weights(whole, "ema"), final_weights(plain, "ema")) < rounding

    ranks.run(2, train_with, compiler, {**given, **settings(3, with_offload, weights, **changes)}, corpus.folder, parts)
    ranks.run(2, train_with, compiler, given, corpus.folder, parts, True)
    assert logged(parts) == logged(whole)
    for kind_of_state in KINDS:
        a, b = final_weights(whole, kind_of_state), final_weights(parts, kind_of_state)
        assert all(torch.equal(a[name], b[name]) for name in a), kind_of_state


def test_a_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not cpu_adam.compiles()
    assert os.environ["CXX"]


ZERO3 = [
    {"stage": 3},
    {"stage": 3, "offload_param": CPU, "offload_optimizer": CPU},
]


@pytest.mark.parametrize(
    ("zero", "world", "changes"),
    [
        (ZERO3[1], 2, {}),
        pytest.param(ZERO3[0], 2, {"gradient_accumulation_steps": 2}, marks=pytest.mark.full),
        pytest.param(ZERO3[0], 3, {"train_batch_size": 6}, marks=pytest.mark.full),
        pytest.param(ZERO3[0], 2, {"bf16": {"enabled": True}}, marks=pytest.mark.full),
        pytest.param({**ZERO3[0], "stage3_param_persistence_threshold": 0}, 2, {}, marks=pytest.mark.full),
    ],
)
def test_divided_weights(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, zero: dict[str, Any], world: int, changes: Any
) -> None:
    """ZeRO-3 is ZeRO-1 to rounding, its checkpoint continues at ZeRO-1 and back, and it resumes bit for bit."""
    whole, plain, parts, there = (tmp_path / name for name in ("whole", "plain", "parts", "there"))
    evaluation = {"hymotion__evaluation": {"eval_steps": 2, "split": "train", "times": [0.5]}}

    def given(steps: int, stage: dict[str, Any]) -> dict[str, Any]:
        return settings(steps, stage, weights, **evaluation, **changes)

    ranks.run(world, train_with, False, given(5, zero), corpus.folder, whole)
    ranks.run(world, train_with, False, given(5, {"stage": 1}), corpus.folder, plain)
    rounding = 2e-2 if changes.get("bf16") else 1e-5
    for key in ("loss", "grad_norm"):
        assert logged(whole, key) == pytest.approx(logged(plain, key), rel=rounding)
    for kind in ("master", "ema"):
        assert largest_difference(final_weights(whole, kind), final_weights(plain, kind)) < rounding
    a, b = (load_weights(run / "weights.safetensors")[0] for run in (whole, plain))
    assert largest_difference(a, b) < rounding

    ranks.run(world, train_with, False, given(2, zero), corpus.folder, parts)
    shutil.copytree(parts, there)
    ranks.run(world, train_with, False, given(5, zero), corpus.folder, parts, True)
    assert logged(parts) == logged(whole)
    for kind in KINDS:
        a, b = final_weights(whole, kind), final_weights(parts, kind)
        assert all(torch.equal(a[name], b[name]) for name in a), kind

    ranks.run(world, train_with, False, given(3, {"stage": 1}), corpus.folder, there, True)
    ranks.run(world, train_with, False, given(5, zero), corpus.folder, there, True)
    assert logged(there) == pytest.approx(logged(whole), rel=rounding)
    assert largest_difference(final_weights(there), final_weights(whole)) < rounding

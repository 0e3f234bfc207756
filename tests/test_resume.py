"""A resumed run continues bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.training.checkpoint import checkpoint_folders, damage
from ds_hymotion.training.weights import load_weights, save_weights
from tests.corpora import random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, logged, run_settings, train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34, 40, 44, 52, 57, 61, 66])


@pytest.mark.parametrize(
    ("world", "stage", "bf16"),
    [(1, 0, False), (2, 1, True), *(pytest.param(2, stage, False, marks=pytest.mark.full) for stage in (1, 2))],
)
def test_twenty_and_twenty_steps_are_forty(
    ranks: RankPool, corpus: Corpus, tmp_path: Path, world: int, stage: int, bf16: bool
) -> None:
    def settings(steps: int) -> dict[str, object]:
        return run_settings(
            hymotion__training__max_steps=steps,
            hymotion__training__save_steps=20,
            hymotion__training__keep_last=9,
            hymotion__flow__time="uniform",
            zero_optimization={"stage": stage},
            bf16={"enabled": bf16},
            gradient_clipping=1.0,
        )

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ranks.run(world, train, settings(40), corpus.folder, whole)
    ranks.run(world, train, settings(20), corpus.folder, parts)
    ranks.run(world, train, settings(40), corpus.folder, parts, True)
    assert logged(parts) == logged(whole)
    assert len(logged(parts)) == 40
    for kind in ("master", "exp_avg", "exp_avg_sq", "ema"):
        a, b = final_weights(whole, kind), final_weights(parts, kind)
        assert all(torch.equal(a[name], b[name]) for name in a), kind


def test_a_resumed_run_keeps_the_statistics_its_weights_were_trained_with(
    ranks: RankPool, corpus: Corpus, tmp_path: Path
) -> None:
    weights = random_weights(tmp_path / "start.safetensors", corpus)
    state, provenance = load_weights(weights)
    state["mean"] = state["mean"] + 0.5
    save_weights(weights, state, provenance)
    ranks.run(1, train, run_settings(weights), corpus.folder, tmp_path / "run")
    weights.unlink()
    ranks.run(1, train, run_settings(hymotion__training__max_steps=3), corpus.folder, tmp_path / "run", True)
    assert torch.equal(load_weights(tmp_path / "run" / "weights.safetensors")[0]["mean"], state["mean"])


def test_a_new_checkpoint_outlives_later_ones_that_were_damaged(
    ranks: RankPool, corpus: Corpus, tmp_path: Path
) -> None:
    settings = run_settings(hymotion__training__save_steps=1, hymotion__training__keep_last=2)
    ranks.run(1, train, settings, corpus.folder, tmp_path)
    later = tmp_path / "checkpoints" / "step-00000009"
    shutil.copytree(checkpoint_folders(tmp_path)[-1], later)
    for name, content in (("list", "[]"), ("files", '{"files": []}'), ("nothing", '{"files": {}}')):
        (later / "manifest.json").write_text(content)
        assert damage(later), name
    settings["hymotion"]["training"].update(max_steps=3, keep_last=1)
    ranks.run(1, train, settings, corpus.folder, tmp_path, True)
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-00000003"]


def test_a_loss_that_is_not_finite_ends_the_run_on_all_ranks(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    settings = run_settings(optimizer={"type": "SGD", "params": {"lr": 1e30}}, hymotion__training__max_steps=50)
    said = ranks.run(2, refusal, settings, corpus.folder, tmp_path)
    assert said[0] == said[1] and "the loss is" in said[0]
    assert not checkpoint_folders(tmp_path)


def test_a_caption_without_features_is_found_on_all_ranks_before_the_first_step(
    ranks: RankPool, tmp_path: Path
) -> None:
    corpus = wavy_corpus(tmp_path, [20, 30, 40])
    path = corpus.folder / "samples.jsonl"
    path.write_text(path.read_text().replace("motion number 2 turns", "motion number 2 bends"))
    said = ranks.run(2, refusal, run_settings(), corpus.folder, tmp_path / "run")
    assert said[0] == said[1] and "motion number 2 bends" in said[0]


def test_a_checkpoint_beyond_the_last_step_is_refused(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    ranks.run(1, train, run_settings(), corpus.folder, tmp_path)
    (said,) = ranks.run(1, refusal, run_settings(hymotion__training__max_steps=1), corpus.folder, tmp_path, True)
    assert "stands at step 2" in said and "use at least 2" in said


def refusal(settings: dict[str, Any], corpus: Path, output: Path, resume: bool = False) -> str:
    """What a run that must be refused says on this rank."""
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output, resume)
    return str(caught.value)


def test_the_log_holds_parts_that_add_up(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    settings = run_settings(hymotion__evaluation={"eval_steps": 1, "split": "train", "times": [0.5, 0.9]})
    ranks.run(1, train, settings, corpus.folder, tmp_path)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(entry["step"], entry["kind"]) for entry in entries] == [
        (1, "train"),
        (1, "eval"),
        (2, "train"),
        (2, "eval"),
    ]
    channels = {"loss_fm_joint_hip_knee": 4 * 9 + 3, "loss_fm_joint_others": 20 * 9}
    weighted = sum(entries[0][name] * count for name, count in channels.items()) / 219
    assert weighted == pytest.approx(entries[0]["loss"], rel=1e-6)
    assert entries[1]["loss"] == pytest.approx((entries[1]["loss_t0.5"] + entries[1]["loss_t0.9"]) / 2, rel=1e-6)

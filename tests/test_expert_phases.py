"""Phases of a run with experts: a frozen trunk, dropped experts, resumed in their middle, on other ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.model.experts import expert_of
from ds_hymotion.training.checkpoint import read_kind
from ds_hymotion.training.weights import load_model, load_weights
from tests.expert_runs import Reference, expert_corpus, expert_settings, plan_of
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

NAMES = ["WALK", "REACH", "SIT", "JUMP"]
KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")
PHASES = [{"until": 2}, {"until": 9, "train": ["experts"], "drop_experts": 2}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    clips = [(20 + 3 * number, NAMES[number % 4 if number < 8 else 0]) for number in range(12)]
    return expert_corpus(tmp_path_factory.mktemp("wavy"), clips)


def phased(weights: Path, steps: int, **changes: Any) -> dict[str, Any]:
    return expert_settings(
        weights,
        NAMES,
        **{
            "gradient_clipping": 0.05,
            "hymotion__experts__size": 2,
            "hymotion__experts__phases": PHASES,
            "hymotion__training__max_steps": steps,
            "hymotion__training__save_steps": 1,
            "hymotion__training__keep_last": 9,
            "zero_optimization": {"stage": 1},
            **changes,
        },
    )


def state_at(run: Path, step: int, kind: str) -> dict[str, torch.Tensor]:
    return dict(read_kind(run / "checkpoints" / f"step-{step:08d}", kind))


@pytest.mark.parametrize(
    ("size", "stage"),
    [(2, 1), (2, 2)] + [pytest.param(*case, marks=pytest.mark.full) for case in ((1, 0), (1, 1), (2, 0))],
)
def test_frozen_and_dropped_weights_do_not_move(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, size: int, stage: int
) -> None:
    changes: dict[str, Any] = {"hymotion__experts__size": size, "zero_optimization": {"stage": stage}}
    if not stage:
        changes["gradient_clipping"] = 0.0
    settings, run = phased(weights, 5, **changes), tmp_path / "run"
    reference = Reference(settings, corpus, plan_of(settings, corpus, 2))
    losses = reference.run(5)
    ranks.run(2, train, settings, corpus.folder, run)
    assert logged(run) == pytest.approx(losses, rel=1e-5)
    assert largest_difference(final_weights(run), reference.weights) < 2e-6
    assert [step.trunk for step in reference.steps] == [True, True, False, False, False]
    for number in (2, 3, 4):
        learns = reference.steps[number].experts
        assert 1 <= len(learns) <= 2
        for kind in KINDS:
            before, after = state_at(run, number, kind), state_at(run, number + 1, kind)
            for name, value in before.items():
                assert torch.equal(after[name], value) == (expert_of(name) not in learns), (kind, name)


def test_a_run_resumed_inside_a_phase_is_the_unbroken_one(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ranks.run(2, train, phased(weights, 5), corpus.folder, whole)
    ranks.run(2, train, phased(weights, 3), corpus.folder, broken)
    other = tmp_path / "other"
    shutil.copytree(broken, other)
    ranks.run(2, train, phased(weights, 5), corpus.folder, broken, True)
    for kind in KINDS:
        assert largest_difference(final_weights(whole, kind), final_weights(broken, kind)) == 0
    assert logged(whole) == logged(broken)
    for name in NAMES:
        assert logged(whole, f"expert/{name}/clips") == logged(broken, f"expert/{name}/clips")

    # All experts on one rank: the same weights, moments and step counts, and the run goes on.
    ranks.run(1, train, phased(weights, 3, hymotion__experts__size=1), corpus.folder, other, True)
    for kind in KINDS:
        assert largest_difference(final_weights(other, kind), state_at(whole, 3, kind)) == 0
    assert (
        largest_difference(
            load_weights(other / "weights.safetensors")[0], load_weights(broken / "weights.safetensors")[0]
        )
        > 0
    )
    ranks.run(1, train, phased(weights, 4, hymotion__experts__size=1), corpus.folder, other, True)
    assert load_model(other).generator.config.expert_names == tuple(NAMES)

    (line,) = ranks.run(1, refusal, run_settings(weights), corpus.folder, other)
    assert "has 4 experts, hymotion.experts.number = 0; resume with 4 experts, or take one out" in line


def refusal(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output, True)
    return str(caught.value)


def test_a_plain_run_is_no_checkpoint_of_experts(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    ranks.run(1, train, run_settings(weights), corpus.folder, tmp_path)
    (line,) = ranks.run(1, refusal, expert_settings(None, NAMES), corpus.folder, tmp_path)
    assert line.endswith(
        f"has 0 experts, hymotion.experts.number = 4; start with --init_from {tmp_path}, which makes every expert a "
        "copy"
    )


def test_gradients_travel_among_the_ranks_that_hold_an_expert(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    """On two ranks with two experts each, none of an expert's travel; of the trunk, every one once."""
    settings = phased(weights, 1, gradient_clipping=0.0, zero_optimization={"stage": 0})
    ranks.run(2, train, settings, corpus.folder, tmp_path / "run")
    state = final_weights(tmp_path / "run")
    trunk = sum(value.numel() for name, value in state.items() if expert_of(name) is None)
    assert logged(tmp_path / "run", "comm/allreduce_bytes") == [4 * trunk]


@pytest.mark.full
def test_four_ranks_average_an_expert_over_two(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    settings = phased(weights, 1, gradient_clipping=0.0, zero_optimization={"stage": 0})
    ranks.run(4, train, settings, corpus.folder, tmp_path / "run")
    state = final_weights(tmp_path / "run")
    own = sum(value.numel() for name, value in state.items() if expert_of(name) in (0, 1))
    assert logged(tmp_path / "run", "comm/gradients_experts_bytes") == [4 * own]

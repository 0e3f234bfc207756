"""Runs with experts against one process with all of them and plain optimizers: gradients, weights, what rests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.plan import Position
from ds_hymotion.model.experts import expert_of
from tests.expert_runs import Reference, expert_corpus, expert_settings, plan_of
from tests.ranks import RankPool
from tests.runs import SGD, final_weights, largest_difference, logged, train

CLIPS = [
    (20, "WALK"),
    (23, "WALK"),
    (31, "REACH"),
    (34, "WALK"),
    (40, "WALK"),
    (44, "WALK"),
    (61, "WALK"),
    (66, "WALK"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return expert_corpus(tmp_path_factory.mktemp("wavy"), CLIPS)


@pytest.mark.parametrize(
    ("world", "size", "stage"),
    [(1, 1, 0), (2, 2, 0), (2, 2, 1), (2, 2, 2)]
    + [pytest.param(*case, marks=pytest.mark.full) for case in ((2, 1, 1), (2, 1, 2), (4, 2, 0), (4, 2, 1), (4, 2, 2))],
)
def test_gradients_are_those_of_one_process(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, world: int, size: int, stage: int
) -> None:
    settings = expert_settings(
        weights,
        optimizer=SGD,
        gradient_clipping=0.0,
        hymotion__training__max_steps=1,
        hymotion__experts__size=size,
        zero_optimization={"stage": stage},
    )
    reference = Reference(settings, corpus, plan_of(settings, corpus, world))
    before = reference.weights
    losses = reference.run(1)
    ranks.run(world, train, settings, corpus.folder, tmp_path / "run")
    after = final_weights(tmp_path / "run")
    assert after.keys() == before.keys()
    for name, start in before.items():
        mine, theirs = start - after[name], start - reference.weights[name]
        assert float((mine - theirs).abs().max()) <= 1e-6 * max(1.0, float(theirs.abs().max())), name
    largest = {part: max(_size(before, after, part)) for part in (None, *reference.steps[0].experts)}
    assert min(largest.values()) > 1e-3
    assert logged(tmp_path / "run") == pytest.approx(losses, rel=1e-6)


def _size(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], part: int | None) -> list[float]:
    return [float((before[name] - after[name]).abs().max()) for name in before if expert_of(name) == part]


@pytest.mark.parametrize(
    ("size", "stage"),
    [(1, 1), (2, 1), (2, 2)] + [pytest.param(*case, marks=pytest.mark.full) for case in ((1, 0), (1, 2), (2, 0))],
)
def test_an_expert_without_a_clip_rests(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, size: int, stage: int
) -> None:
    """REACH has one clip: AdamW's momentum and decay must not move it, nor its rank's empty batches the trunk."""
    steps = 5
    settings = expert_settings(
        weights,
        gradient_accumulation_steps=2,
        hymotion__training__max_steps=steps,
        hymotion__experts__size=size,
        zero_optimization={"stage": stage},
        gradient_clipping=0.0 if (size, stage) == (2, 0) else 0.05,
    )
    reference = Reference(settings, corpus, plan_of(settings, corpus, 2))
    losses = reference.run(steps)
    assert 0 < sum(step.experts == (0,) for step in reference.steps) < steps
    ranks.run(2, train, settings, corpus.folder, tmp_path / "run")
    assert largest_difference(final_weights(tmp_path / "run"), reference.weights) < 2e-6
    assert logged(tmp_path / "run") == pytest.approx(losses, rel=1e-5)
    assert logged(tmp_path / "run", "grad_norm") == pytest.approx(reference.norms, rel=1e-5)


@pytest.mark.parametrize(("size", "stage"), [(1, 1), (2, 1), pytest.param(1, 0, marks=pytest.mark.full)])
def test_what_rests_is_bit_identical(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, size: int, stage: int
) -> None:
    """Weights, moments and average of an expert, over a resumed step in which it has no clip."""
    settings = expert_settings(weights, hymotion__experts__size=size, zero_optimization={"stage": stage})
    walk = plan_of(settings, corpus, 2).walk(Position())
    seen = [1 in next(walk).experts for _ in range(6)]
    last = next(number for number in range(1, 6) if seen[number - 1] and not seen[number])
    kinds = ("master", "exp_avg", "exp_avg_sq", "ema")
    settings["hymotion"]["training"].update(max_steps=last, save_steps=1)
    ranks.run(2, train, settings, corpus.folder, tmp_path / "run")
    before = {kind: final_weights(tmp_path / "run", kind) for kind in kinds}
    settings["hymotion"]["training"]["max_steps"] = last + 1
    ranks.run(2, train, settings, corpus.folder, tmp_path / "run", True)
    for kind in kinds:
        after = final_weights(tmp_path / "run", kind)
        for name, value in before[kind].items():
            assert torch.equal(after[name], value) == (expert_of(name) == 1), (kind, name)
    unbroken = tmp_path / "unbroken"
    ranks.run(2, train, settings, corpus.folder, unbroken)
    for kind in kinds:
        assert largest_difference(final_weights(unbroken, kind), final_weights(tmp_path / "run", kind)) == 0

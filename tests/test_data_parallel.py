"""Any number of data ranks against one process: gradients, weights, losses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.plan import Row
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.flow.times import draw_time
from ds_hymotion.model.presets import preset
from ds_hymotion.text.cache import TextCache
from ds_hymotion.training.weights import load_weights
from tests.ranks import RankPool
from tests.runs import SGD, final_weights, largest_difference, logged, run_settings, train


def compare(ranks: RankPool, world: int, corpus: Corpus, folder: Path, settings: dict[str, Any]) -> tuple[Path, Path]:
    """The same run on one process and on ``world``."""
    alone, together = folder / "alone", folder / f"on{world}"
    ranks.run(1, train, settings, corpus.folder, alone)
    ranks.run(world, train, settings, corpus.folder, together)
    return alone, together


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_two_ranks_have_the_gradients_of_one(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, stage: int
) -> None:
    settings = run_settings(weights, optimizer=SGD, hymotion__training__max_steps=1, zero_optimization={"stage": stage})
    alone, together = compare(ranks, 2, corpus, tmp_path, settings)
    start = load_weights(weights)[0]
    one, two = ({name: start[name] - value for name, value in final_weights(run).items()} for run in (alone, together))
    zeros = {name for name, gradient in one.items() if gradient.abs().max() < 1e-8}
    assert all(name.endswith("self_attn_k_norm.bias") for name in zeros), "softmax does not see a constant on all keys"
    assert max(float(gradient.abs().max()) for gradient in one.values()) > 1e-3
    for name, gradient in one.items():
        assert float((gradient - two[name]).abs().max()) <= 1e-5 * max(float(gradient.abs().max()), 3e-3), name
    assert logged(together) == pytest.approx(logged(alone), rel=1e-6)


@pytest.mark.parametrize("timesteps", [1, 3])
def test_gradients_do_not_depend_on_the_rank_of_a_clip(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, timesteps: int
) -> None:
    """Three clips of 20, 23 and 31 frames in one step of up to four: one rank of four has none."""
    settings = run_settings(
        weights,
        optimizer=SGD,
        gradient_clipping=0.0,
        hymotion__training__max_steps=1,
        hymotion__data__max_clips=3,
        hymotion__flow__timesteps_per_sample=timesteps,
    )
    start = load_weights(weights)[0]
    for world in (1, 2, 4):
        ranks.run(world, train, settings, corpus.folder, tmp_path / str(world))
    gradients = [
        {name: start[name].double() - value.double() for name, value in final_weights(tmp_path / str(world)).items()}
        for world in (1, 2, 4)
    ]
    largest = max(float(value.abs().max()) for value in gradients[0].values())
    assert largest > 0.1
    for other in gradients[1:]:
        difference = max(float((gradients[0][name] - other[name]).abs().max()) for name in other)
        assert difference < 1e-6 * max(1.0, largest)
    assert logged(tmp_path / "4", "useful_share")[0] < 0.7


@pytest.mark.parametrize("stage", [0, 1])
def test_two_ranks_have_the_weights_of_one_after_five_steps(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, stage: int
) -> None:
    settings = run_settings(
        weights, hymotion__training__max_steps=5, gradient_clipping=0.05, zero_optimization={"stage": stage}
    )
    alone, together = compare(ranks, 2, corpus, tmp_path, settings)
    start = load_weights(weights)[0]
    assert largest_difference(final_weights(alone), {n: start[n] for n in final_weights(alone)}) > 1e-3
    assert largest_difference(final_weights(alone), final_weights(together)) < 1e-5
    assert largest_difference(final_weights(alone, "ema"), final_weights(together, "ema")) < 1e-5
    assert logged(together) == pytest.approx(logged(alone), rel=1e-5)
    assert logged(together, "grad_norm") == pytest.approx(logged(alone, "grad_norm"), rel=1e-5)


def test_accumulation_changes_nothing(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    settings = run_settings(weights, optimizer=SGD)
    ranks.run(1, train, settings, corpus.folder, tmp_path / "whole")
    ranks.run(1, train, {**settings, "gradient_accumulation_steps": 2}, corpus.folder, tmp_path / "parts")
    assert largest_difference(final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts")) < 1e-5


def test_a_bucket_has_its_own_learning_rate(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    settings = run_settings(hymotion__training__max_steps=3, hymotion__data__bucket_lr_factors=[0.5, 2, 1, 1, 1, 1])
    ranks.run(2, train, settings, corpus.folder, tmp_path)
    rates = dict(zip(logged(tmp_path, "bucket"), logged(tmp_path, "lr")))
    assert rates == pytest.approx({0.0: 0.5e-2, 1.0: 2e-2})


def test_ranks_without_clips_take_part(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    settings = run_settings(
        weights,
        train_batch_size=3,
        hymotion__training__max_steps=4,
        hymotion__flow__foot_contact_weight=0.1,
        hymotion__flow__joint_position_weight=1.0,
        hymotion__data={"bucket_bounds": [25, 50, 100]},
        zero_optimization={"stage": 1},
    )
    alone, together = compare(ranks, 3, corpus, tmp_path, settings)
    assert largest_difference(final_weights(alone), final_weights(together)) < 1e-5
    assert logged(together) == pytest.approx(logged(alone), rel=1e-5)


@pytest.mark.parametrize("kind", ["mse", "smooth_l1"])
def test_the_loss_does_not_see_padding(corpus: Corpus, kind: str) -> None:
    class Overflowing(torch.nn.Module):
        config = preset("tiny")

        def forward(self, motion: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            return torch.where(torch.arange(motion.shape[1])[:, None] < 20, motion, torch.inf)

    text = TextCache(corpus.text_cache_folder("hashed"))
    statistics = (corpus.mean, corpus.std)
    maker = BatchMaker(corpus, corpus.samples, text, statistics, partial(draw_time, "uniform"), 0.1, 0, 100)
    assert corpus.samples[0].frames == 20
    flow = FlowSection(loss=kind)  # type: ignore[arg-type]
    body = BodyLosses(corpus.representation, *statistics, corpus.fps, flow)
    loss, parts = FlowObjective(Overflowing(), flow, body)(maker.make(0, [Row(0, 0, 0)], 1, 30), 20)  # type: ignore[arg-type]
    assert bool(loss.isfinite()) and bool(parts.isfinite().all())

"""The network's layers over pipeline stages against one process: gradients, weights, losses, samples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.flow.sampler import sample
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.text.hashed import HashedTextEncoder
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.weights import load_weights
from tests.corpora import random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

LENGTHS = [20, 23, 31, 34, 40, 44, 52, 57, 61, 66]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), LENGTHS)


@pytest.fixture(scope="module")
def weights(corpus: Corpus) -> Path:
    return random_weights(corpus.folder.parent / "weights.safetensors", corpus)


def settings(weights: Path | None, stages: int, accumulation: int = 1, zero: int = 0, **changes: Any) -> dict[str, Any]:
    """Five steps of AdamW with clipping on ``stages`` stages; the same global batch whatever the accumulation."""
    return run_settings(
        weights,
        **{
            "hymotion__training__max_steps": 5,
            "gradient_clipping": 0.05,
            "hymotion__parallel": {"pipeline": stages, "memory_steps": 0},
            "hymotion__pipeline": {"max_imbalance": 9},
            "gradient_accumulation_steps": accumulation,
            "zero_optimization": {"stage": zero},
            **changes,
        },
    )


ONE_STEP = {"hymotion__training__max_steps": 1, "gradient_clipping": 0.0}


@pytest.fixture(scope="module")
def alone(ranks: RankPool, corpus: Corpus, weights: Path) -> Callable[..., Path]:
    """The folder of the same run on one process without a pipeline; every run is made once."""
    done: dict[str, Path] = {}

    def run(**changes: Any) -> Path:
        key = repr(sorted(changes.items()))
        if key not in done:
            done[key] = corpus.folder.parent / f"alone{len(done)}"
            ranks.run(1, train, settings(weights, 1, **changes), corpus.folder, done[key])
        return done[key]

    return run


class Staged(TrainingRun):
    """A run on the pipeline engine even with one stage, which counts the backward passes of every stage."""

    passes = 0

    def _engine(self, generator: MotionGenerator) -> Any:
        from ds_hymotion.parallel.pipeline_engine import PipelineFace
        from ds_hymotion.training.network import build_objective

        objective, plan = build_objective(generator, self.settings, self.corpus, self.joints, self.mesh)
        face = PipelineFace(objective, self.config, self.mesh, self.sync_groups, self.stages, plan)
        next(iter(face.parameters.values())).register_hook(self._count)
        return face

    def _count(self, _: torch.Tensor) -> None:
        self.passes += 1


def staged(settings: dict[str, Any], corpus: Path, output: Path) -> int:
    """Train on this rank; returns how often a gradient reached one of its parameters."""
    shape = RunConfig(settings, "test", ranks=torch.distributed.get_world_size()).shape
    mesh = Mesh.current(model=shape.model, pipe=shape.pipe)
    output.mkdir(parents=True, exist_ok=True)
    run = Staged(RunConfig(settings, "test", ranks=mesh.world), Corpus.open(corpus), output, mesh)
    run.train()
    return run.passes


def assert_gradients_equal(one: Path, many: Path, without: str = r"self_attn_k_norm\.bias$") -> None:
    """Per parameter, by the first moment after one step of AdamW: 0.1 of the gradient, not rounded into a weight."""
    a, b = ({name: 10 * value for name, value in final_weights(run, "exp_avg").items()} for run in (one, many))
    assert a.keys() == b.keys()
    zeros = {name for name, gradient in a.items() if gradient.abs().max() < 1e-8}
    assert all(re.search(without, name) for name in zeros), "softmax does not see a constant on all keys"
    assert max(float(gradient.abs().max()) for gradient in a.values()) > 1e-3
    for name, gradient in a.items():
        assert float((gradient - b[name]).abs().max()) <= 1e-5 * max(float(gradient.abs().max()), 1e-4), name


def assert_weights_equal(one: Path, many: Path, start: dict[str, torch.Tensor], bound: float = 1e-5) -> None:
    """Weights and average after some steps, and what was logged on the way."""
    assert largest_difference(final_weights(one), {n: start[n] for n in final_weights(one)}) > 1e-3
    assert largest_difference(final_weights(one), final_weights(many)) < bound
    assert largest_difference(final_weights(one, "ema"), final_weights(many, "ema")) < bound
    assert logged(many) == pytest.approx(logged(one), rel=bound)
    assert logged(many, "grad_norm") == pytest.approx(logged(one, "grad_norm"), rel=max(bound, 1e-5))


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("stages", [1, 2])
def test_stages_have_the_gradients_of_one_process(
    ranks: RankPool,
    corpus: Corpus,
    weights: Path,
    alone: Callable[..., Path],
    tmp_path: Path,
    stages: int,
    accumulation: int,
) -> None:
    asked = settings(weights, stages, accumulation, **ONE_STEP)
    passes = ranks.run(stages, staged, asked, corpus.folder, tmp_path)
    assert passes == [accumulation] * stages, "every stage runs backward once per micro-batch"
    assert_gradients_equal(alone(**ONE_STEP), tmp_path)


@pytest.mark.parametrize(("accumulation", "zero", "recompute"), [(4, 0, 1), (4, 1, 2)])
def test_two_stages_have_the_weights_of_one_process(
    ranks: RankPool, corpus: Corpus, weights: Path, alone: Callable[..., Path], tmp_path: Path,
    accumulation: int, zero: int, recompute: int,
) -> None:  # fmt: skip
    changes = {"hymotion__model__checkpoint_blocks": recompute}
    ranks.run(2, train, settings(weights, 2, accumulation, zero, **changes), corpus.folder, tmp_path)
    assert_weights_equal(alone(), tmp_path, load_weights(weights)[0])


def test_two_stages_in_bf16_stay_within_rounding(
    ranks: RankPool, corpus: Corpus, weights: Path, alone: Callable[..., Path], tmp_path: Path
) -> None:
    half = {"bf16": {"enabled": True}, "zero": 1}
    ranks.run(2, train, settings(weights, 2, 2, **half), corpus.folder, tmp_path)
    one, start = alone(**half), load_weights(weights)[0]
    assert logged(tmp_path) == pytest.approx(logged(one), rel=2e-2)
    assert largest_difference(final_weights(one), {n: start[n] for n in final_weights(one)}) > 1e-2
    assert largest_difference(final_weights(one), final_weights(tmp_path)) < 1e-2


def test_two_pipelines_of_two_stages_with_a_pipeline_without_clips(
    ranks: RankPool, corpus: Corpus, weights: Path, alone: Callable[..., Path], tmp_path: Path
) -> None:
    """Of five clips over batches of two, the last step has one clip: the second pipeline runs empty batches."""
    changes = {"train_batch_size": 2, "hymotion__data__max_clips": 5, "zero": 1}
    evaluation = {"hymotion__evaluation": {"eval_steps": 5, "split": "train", "times": [0.5, 0.9], "max_clips": 5}}
    ranks.run(4, train, settings(weights, 2, **changes, **evaluation), corpus.folder, tmp_path)
    one = alone(**changes, **evaluation)
    assert_weights_equal(one, tmp_path, load_weights(weights)[0])
    assert held_out(tmp_path) == pytest.approx(held_out(one), rel=1e-5)


def held_out(run: Path) -> list[float]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if entry["kind"] == "eval"]


def test_lengths_that_change_every_step(ranks: RankPool, tmp_path: Path) -> None:
    """Fifty steps of one clip each, all of other lengths."""
    corpus = wavy_corpus(tmp_path / "many", [20 + i % 37 for i in range(25)])
    weights = random_weights(tmp_path / "weights.safetensors", corpus)
    changes = {
        "train_batch_size": 1,
        "hymotion__training__max_steps": 50,
        "optimizer__params__lr": 1e-4,
    }
    ranks.run(1, train, settings(weights, 1, **changes), corpus.folder, tmp_path / "one")
    ranks.run(2, train, settings(weights, 2, **changes), corpus.folder, tmp_path / "two")
    assert len(logged(tmp_path / "two")) == 50
    assert logged(tmp_path / "two") == pytest.approx(logged(tmp_path / "one"), rel=1e-4)


def sample_over(settings: dict[str, Any], corpus: Path, output: Path) -> np.ndarray:
    """Three motions sampled by this rank's pipeline."""
    shape = RunConfig(settings, "test", ranks=torch.distributed.get_world_size()).shape
    mesh = Mesh.current(model=shape.model, pipe=shape.pipe)
    output.mkdir(parents=True, exist_ok=True)
    run = TrainingRun(RunConfig(settings, "test", ranks=mesh.world), Corpus.open(corpus), output, mesh)
    text = HashedTextEncoder().encode(["a person walks", "a person waves with the left hand", ""])
    return sample(run.engine.generator, text, torch.tensor([40, 25, 33]), seed=3, steps=4, guidance=2.0).numpy()


def test_sampling_runs_over_the_stages(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    (one,) = ranks.run(1, sample_over, settings(weights, 1), corpus.folder, tmp_path / "one")
    two = ranks.run(2, sample_over, settings(weights, 2), corpus.folder, tmp_path / "two")
    assert np.array_equal(two[0], two[1])
    assert np.abs(one).max() > 1
    assert np.allclose(one, two[0], atol=1e-4, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("recompute", [0, 1])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_grid(
    ranks: RankPool, corpus: Corpus, weights: Path, alone: Callable[..., Path], tmp_path: Path,
    stages: int, accumulation: int, recompute: int, zero: int,
) -> None:  # fmt: skip
    changes = {"hymotion__model__checkpoint_blocks": recompute}
    start = load_weights(weights)[0]
    one_step = settings(weights, stages, accumulation, zero, **changes, **ONE_STEP)
    assert ranks.run(stages, staged, one_step, corpus.folder, tmp_path / "step") == [accumulation] * stages
    assert_gradients_equal(alone(**ONE_STEP), tmp_path / "step")
    ranks.run(stages, staged, settings(weights, stages, accumulation, zero, **changes), corpus.folder, tmp_path / "run")
    assert_weights_equal(alone(), tmp_path / "run", start)


@pytest.mark.full
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(("stages", "model"), [(2, 1), (2, 2)])
def test_with_data_and_tensor_ranks(
    ranks: RankPool, corpus: Corpus, weights: Path, alone: Callable[..., Path], tmp_path: Path,
    stages: int, model: int, zero: int,
) -> None:  # fmt: skip
    parallel = {"hymotion__parallel": {"pipeline": stages, "model": model}}
    start = load_weights(weights)[0]
    ranks.run(4, train, settings(weights, 1, 2, zero, **parallel, **ONE_STEP), corpus.folder, tmp_path / "step")
    assert_gradients_equal(alone(**ONE_STEP), tmp_path / "step")
    ranks.run(4, train, settings(weights, 1, 2, zero, **parallel), corpus.folder, tmp_path / "run")
    assert_weights_equal(alone(), tmp_path / "run", start)

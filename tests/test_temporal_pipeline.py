"""A pipeline by time against the same network on one process: gradients, weights, losses, samples, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus, Sample, UnreadableSample
from ds_hymotion.errors import UserError
from ds_hymotion.model.temporal import TemporalGenerator
from ds_hymotion.training.weights import load_model, load_weights
from tests.corpora import SMALL, random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train
from tests.test_pipeline import ONE_STEP, assert_gradients_equal, assert_weights_equal, held_out, sample_over

CHUNKS = {"chunk_frames": 20, "halo_frames": 3, "state_frames": 6}
LENGTHS = [20, 23, 31, 34, 40, 44, 52, 57, 61, 66]
# What has no gradient: states that nothing follows, the way in of a state that is always zero, and the network of the
# fourth chunk where the step's clips have three.
NO_GRADIENT = r"self_attn_k_norm\.bias$|state_encoder\.|state_projection|^specialists\.2\."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), LENGTHS)


@pytest.fixture(scope="module")
def weights(corpus: Corpus) -> dict[str, Path]:
    folder = corpus.folder.parent
    return {
        "tied": random_weights(folder / "tied.safetensors", corpus, {**SMALL, **CHUNKS}),
        "per_stage": random_weights(folder / "each.safetensors", corpus, {**SMALL, **CHUNKS, "chunk_networks": 4}),
        "two": random_weights(
            folder / "two.safetensors", corpus, {**SMALL, **CHUNKS, "chunk_frames": 40, "chunk_networks": 2}
        ),
    }


def settings(
    weights: dict[str, Path], kind: str, stages: int, accumulation: int = 1, zero: int = 0, **changes: Any
) -> dict[str, Any]:
    """Five steps of AdamW with clipping; ``two`` has a network for each of two chunks of 40 frames."""
    chunks: dict[str, Any] = {**CHUNKS, "chunk_frames": 40} if kind == "two" else CHUNKS
    if kind == "clean":
        kind, chunks = "tied", {**CHUNKS, "states": "clean"}
    return run_settings(
        weights[kind],
        **{
            "hymotion__training__max_steps": 5,
            "hymotion__gradient_sync__check_steps": 1,
            "gradient_clipping": 0.05,
            "hymotion__data__bucket_bounds": [40, 80],
            "hymotion__parallel": {"pipeline": stages, "memory_steps": 0},
            "hymotion__pipeline": {"mode": "temporal", "weights": "tied" if kind == "tied" else "per_stage", **chunks},
            "hymotion__flow__joint_position_weight": 0.1,
            "gradient_accumulation_steps": accumulation,
            "zero_optimization": {"stage": zero},
            **changes,
        },
    )


@pytest.fixture(scope="module")
def alone(ranks: RankPool, corpus: Corpus, weights: dict[str, Path]) -> Callable[..., Path]:
    """The folder of the same run on one process; every run is made once."""
    done: dict[str, Path] = {}

    def run(kind: str, **changes: Any) -> Path:
        key = repr((kind, sorted(changes.items())))
        if key not in done:
            done[key] = corpus.folder.parent / f"alone{len(done)}"
            ranks.run(1, train, settings(weights, kind, 1, **changes), corpus.folder, done[key])
        return done[key]

    return run


@pytest.mark.parametrize(
    ("kind", "stages", "data", "accumulation", "zero"),
    [
        pytest.param("tied", 2, 1, 4, 0, marks=pytest.mark.full),
        ("two", 2, 1, 2, 1),
        pytest.param("tied", 4, 1, 1, 1, marks=pytest.mark.full),
        pytest.param("tied", 3, 1, 2, 0, marks=pytest.mark.full),
        pytest.param("per_stage", 4, 1, 4, 0, marks=pytest.mark.full),
        pytest.param("per_stage", 4, 1, 1, 1, marks=pytest.mark.full),
        pytest.param("two", 2, 2, 1, 0, marks=pytest.mark.full),
        pytest.param("tied", 2, 2, 2, 0, marks=pytest.mark.full),
        ("tied", 2, 2, 1, 1),
        pytest.param("clean", 2, 1, 2, 0, marks=pytest.mark.full),
    ],
)
def test_stages_by_time_equal_one_process(
    ranks: RankPool, corpus: Corpus, weights: dict[str, Path], alone: Callable[..., Path], tmp_path: Path,
    kind: str, stages: int, data: int, accumulation: int, zero: int,
) -> None:  # fmt: skip
    """Gradients of one step, then weights, average, losses, norms and held-out losses of five."""
    evaluation = {"hymotion__evaluation": {"eval_steps": 5, "split": "train", "times": [0.5], "max_clips": 5}}
    one_step = settings(weights, kind, stages, accumulation, zero, **ONE_STEP)
    ranks.run(stages * data, train, one_step, corpus.folder, tmp_path / "step")
    assert_gradients_equal(alone(kind, **ONE_STEP), tmp_path / "step", NO_GRADIENT)
    gradients = final_weights(tmp_path / "step", "exp_avg")
    assert gradients["state_encoder.carry.bias"].abs().max() > 1e-8
    run = settings(weights, kind, stages, accumulation, zero, **evaluation)
    ranks.run(stages * data, train, run, corpus.folder, tmp_path / "run")
    one = alone(kind, **evaluation)
    assert_weights_equal(one, tmp_path / "run", load_weights(weights["tied" if kind == "clean" else kind])[0])
    assert held_out(tmp_path / "run") == pytest.approx(held_out(one), rel=1e-5)


@pytest.mark.parametrize("kind", ["tied", pytest.param("two", marks=pytest.mark.full)])
def test_in_bf16_within_rounding(
    ranks: RankPool, corpus: Corpus, weights: dict[str, Path], alone: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    half = {"bf16": {"enabled": True}, "optimizer__params__lr": 1e-3}
    ranks.run(2, train, settings(weights, kind, 2, 2, 1, **half), corpus.folder, tmp_path)
    one = alone(kind, **half, zero_optimization={"stage": 1})
    assert logged(tmp_path) == pytest.approx(logged(one), rel=1e-2)
    assert logged(tmp_path, "grad_norm") == pytest.approx(logged(one, "grad_norm"), rel=2e-2)
    assert largest_difference(final_weights(tmp_path), final_weights(one)) < 2e-3


@pytest.mark.parametrize(("kind", "zero"), [("tied", 1), pytest.param("two", 0, marks=pytest.mark.full)])
def test_a_resumed_run_is_bit_identical_and_needs_no_stages(
    ranks: RankPool, corpus: Corpus, weights: dict[str, Path], tmp_path: Path, kind: str, zero: int
) -> None:
    def part(steps: int, stages: int) -> dict[str, Any]:
        return settings(weights, kind, stages, 2, zero, hymotion__training__max_steps=steps)

    whole, parts, one = tmp_path / "whole", tmp_path / "parts", tmp_path / "one"
    ranks.run(2, train, part(4, 2), corpus.folder, whole)
    ranks.run(2, train, part(2, 2), corpus.folder, parts)
    ranks.run(2, train, part(2, 2), corpus.folder, one)
    ranks.run(2, train, part(4, 2), corpus.folder, parts, True)
    assert logged(parts) == logged(whole)
    for state in ("master", "exp_avg", "exp_avg_sq", "ema"):
        assert largest_difference(final_weights(whole, state), final_weights(parts, state)) == 0, state
    ranks.run(1, train, part(4, 1), corpus.folder, one, True)
    assert largest_difference(final_weights(whole), final_weights(one)) < 1e-5
    model = load_model(parts / "weights.safetensors")
    assert isinstance(model.generator, TemporalGenerator)
    state_of, average = model.generator.state_dict(), final_weights(parts, "ema")
    assert all(torch.equal(state_of[name], value) for name, value in average.items())


def test_sampling_runs_over_the_stages(
    ranks: RankPool, corpus: Corpus, weights: dict[str, Path], tmp_path: Path
) -> None:
    (one,) = ranks.run(1, sample_over, settings(weights, "tied", 1), corpus.folder, tmp_path / "one")
    two = ranks.run(2, sample_over, settings(weights, "tied", 2), corpus.folder, tmp_path / "two")
    assert np.array_equal(two[0], two[1])
    assert np.allclose(one, two[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hymotion__pipeline__weights": "per_stage"}, "canvas of 80 frames has 4 chunks of 20: use 4, or 1"),
        ({"hymotion__parallel__model": 2}, "hymotion.parallel.model = 2 does not work .* temporal; use 1"),
        ({"hymotion__gradient_sync": {"others_every": 2}}, "others_every = 2 does not work"),
        ({"hymotion__flow__foot_contact_weight": 1.0}, "a foot's speed crosses chunks"),
        ({"hymotion__pipeline__split": [1, 2]}, "split = .* has no effect with .* temporal; leave it out"),
        ({"hymotion__pipeline": {"halo_frames": 3}}, "halo_frames = 3 has no effect with .* layers; leave it out"),
        ({"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}, "use bf16 or fp32"),
    ],
)
def test_refusals(weights: dict[str, Path], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RunConfig(settings(weights, "tied", 2, **changes), "test")


def train_where_the_last_rank_cannot_read(settings: dict[str, Any], corpus: Path, output: Path) -> None:
    """Train; the last rank fails to read the third clip, which has two chunks."""
    read = Corpus.features

    def features(self: Corpus, sample: Sample) -> torch.Tensor:
        if sample.index == 2 and dist.get_rank() == dist.get_world_size() - 1:
            raise UnreadableSample("gone here")
        return read(self, sample)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corpus, "features", features)
        train(settings, corpus, output)


def test_a_clip_that_one_stage_cannot_read_counts_on_none(
    ranks: RankPool, corpus: Corpus, weights: dict[str, Path], tmp_path: Path
) -> None:
    for stages in (1, 2):
        run = settings(weights, "tied", stages, 2, hymotion__gradient_sync={"check_steps": 1})
        ranks.run(stages, train_where_the_last_rank_cannot_read, run, corpus.folder, tmp_path / str(stages))
    assert logged(tmp_path / "2") == pytest.approx(logged(tmp_path / "1"), rel=1e-5)

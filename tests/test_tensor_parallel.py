"""Training with a network cut over tensor ranks against one process, and its checkpoints at other layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ds_hymotion.data.corpus import Corpus, Sample, UnreadableSample
from ds_hymotion.training.log import read_log
from ds_hymotion.training.weights import load_weights
from tests.corpora import SMALL, random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import SGD, final_weights, largest_difference, logged, run_settings, train

GRADIENTS = {"optimizer": SGD, "hymotion__training__max_steps": 1}
WEIGHTS = {
    "hymotion__training__max_steps": 5,
    "hymotion__evaluation": {"eval_steps": 5, "split": "train", "times": [0.5]},
    "gradient_clipping": 0.05,
}
# tensor ranks, data ranks, ZeRO stage
LAYOUTS = [
    (2, 1, 0),
    (2, 1, 1),
    pytest.param(2, 2, 0, marks=pytest.mark.full),
    pytest.param(2, 1, 2, marks=pytest.mark.full),
    pytest.param(4, 1, 0, marks=pytest.mark.full),
    pytest.param(4, 1, 1, marks=pytest.mark.full),
]


class Alone:
    """One-process runs that several tests compare with, made once."""

    def __init__(self, ranks: RankPool, corpus: Corpus, weights: Path) -> None:
        self.ranks, self.corpus, self.weights = ranks, corpus, weights

    def run(self, name: str, folder: Path, tensor: int, data: int = 1, resume: bool = False, **changes: Any) -> Path:
        settings = settings_of(self.weights, hymotion__parallel__model=tensor, **changes)
        self.ranks.run(tensor * data, train, settings, self.corpus.folder, folder / name, resume)
        return folder / name

    def alone(self, name: str, **changes: Any) -> Path:
        folder = self.corpus.folder.parent
        return folder / name if (folder / name).is_dir() else self.run(name, folder, 1, **changes)


def settings_of(weights: Path, **changes: Any) -> dict[str, Any]:
    """The small network with four heads; the motion head cut by whatever balances it."""
    defaults = {"hymotion__model__num_heads": 4, "hymotion__training__joint_groups": None}
    return run_settings(weights, **{**defaults, **changes})


@pytest.fixture(scope="module")
def runs(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    corpus = wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34, 40, 44, 52, 57])
    weights = corpus.folder.parent / "weights.safetensors"
    return Alone(ranks, corpus, random_weights(weights, corpus, {**SMALL, "num_heads": 4}))


def train_where_one_rank_cannot_read(settings: dict[str, Any], corpus: Path, output: Path) -> None:
    """Train; tensor rank 1 alone fails to read the first clip."""
    read = Corpus.features

    def features(self: Corpus, sample: Sample) -> torch.Tensor:
        if sample.index == 0 and dist.get_rank() == 1:
            raise UnreadableSample("gone here")
        return read(self, sample)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corpus, "features", features)
        train(settings, corpus, output)


def test_a_clip_that_one_tensor_rank_cannot_read_counts_on_none(runs: Alone, tmp_path: Path) -> None:
    settings = settings_of(
        runs.weights,
        hymotion__parallel__model=2,
        hymotion__training__max_steps=3,
        hymotion__gradient_sync={"check_steps": 1},
        hymotion__model__checkpoint_blocks=1,
    )
    runs.ranks.run(2, train_where_one_rank_cannot_read, settings, runs.corpus.folder, tmp_path)
    assert logged(tmp_path, "comm/allreduce_bytes") == [0.0] * 3, "there is one data rank"


def moved(start: Path, run: Path) -> dict[str, torch.Tensor]:
    """How far every weight went from where the run started."""
    before = load_weights(start)[0]
    return {name: before[name] - value for name, value in final_weights(run).items()}


@pytest.mark.parametrize(("tensor", "data", "stage"), [*LAYOUTS, (2, 2, 1)])
def test_gradients_are_those_of_one_process(runs: Alone, tmp_path: Path, tensor: int, data: int, stage: int) -> None:
    alone = runs.alone("gradients", **GRADIENTS)
    together = runs.run("cut", tmp_path, tensor, data, zero_optimization={"stage": stage}, **GRADIENTS)
    one, many = moved(runs.weights, alone), moved(runs.weights, together)
    zeros = {name for name, gradient in one.items() if gradient.abs().max() < 1e-8}
    assert all(name.endswith("self_attn_k_norm.bias") for name in zeros), "softmax does not see a constant on all keys"
    assert max(float(gradient.abs().max()) for gradient in one.values()) > 1e-3
    before = load_weights(runs.weights)[0]
    worst = 0.0
    for name, gradient in one.items():
        rounding = torch.finfo(torch.float32).eps * float(before[name].abs().max())
        difference = float((gradient - many[name]).abs().max())
        assert difference <= 1e-5 * float(gradient.abs().max()) + rounding, name
        worst = max(worst, difference)
    print(f"{tensor} x {data} ranks, ZeRO {stage}: largest difference of a gradient {worst:.1e}")
    assert logged(together) == pytest.approx(logged(alone), rel=1e-6)
    assert logged(together, "grad_norm") == pytest.approx(logged(alone, "grad_norm"), rel=1e-5)


@pytest.mark.parametrize(("tensor", "data", "stage"), [*LAYOUTS, (2, 2, 1)])
def test_weights_are_those_of_one_process_after_five_steps(
    runs: Alone, tmp_path: Path, tensor: int, data: int, stage: int
) -> None:
    alone = runs.alone("weights", **WEIGHTS)
    together = runs.run("cut", tmp_path, tensor, data, zero_optimization={"stage": stage}, **WEIGHTS)
    assert max(float(value.abs().max()) for value in moved(runs.weights, alone).values()) > 1e-3
    worst = [
        largest_difference(final_weights(alone, kind), final_weights(together, kind))
        for kind in ("master", "exp_avg", "exp_avg_sq", "ema")
    ]
    print(f"{tensor} x {data} ranks, ZeRO {stage}: after 5 steps weights, moments, average within {max(worst):.1e}")
    assert max(worst) < 1e-5
    for key in ("loss", "grad_norm", "loss_fm_joint_others", "loss_fm_joint_hip_knee_ankle_shoulder"):
        assert logged(together, key) == pytest.approx(logged(alone, key), rel=1e-5), key
    held_out = [read_log(run, "eval")[0]["loss"] for run in (alone, together)]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-6)
    exports = [load_weights(run / "weights.safetensors")[0] for run in (alone, together)]
    assert largest_difference(*exports) < 1e-5


def test_recomputed_blocks_and_accumulation_change_nothing(runs: Alone, tmp_path: Path) -> None:
    changes = {**GRADIENTS, "hymotion__model__checkpoint_blocks": 1, "gradient_accumulation_steps": 2}
    alone, together = runs.alone("gradients", **GRADIENTS), runs.run("cut", tmp_path, 2, **changes)
    assert largest_difference(moved(runs.weights, alone), moved(runs.weights, together)) < 1e-6
    assert logged(together, "grad_norm") == pytest.approx(logged(alone, "grad_norm"), rel=1e-5)


def test_bf16_agrees_within_its_rounding(runs: Alone, tmp_path: Path) -> None:
    changes = {**WEIGHTS, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    alone = runs.run("alone", tmp_path, 1, **changes)
    together = runs.run("cut", tmp_path, 2, **changes)
    exact = runs.alone("weights", **WEIGHTS)
    assert logged(together) == pytest.approx(logged(alone), rel=1e-2)
    own = largest_difference(final_weights(alone), final_weights(exact))
    assert largest_difference(final_weights(alone), final_weights(together)) < 2 * own


def test_a_checkpoint_goes_on_at_another_cut(runs: Alone, tmp_path: Path) -> None:
    alone = runs.alone("weights", **WEIGHTS)
    changes = {**WEIGHTS, "zero_optimization": {"stage": 1}}
    for first, second in ((2, 1), (1, 2)):
        name = f"from{first}to{second}"
        runs.run(name, tmp_path, first, **{**changes, "hymotion__training__max_steps": 2})
        runs.run(name, tmp_path, second, resume=True, **changes)
        for kind in ("master", "exp_avg", "exp_avg_sq", "ema"):
            assert largest_difference(final_weights(alone, kind), final_weights(tmp_path / name, kind)) < 1e-5, kind
        assert logged(tmp_path / name) == pytest.approx(logged(alone), rel=1e-5)


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.full)])
def test_resumed_at_the_same_cut_a_run_goes_on_bit_for_bit(runs: Alone, tmp_path: Path, bf16: bool) -> None:
    changes = {**WEIGHTS, "zero_optimization": {"stage": 1}, "bf16": {"enabled": bf16}}
    whole = runs.run("whole", tmp_path, 2, **{**changes, "hymotion__training__max_steps": 6})
    runs.run("parts", tmp_path, 2, **{**changes, "hymotion__training__max_steps": 3})
    parts = runs.run("parts", tmp_path, 2, resume=True, **{**changes, "hymotion__training__max_steps": 6})
    assert logged(parts) == logged(whole)
    for kind in ("master", "exp_avg", "exp_avg_sq", "ema"):
        assert largest_difference(final_weights(whole, kind), final_weights(parts, kind)) == 0, kind

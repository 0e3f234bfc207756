"""A run moves from any layout to any other: what is loaded is what was saved, and it goes on as if never moved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.training.checkpoint import EMA, newest_checkpoint, read_kind
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.weights import load_weights
from tests.corpora import SMALL, random_weights
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")
BEFORE, AFTER = 4, 7


@dataclass(frozen=True)
class Place:
    """A layout: pipeline stages x tensor ranks x data ranks, and the ZeRO stage."""

    pipe: int = 1
    model: int = 1
    data: int = 1
    zero: int = 1

    def __str__(self) -> str:
        return f"pipe{self.pipe}-model{self.model}-data{self.data}-zero{self.zero}"

    @property
    def ranks(self) -> int:
        return self.pipe * self.model * self.data

    def settings(self, weights: Path, steps: int, **changes: Any) -> dict[str, Any]:
        """Eight clips a step on any layout."""
        return run_settings(
            weights,
            train_batch_size=8,
            gradient_accumulation_steps=2,
            gradient_clipping=1.0,
            zero_optimization={"stage": self.zero},
            hymotion__model__num_heads=4,
            hymotion__training__joint_groups=None,
            hymotion__training__max_steps=steps,
            hymotion__training__save_steps=BEFORE,
            hymotion__training__keep_last=9,
            hymotion__parallel={"pipeline": self.pipe, "model": self.model, "memory_steps": 0},
            hymotion__pipeline={"max_imbalance": 9},
            **changes,
        )


@pytest.fixture(scope="module")
def weights(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    return random_weights(folder / "weights.safetensors", corpus, {**SMALL, "num_heads": 4})


def go_on(settings: dict[str, Any], corpus: Path, output: Path) -> dict[str, float]:
    """Resume, compare every tensor of every kind with the checkpoint's, and train; the largest differences by kind."""
    config = RunConfig(settings, "test", ranks=dist.get_world_size())
    mesh = Mesh.current(model=config.shape.model, pipe=config.shape.pipe)
    run = TrainingRun(config, Corpus.open(corpus), output, mesh, output)
    assert run.step == BEFORE and run.average is not None
    checkpoint = newest_checkpoint(output)
    different = {}
    for kind in KINDS:
        pieces = run.average.pieces() if kind == EMA else run.engine.states.pieces(kind)
        loaded = {name: run.engine.states.gather(name, pieces).cpu().clone() for name in run.engine.states.names}
        saved = dict(read_kind(checkpoint, kind))
        assert loaded.keys() == saved.keys()
        different[kind] = largest_difference(loaded, saved) if mesh.is_first else 0.0
    run.train()
    return different


MOVES = [
    (Place(pipe=2), Place(zero=0)),
    (Place(model=2, data=2), Place(pipe=2)),
    *(
        pytest.param(*move, marks=pytest.mark.full)
        for move in [
            (Place(), Place(pipe=2, zero=0)),
            (Place(data=2, zero=2), Place(model=2, zero=0)),
            (Place(model=2, zero=0), Place(data=2, zero=2)),
            (Place(data=4, zero=2), Place(pipe=2, model=2)),
            (Place(pipe=2, model=2), Place(data=4, zero=2)),
            (Place(pipe=2, model=2), Place(zero=0)),
            (Place(pipe=2, data=2), Place(model=2, data=2)),
            (Place(pipe=3), Place(pipe=2, data=2, zero=0)),
            (Place(pipe=2, model=2, zero=0), Place(pipe=2, data=2)),
            (Place(model=4), Place(pipe=3)),
            (Place(pipe=4), Place(model=2, data=2, zero=0)),
            (Place(data=2), Place(model=4, zero=2)),
        ]
    ),
]


@pytest.mark.parametrize(("before", "after"), MOVES, ids=str)
def test_a_run_moves(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, before: Place, after: Place
) -> None:
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    ranks.run(after.ranks, train, after.settings(weights, AFTER), corpus.folder, whole)
    ranks.run(before.ranks, train, before.settings(weights, BEFORE), corpus.folder, moved)
    different = ranks.run(after.ranks, go_on, after.settings(weights, AFTER), corpus.folder, moved)
    assert all(value <= 1e-7 for rank in different for value in rank.values()), different
    assert logged(moved) == pytest.approx(logged(whole), rel=1e-5) and len(logged(moved)) == AFTER
    for kind in KINDS:
        assert largest_difference(final_weights(whole, kind), final_weights(moved, kind)) < 1e-5, kind
    exported, average = load_weights(moved / "weights.safetensors")[0], final_weights(moved, "ema")
    assert exported.keys() > average.keys()
    assert all(torch.equal(exported[name], average[name]) for name in average)


@pytest.mark.parametrize(
    ("first", "second"), [(True, False), pytest.param(False, True, marks=pytest.mark.full)], ids=str
)
def test_a_run_changes_its_precision(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, first: bool, second: bool
) -> None:
    """From bf16 to fp32 and back: masters and moments are fp32 either way, so nothing is lost in the move."""
    place = Place(data=2)
    ranks.run(2, train, place.settings(weights, BEFORE, bf16={"enabled": first}), corpus.folder, tmp_path)
    asked = place.settings(weights, AFTER, bf16={"enabled": second})
    for different in ranks.run(2, go_on, asked, corpus.folder, tmp_path):
        assert all(value == 0 for value in different.values()), different
    assert torch.isfinite(torch.tensor(logged(tmp_path))).all() and len(logged(tmp_path)) == AFTER

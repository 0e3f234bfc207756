"""Moments of 8 bit: refused without their package; with it, close to fp32 and kept by checkpoints."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ds_hymotion.arguments import TrainArguments
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.parallel import eight_bit
from ds_hymotion.training.start import start_training
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

ADAMW = {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-3, "weight_decay": 0.01}
EIGHT_BIT = {"type": "AdamW8bit", "params": ADAMW}


def test_without_the_package_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eight_bit, "find_spec", lambda name: None)
    settings = {"optimizer": {"type": "AdamW8bit"}}
    RunConfig(settings)  # as a plan takes it
    file = tmp_path / "run.json"
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match="'AdamW8bit' needs the package bitsandbytes; pip install bitsandbytes, or use"):
        start_training(TrainArguments(data_dir="corpus", deepspeed_config=str(file)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hymotion__gradient_sync__others_every": 2}, "others_every = 2; use AdamW"),
        ({"hymotion__training__joint_update_every": [1, 2]}, "joint_update_every; use AdamW"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer; use AdamW"),
    ],
)
def test_what_it_does_not_run_with(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        RunConfig(run_settings(optimizer=EIGHT_BIT, **changes))


@pytest.mark.full
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("stage", [1, 3])
def test_a_run(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, stage: int) -> None:
    """Close to fp32 moments; a resumed run is close to an unbroken one, and AdamW goes on from its checkpoint."""

    def settings(steps: int, kind: str = "AdamW8bit") -> dict[str, object]:
        return run_settings(
            weights,
            optimizer={"type": kind, "params": ADAMW},
            zero_optimization={"stage": stage},
            hymotion__training__max_steps=steps,
        )

    plain, whole, parts = (tmp_path / name for name in ("plain", "whole", "parts"))
    ranks.run(2, train, settings(6, "AdamW"), corpus.folder, plain)
    ranks.run(2, train, settings(6), corpus.folder, whole)
    ranks.run(2, train, settings(3), corpus.folder, parts)
    ranks.run(2, train, settings(6), corpus.folder, parts, True)
    assert logged(whole) == pytest.approx(logged(plain), rel=0.03)
    assert logged(parts)[:4] == logged(whole)[:4] and logged(parts) == pytest.approx(logged(whole), rel=1e-2)
    moments = [final_weights(run, "exp_avg") for run in (plain, whole)]
    scale = max(float(value.abs().max()) for value in moments[0].values())
    assert 0 < largest_difference(*moments) < 0.1 * scale
    assert all(bool(value.isfinite().all()) for value in final_weights(whole, "exp_avg_sq").values())
    ranks.run(2, train, settings(7, "AdamW"), corpus.folder, parts, True)
    assert len(logged(parts)) == 7 and torch.tensor(logged(parts)).isfinite().all()

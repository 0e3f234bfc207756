"""Head rows that update every n-th step, and groups that weigh more: on one process and cut over two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ds_hymotion.config.gradient_sync import GradientSyncSection
from ds_hymotion.config.training import TrainingSection
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.motion.groups import JointGroups
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.training.checkpoint import checkpoint_folders, read_kind
from ds_hymotion.training.joints import JointPlan
from ds_hymotion.training.slow_rows import check_slow_rows
from ds_hymotion.training.weights import load_weights
from tests.corpora import random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

GROUPS = "hip,knee:others"
HEAD = "motion_transformer.final_layer.linear."
KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34])


@pytest.fixture(scope="module")
def weights(corpus: Corpus) -> Path:
    return random_weights(corpus.folder.parent / "weights.safetensors", corpus)


def head_rows(run: Path, kind: str, rows: torch.Tensor) -> list[torch.Tensor]:
    """Weight and bias of some head rows after every step."""
    states = [dict(read_kind(folder, kind)) for folder in checkpoint_folders(run)]
    return [torch.cat([state[HEAD + "weight"][rows], state[HEAD + "bias"][rows, None]], dim=1) for state in states]


@pytest.mark.parametrize(
    ("tensor", "stage", "bf16"), [(1, 0, False), (2, 1, False), pytest.param(2, 1, True, marks=pytest.mark.full)]
)
def test_slow_rows_rest_between_their_updates(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, tensor: int, stage: int, bf16: bool
) -> None:
    settings = run_settings(
        weights,
        hymotion__parallel__model=tensor,
        hymotion__training__joint_groups=GROUPS,
        hymotion__training__joint_update_every=[1, 2],
        hymotion__training__max_steps=4,
        hymotion__training__save_steps=1,
        hymotion__training__keep_last=9,
        zero_optimization={"stage": stage},
        bf16={"enabled": bf16},
    )
    ranks.run(tensor, train, settings, corpus.folder, tmp_path)
    start = load_weights(weights)[0][HEAD + "weight"]
    start = start.bfloat16().float() if bf16 else start
    groups = JointGroups.parse(GROUPS, corpus.representation.joint_names).channels(corpus.representation)
    fast, slow = groups
    for kind in KINDS:
        first, second, third, fourth = head_rows(tmp_path, kind, slow)
        assert torch.equal(second, third), kind
        assert (first - second).abs().amax(1).min() > 0 and (third - fourth).abs().amax(1).min() > 0, kind
        if kind.startswith("exp"):
            assert not first.any(), kind
        else:
            assert torch.equal(first[:, :-1], start[slow]), kind
        steps = head_rows(tmp_path, kind, fast)
        assert all((a - b).abs().amax(1).min() > 0 for a, b in zip(steps, steps[1:])), kind


def test_weights_and_intervals_do_not_depend_on_the_cut(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    for tensor in (1, 2):
        settings = run_settings(
            weights,
            hymotion__parallel__model=tensor,
            hymotion__training__joint_groups=GROUPS,
            hymotion__training__joint_loss_weights=[3.0, 0.5],
            hymotion__training__joint_update_every=[1, 3],
            hymotion__training__max_steps=4,
            gradient_clipping=0.05,
        )
        ranks.run(tensor, train, settings, corpus.folder, tmp_path / str(tensor))
    for kind in KINDS:
        states = [final_weights(tmp_path / str(tensor), kind) for tensor in (1, 2)]
        assert largest_difference(*states) < 1e-5, kind
    for key in ("loss", "grad_norm", "loss_fm_joint_hip_knee"):
        assert logged(tmp_path / "2", key) == pytest.approx(logged(tmp_path / "1", key), rel=1e-5), key
    loss, hips, others = (logged(tmp_path / "2", k) for k in ("loss", "loss_fm_joint_hip_knee", "loss_fm_joint_others"))
    for whole, hip, other in zip(loss, hips, others):
        assert whole == pytest.approx((3 * 39 * hip + 0.5 * 180 * other) / (3 * 39 + 0.5 * 180), rel=1e-6)


def test_slow_rows_of_a_head_that_waits_are_refused() -> None:
    names = [HEAD + "weight", HEAD + "bias", "motion_transformer.input_encoder.weight"]
    plans = [
        JointPlan(TrainingSection(joint_groups=GROUPS, joint_update_every=every), representation("smpl24-rotmat"), 1)
        for every in ([1, 1], [1, 2])
    ]
    waiting, often = (
        sync_groups(GradientSyncSection(always=[group], others_every=2), names)
        for group in ("motion_input", "motion_head")
    )
    check_slow_rows(plans[0], waiting, 2)
    check_slow_rows(plans[1], often, 2)
    check_slow_rows(plans[1], waiting, 1)
    with pytest.raises(UserError, match="put motion_head into hymotion.gradient_sync.always"):
        check_slow_rows(plans[1], waiting, 2)

"""A corpus against a checkpoint's mean and std: what fits, what is odd, and what must not be trained with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ds_hymotion.data.check_against import COMPATIBLE, REFUSED, SUSPICIOUS, Reference, compare
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import HyMotion201
from ds_hymotion.motion.skeleton import smplh22
from ds_hymotion.motion.statistics import RunningStatistics
from tests.commands import run_here
from tests.motion_files import report, run, swinging, write_motion

J0 = smplh22().offsets[0].double()


def statistics(relative_to: str, seeds: range = range(6)) -> tuple[Tensor, Tensor]:
    """Mean and std [201] over a few swinging bodies."""
    layout, sums = HyMotion201(relative_to), RunningStatistics(201)
    for seed in seeds:
        motion = swinging(90, 30, seed)
        sums.update(layout.encode(Motion(motion.rotations, motion.translation + torch.tensor([0, 1.1, 0]), 30)))
    return sums.mean, sums.std


def reference(relative_to: str = "pelvis", **changes: Any) -> Reference:
    mean, std = statistics(relative_to)
    return Reference.of({"mean": mean.float(), "std": std.float(), **changes}, "latest.ckpt")


def save_checkpoint(path: Path, mean: Tensor, std: Tensor) -> Path:
    state = {"mean": mean.float(), "std": std.float()}
    torch.save({"model_state_dict": state, "epoch": 0, "global_step": 0}, path)
    return path


def test_a_corpus_like_the_checkpoints_is_compatible() -> None:
    mean, std = statistics("pelvis", range(1, 6))
    found = compare(mean, std, HyMotion201(), reference())
    assert (found.verdict, found.reasons) == (COMPATIBLE, ())
    assert len(found.channels) == 201 and max(abs(channel.z) for channel in found.channels) < 1


def test_z_and_ratio_by_hand() -> None:
    mean, std = statistics("pelvis")
    moved, spread = mean.clone(), std.clone()
    moved[4] += 7 * float(std[4].float())
    spread[20] *= 8
    found = compare(moved, spread, HyMotion201(), reference())
    assert found.verdict == SUSPICIOUS
    assert found.channels[4].z == pytest.approx(7, rel=1e-5) and found.channels[4].ratio == pytest.approx(1, rel=1e-5)
    assert found.channels[20].ratio == pytest.approx(8, rel=1e-5)
    lines = found.table("latest.ckpt").splitlines()
    assert lines[0] == "against latest.ckpt: suspicious"
    names = [line.split()[0] for line in lines[-10:]]
    assert names[:2] == ["pelvis.rotation[0,1]", "right_hip.rotation[2,1]"] and len(set(names)) == 10
    assert names[0] == HyMotion201().channel_names()[4] and names[1] == HyMotion201().channel_names()[20]
    assert "2 of 201 channels have |z| above 3" in found.reasons[0]


@pytest.mark.parametrize("relative_to", ["pelvis", "rest_root"])
def test_the_mean_of_joint_0_tells_what_positions_count_from(relative_to: str) -> None:
    found = reference(relative_to)
    assert found.positions_relative_to == relative_to
    assert torch.allclose(found.mean[135:138], torch.zeros(3).double() if relative_to == "pelvis" else J0, atol=1e-6)


def test_a_mean_of_joint_0_that_is_elsewhere_tells_nothing() -> None:
    mean, std = statistics("pelvis")
    mean[135:138] = torch.tensor([0.0, 0.9, 0.0])
    found = compare(*statistics("pelvis"), HyMotion201(), Reference("x", mean, std))
    assert found.positions.startswith("relative to neither the pelvis nor J0: mean[135:138] is 0.0000, 0.9000")
    assert found.verdict == SUSPICIOUS


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (100.0, "the corpus is in centimetres, the checkpoint in metres; divide `trans` by 100"),
        (1000.0, "the corpus is in millimetres"),
        (0.01, "the checkpoint is in centimetres, the corpus in metres"),
        (30.0, "not in the same unit"),
    ],
)
def test_another_unit_is_refused(scale: float, words: str) -> None:
    mean, std = statistics("pelvis")
    mean[:3] *= scale
    std[:3] *= scale
    found = compare(mean, std, HyMotion201(), reference())
    assert found.verdict == REFUSED
    assert found.reasons[0].startswith(f"translations are {scale:.3g} times as long") and words in found.reasons[0]


def test_positions_in_another_unit_are_refused() -> None:
    mean, std = statistics("pelvis")
    mean[135:] *= 100
    std[135:] *= 100
    found = compare(mean, std, HyMotion201(), reference())
    assert found.verdict == REFUSED and found.reasons[0].startswith("joint positions are 100 times as long")


def test_a_body_on_another_ground_is_worth_a_look() -> None:
    mean, std = statistics("pelvis")
    mean[1] += 8
    found = compare(mean, std, HyMotion201(), reference())
    assert found.verdict == SUSPICIOUS and "is the ground at y = 0" in found.reasons[0]


def test_rows_in_place_of_columns_are_refused() -> None:
    """Means of two rows of the matrices, as pytorch3d's 6D has them, made from motions, not from the columns."""
    mean, std = statistics("pelvis")
    rotations = torch.cat([swinging(90, 30, seed).rotations[:, :22] for seed in range(6)]).double()
    rows = rotations[..., :2, :].flatten(1).mean(dim=0)
    found = compare(mean, std, HyMotion201(), Reference("x", torch.cat([mean[:3], rows, mean[135:]]), std))
    assert found.verdict == REFUSED and "columns of matrices here, and the first two rows there" in found.reasons[0]


def test_features_of_another_kind_are_refused() -> None:
    mean, std = statistics("pelvis")
    mean[3:60] += 6 * std[3:60]
    found = compare(mean, std, HyMotion201(), reference())
    assert found.verdict == REFUSED
    assert found.reasons[0].startswith("57 of 201 channels have a mean more than 5 standard deviations away")


def test_channels_that_the_checkpoint_holds_constant_are_named() -> None:
    mean, std = statistics("pelvis")
    constant = std.clone()
    constant[60:63] = 1e-5
    found = compare(mean, std, HyMotion201(), Reference("x", mean, constant))
    assert any("3 channels are constant in the checkpoint and move in the corpus" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, r"mean is absent, not \[201\]"),
        ({"mean": torch.zeros(219), "std": torch.ones(219)}, r"mean is \(219,\), not \[201\]"),
        ({"mean": torch.zeros(201), "std": torch.ones(201, 1)}, r"std is \(201, 1\), not \[201\]"),
        ({"mean": torch.full((201,), torch.nan), "std": torch.arange(201.0)}, "mean is not finite"),
        ({"mean": torch.zeros(201), "std": torch.ones(201)}, "std was never set"),
        ({"mean": torch.zeros(201), "std": -torch.arange(201.0)}, "std was never set"),
    ],
)
def test_checkpoints_without_usable_statistics(state: dict[str, Tensor], words: str) -> None:
    with pytest.raises(UserError, match=f"latest.ckpt: {words}"):
        Reference.of(state, "latest.ckpt")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for seed in range(4):
        write_motion(folder, f"walk{seed}", "a walk", frames=90, fps=30.0, seed=seed)
    return folder


def test_a_corpus_is_told_which_flag_to_use(data: Path, tmp_path: Path) -> None:
    flags = ["--representation", "hymotion-201", "--split", "1", "0", "0"]
    run(data, tmp_path / "pelvis", *flags)
    run(data, tmp_path / "root", *flags, "--positions_relative_to", "rest_root")
    of_pelvis, of_root = (
        Reference(name, corpus.mean.double(), corpus.std.double())
        for name in ("pelvis", "root")
        for corpus in [Corpus.open(tmp_path / name)]
    )
    said = run(data, tmp_path / "pelvis", *flags, reference=of_pelvis)
    assert "already prepared" in said[0] and said[1].startswith("against pelvis: compatible")
    for wrong, flag in ((of_root, "rest_root"), (of_pelvis, "pelvis")):
        other = "pelvis" if flag == "rest_root" else "rest_root"
        with pytest.raises(UserError, match=f"corpus has them relative to {other}: .*--positions_relative_to {flag}"):
            run(data, tmp_path / "c", *flags, "--positions_relative_to", other, reference=wrong)
    assert not (tmp_path / "c").exists()  # refused before any work
    with pytest.raises(UserError, match="the corpus the 219 of smpl24-rotmat: prepare it with --representation hym"):
        run(data, tmp_path / "c", reference=of_pelvis)


def test_centimetres_are_refused_with_exit_code_2(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Preparing with the flag, and checking the finished corpus alone, say the same."""
    flags = ["--representation", "hymotion-201", "--split", "1", "0", "0"]
    run(data, tmp_path / "metres", *flags)
    metres = Corpus.open(tmp_path / "metres")
    checkpoint = save_checkpoint(tmp_path / "latest.ckpt", metres.mean, metres.std)
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for seed in range(4):
        motion = swinging(90, 30, seed)
        write_amass(wrong / f"walk{seed}.npz", Motion(motion.rotations, motion.translation * 100, 30))
        (wrong / f"walk{seed}.txt").write_text("a walk")
    given = ["--data_dir", str(wrong), "--out", str(tmp_path / "c"), "--workers", "1", *flags]
    against = ["--check_against", str(checkpoint)]
    assert run_here("prepare.py", [*given, *against], monkeypatch) == 2
    first = capsys.readouterr()
    assert "the corpus is in centimetres, the checkpoint in metres" in first.err and "Traceback" not in first.err
    assert "against" in first.out and "translation.y" in first.out
    assert run_here("prepare.py", ["--out", str(tmp_path / "c"), *against], monkeypatch) == 2
    assert "does not fit" in capsys.readouterr().err
    assert run_here("prepare.py", ["--out", str(tmp_path / "metres"), *against], monkeypatch) == 0
    assert "positions of the checkpoint are relative to the pelvis: mean[135:138] is" in capsys.readouterr().out
    assert report(tmp_path / "c")["counts"]["samples"] == 4  # it is finished all the same
    assert run_here("prepare.py", ["--out", str(tmp_path / "c"), "--check_against", "gone.ckpt"], monkeypatch) == 2
    assert "gone.ckpt: no such file" in capsys.readouterr().err

"""Joint statistics: the table, the suggested groups, the picture, the script."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ds_hymotion.motion.groups import JointGroups
from ds_hymotion.motion.representation import representation
from ds_hymotion.reports.joint_variance import part_variances, suggested_groups, variance_table
from tests.commands import run_here
from tests.corpora import wavy_corpus

BODY = representation("smpl24-rotmat")


def variances(**parts: float) -> torch.Tensor:
    return torch.tensor([parts.get(name, parts.get(name.partition("_")[2], 0.01)) for name in BODY.joint_names])


def test_parts_are_means_of_their_joints_in_falling_order() -> None:
    found = part_variances(BODY.joint_names, variances(hip=0.42, left_knee=0.3, right_knee=0.4, spine3=0.31))
    assert list(found)[:3] == ["hip", "knee", "spine"]
    assert found["knee"] == pytest.approx(0.35) and found["spine"] == pytest.approx((0.01 + 0.01 + 0.31) / 3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_suggested_groups_are_legal_and_balanced(ranks: int) -> None:
    variance = variances(hip=0.42, knee=0.38, ankle=0.31, shoulder=0.29, elbow=0.18, wrist=0.12)
    groups = suggested_groups(BODY, variance, ranks)
    sizes = [len(part) for part in groups.channels(BODY)]
    assert sum(sizes) == 219 and max(sizes) - min(sizes) <= 9 + 3
    text = groups.text(BODY.joint_names)
    assert JointGroups.parse(text, BODY.joint_names).joints == groups.joints
    table = variance_table(BODY, variance, ranks)
    assert table.splitlines()[1].split() == ["hip", "0.420", "left_hip", "0.420,", "right_hip", "0.420"]
    assert table.endswith(f"--joint_groups {text}")
    if ranks == 3:
        assert text.startswith("hip,knee,ankle,") and sizes == [75, 72, 72]


def test_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = wavy_corpus(tmp_path, [20, 30])
    assert run_here("joint_stats.py", ["--data_dir", str(corpus.folder), "--ranks", "2"], monkeypatch) == 0
    output = capsys.readouterr().out
    assert "2 tensor rank(s), 111 + 108 of 219 channels" in output
    values = [float(line.split()[1]) for line in output.splitlines()[1:14]]
    assert values == sorted(values, reverse=True) and values[0] > 0.01
    assert (corpus.folder / "joint_variance.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    for given, word in (
        (["--ranks", "2"], "--data_dir is missing"),
        (["--data_dir", str(corpus.folder), "--ranks", "25"], "use 1..24"),
        (["--data_dir", str(tmp_path / "none")], "launch/prepare.py"),
        (["--data_dir", str(corpus.folder), "--out", "/proc/none/a.png"], "cannot be written"),
    ):
        assert run_here("joint_stats.py", given, monkeypatch) == 2
        assert word in capsys.readouterr().err

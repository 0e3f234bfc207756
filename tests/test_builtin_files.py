"""A built-in set on disk is read back whole; the command that writes it names wrong flags."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ds_hymotion.data.builtin import ACTIONS, generate_clip, generate_set, write_set
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.formats.amass import read_amass
from ds_hymotion.formats.humanml3d import read_index, read_texts, source_window
from ds_hymotion.motion.transforms import resample
from launch import builtin_motions


def test_the_set_is_read_back_exactly(tmp_path: Path):
    clips = generate_set(clips_per_type=1, seed=1, frames=(60, 80))
    write_set(tmp_path / "set", clips)
    rows = {row.name: row for row in read_index(tmp_path / "set" / "index.csv")}
    actions = json.loads((tmp_path / "set" / "actions.json").read_text())
    assert list(rows) == [clip.id for clip in clips]
    assert actions == {clip.id: clip.action for clip in clips}
    for clip in clips:
        row = rows[clip.id]
        recording = read_amass(tmp_path / "set" / "amass" / f"{row.recording}.npz")
        first, last = source_window(row, recording.rate, recording.motion.frames)
        back = resample(recording.motion.crop(first, last), 30.0)
        assert back.frames == clip.motion.frames
        assert float((back.joints() - clip.motion.joints()).abs().max()) < 1e-4
        seconds_at_20_fps = len(range(0, recording.motion.frames, int(recording.rate / 20))) / 20
        assert abs(seconds_at_20_fps - clip.motion.frames / 30) < 0.06
        texts = read_texts(tmp_path / "set" / "texts" / f"{clip.id}.txt")
        assert tuple(caption.text for caption in texts) == clip.captions
        assert all(caption.whole for caption in texts) and texts.problems == []


def test_a_used_folder_and_shared_ids_are_refused(tmp_path: Path):
    clips = [generate_clip("POSTURE", 0, 60, "stand")]
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="folder"):
            write_set(folder, clips)
    with pytest.raises(UserError, match="stand_0"):
        write_set(tmp_path / "new", clips * 2)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["builtin_motions.py", *arguments])
    command_line(builtin_motions.main)


def test_command_writes_a_set_and_its_table(tmp_path: Path, monkeypatch, capsys):
    run(monkeypatch, "--out", str(tmp_path / "set"), "--clips", "7", "--frames", "60", "64", "--seed", "5")
    table = capsys.readouterr().out
    assert len(list((tmp_path / "set" / "amass").glob("*/*_poses.npz"))) == 7
    assert all(action in table for action in ACTIONS) and "walk" in table and "all" in table


@pytest.mark.parametrize(
    "arguments, word",
    [
        ([], "--out"),
        (["--out", "x", "--clips", "2", "--clips_per_type", "1"], "exclude"),
        (["--out", "x", "--frames", "20", "30"], "60"),
        (["--out", "x", "--frame", "60", "70"], "--frames"),
        (["--out", "x", "--frames", "60"], "two numbers"),
        (["--out", "x", "--clips_per_type", "0"], "clips_per_type 0"),
        (["--out", "/proc/nothing", "--clips", "1"], "/proc/nothing"),
    ],
)
def test_command_names_wrong_flags(arguments, word, monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_:
        run(monkeypatch, *arguments)
    assert exit_.value.code == 2 and word in capsys.readouterr().err

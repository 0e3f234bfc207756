"""BABEL's action labels: read, joined by path, and kept as hints of the samples they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.hints import hints_of
from ds_hymotion.formats.babel import ActionLabel, LabelledRecording, read_babel
from ds_hymotion.formats.files import FormatError
from tests.motion_files import report, run, write_motion


def label(*categories: str, start: Any = None, end: Any = None, **more: Any) -> dict[str, Any]:
    times = {} if start is None else {"start_t": start, "end_t": end}
    return {"raw_label": "raw", "proc_label": "proc", "seg_id": "s", "act_cat": list(categories), **times, **more}


def entry(path: str, whole: list[Any] | None = None, frames: list[Any] | None = None) -> dict[str, Any]:
    return {
        "babel_sid": 7,
        "url": "",
        "feat_p": path,
        "dur": 4.0,
        "seq_ann": None if whole is None else {"anntr_id": "x", "mul_act": True, "labels": whole},
        "frame_ann": None if frames is None else {"labels": frames},
    }


def written(path: Path, entries: Any) -> Path:
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def test_labels_as_distributed(tmp_path: Path) -> None:
    entries = {
        "7": entry("KIT/KIT/4/Walk01_poses.npz", [label("walk", "forward movement", "walk")],
                   [label("turn", start=0.5, end=1.25)]),
        "8": {"feat_p": "CMU/CMU/80/80_63_poses.npz", "frame_ann": None,
              "seq_anns": [{"labels": [label(act_cat=None)]}, {"labels": [label(proc_label=None)]}],
              "frame_anns": [{"labels": [label("jump", start=0, end=2)]}]},
    }  # fmt: skip
    found = read_babel(written(tmp_path / "b.json", entries))
    assert found.problems == []
    assert found[0] == LabelledRecording(
        "KIT/KIT/4/Walk01_poses",
        (ActionLabel(("walk", "forward movement")), ActionLabel(("turn",), 0.5, 1.25)),
    )
    assert [part.words for part in found[1].labels] == [("proc",), ("raw",), ("jump",)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("walk", "no object but str"),
        ({"seq_ann": None}, "feat_p None is not a path"),
        (entry("a", whole=[label("")]) | {"seq_ann": ["walk"]}, "no object but list"),
        (entry("a", whole=[label("", proc_label="", raw_label=" ")]), "neither act_cat nor proc_label nor raw_label"),
        (entry("a", whole=[label(act_cat="walk")]), "act_cat 'walk' is not a list of categories"),
        (entry("a", whole=[label(act_cat=[3])]), "act_cat 3 is not a text"),
        (entry("a", frames=[label("walk")]), "no start_t and end_t"),
        (entry("a", frames=[label("walk", start=2, end=1)]), "start_t 2.0 to end_t 1.0 s is no span"),
        (entry("a", frames=[label("walk", start=float("nan"), end=1)]), "start_t nan is not a number of seconds"),
    ],
)
def test_what_cannot_be_used_costs_itself_alone(tmp_path: Path, value: Any, words: str) -> None:
    path = written(tmp_path / "b.json", {"1": value, "2": entry("b", [label("walk")])})
    found = read_babel(path)
    assert found[-1] == LabelledRecording("b", (ActionLabel(("walk",)),))
    assert len(found.problems) == 1 and found.problems[0].startswith(f"{path} entry '1'") and words in found.problems[0]


def test_hints_are_of_the_labels_that_share_half() -> None:
    labels = (
        ActionLabel(("sequence",)),
        ActionLabel(("sit",), 4.0, 9.0),
        ActionLabel(("walk", "step"), 0.0, 2.0),
        ActionLabel(("turn left",), 1.9, 4.0),
    )
    assert hints_of(labels, 0.0, 9.0, False) == ("walk", "step", "turn left", "sit")
    assert hints_of(labels, 0.0, 1.0, False) == ("walk", "step")
    assert hints_of(labels, 0.0, 2.0, False) == ("walk", "step")
    assert hints_of(labels, 1.0, 3.0, True) == ("walk", "step", "turn right")
    assert hints_of(labels, 20.0, 21.0, False) == ("sequence",)
    assert hints_of(labels[:1], 0.0, 1.0, False) == ("sequence",)
    assert hints_of((), 0.0, 1.0, False) == ()


def test_hints_are_stored_with_samples(tmp_path: Path) -> None:
    data = tmp_path / "data" / "KIT" / "KIT" / "4"
    data.mkdir(parents=True)
    for number, name in enumerate(("walk_poses", "run_poses", "wave_poses")):
        write_motion(data, name, "starts#a/X#0.0#1.0\nends#a/X#1.0#2.0\n", frames=120, seed=number)
    times = [label("walk", start=0.0, end=1.0), label("turn left", "turn", start=1.0, end=2.0)]
    one = written(
        tmp_path / "train.json",
        {
            "1": entry("KIT/4/walk_poses.npz", [label("move")], times),
            "2": entry("KIT/KIT/4/run_stageii.npz", [label("run")]),
            "3": entry("KIT/KIT/4/nobody_poses.npz", [label("run")]),
            "4": entry("KIT/KIT/4/wave_poses.npz", [label("")]),
        },
    )
    two = written(tmp_path / "val.json", {"5": entry("KIT/KIT/4/run_poses.npz", [label("run"), label("jog")])})
    said = run(tmp_path / "data", tmp_path / "c", "--babel", str(one), str(two), "--mirror")
    corpus = Corpus.open(tmp_path / "c")
    hints = {sample.id.partition("4__")[2] + "M" * sample.mirrored: sample.hints for sample in corpus.samples}
    assert hints == {
        "walk_poses_0.0-1.0": ("walk",),
        "walk_poses_0.0-1.0M": ("walk",),
        "walk_poses_1.0-2.0": ("turn left", "turn"),
        "walk_poses_1.0-2.0M": ("turn right", "turn"),
        **{f"run_poses_{times}{m}": ("run", "jog") for times in ("0.0-1.0", "1.0-2.0") for m in ("", "M")},
        **{f"wave_poses_{times}{m}": ("proc",) for times in ("0.0-1.0", "1.0-2.0") for m in ("", "M")},
    }
    assert corpus.header["counts"]["hinted"] == 12
    given = report(tmp_path / "c")["given"]
    assert (given["labelled"], given["labelled_not_found"]) == (5, 1)
    assert "hints     12 samples have action labels" in said[0]
    assert "5 recordings with action labels; 1 of those not found" in said[0]


def test_an_unreadable_file_of_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_motion(tmp_path / "data", "walk", "a walk")
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(FormatError, match="b.json: not a JSON object of entries"):
        run(tmp_path / "data", tmp_path / "c", "--babel", str(tmp_path / "b.json"))

"""Lists that users give: HumanML3D's index with hostile rows, exclusions, splits and rates by folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from tests.damaged_files import save, smplh
from tests.motion_files import report, run, write_motion

ROWS = [
    # id, row, None where it is kept, else reason and a part of the detail
    ("000001", "./pose_data/KIT/3/walk_poses.npy,0,30,000001.npy", None),
    ("000002", "./pose_data/KIT/3/walk_poses.npy,10,-1,000002.npy", None),
    ("000003", "./pose_data/KIT/3/with two spaces_poses.npy,0,30,000003.npy", None),
    ("000004", "./pose_data/Eyes_Japan_Dataset/a/pose_poses.npy,0,20,000004.npy", None),
    ("000001", "./pose_data/KIT/3/walk_poses.npy,5,25,000001.npy", ("another clip has this name", "an earlier line")),
    ("000010", "./pose_data/KIT/3/walk_poses.npy,0,1,000010.npy", ("window outside the recording", "at least 2")),
    ("000011", "./pose_data/KIT/3/walk_poses.npy,9,9,000011.npy", ("window outside the recording", "has 0 frames")),
    ("000012", "./pose_data/KIT/3/walk_poses.npy,0,41,000012.npy", ("window outside the recording", "ends past")),
    ("000013", "./pose_data/KIT/3/walk_poses.npy,500,-1,000013.npy", ("window outside the recording", "at least 2")),
    ("000014", "./pose_data/KIT/3/gone_poses.npy,0,30,000014.npy", ("recording not found", "")),
    ("000015", "./pose_data/humanact12/humanact12/P1.npy,0,-1,000015.npy", ("recording not found", "HumanAct12")),
    ("000016", "./pose_data/KIT/3/slow_poses.npy,0,10,000016.npy", ("window outside the recording", "15 fps")),
    ("000017", "./pose_data/KIT/3/nan_poses.npy,0,10,000017.npy", ("NaN or Inf in poses", "")),
    ("000018", "./pose_data/KIT/3/walk_poses.npy,0,30,000018.npy", ("no caption", "")),
    ("M000001", "./pose_data/KIT/3/walk_poses.npy,0,30,M000001.npy", ("mirrored copy", "of 000001")),
    ("M000099", "./pose_data/KIT/3/walk_poses.npy,0,30,M000099.npy", ("no caption", "only the mirrored copy")),
]
BAD_ROWS = [
    ("./pose_data/KIT/3/walk_poses.npy,zero,30,000020.npy", "start_frame 'zero'"),
    ("./pose_data/KIT/3/walk_poses.npy,-3,30,000021.npy", "start_frame -3 is negative"),
    ("./pose_data/KIT/3/walk_poses.npy,0,-2,000022.npy", "end_frame -2 is negative"),
    ("./pose_data/KIT/3/walk_poses.npy,0,1e3,000023.npy", "end_frame '1e3'"),
    ("./pose_data/KIT/3/walk_poses.npy,0", "new_name ''"),
    ("../../etc/passwd,0,10,000024.npy", "is not a path below"),
    ("./pose_data/KIT/3/walk_poses.npy,0,10,../../x.npy", "is not a file name"),
    (",0,10,000025.npy", "is not a path"),
]


@pytest.fixture
def humanml(tmp_path: Path) -> Path:
    """Two seconds each of several recordings, and the table of ROWS and BAD_ROWS with CRLF line ends."""
    folder = tmp_path / "humanml"
    for place in ("amass/KIT/3", "amass/Eyes_Japan_Dataset/a", "texts"):
        (folder / place).mkdir(parents=True)
    for name in ("walk", "with two spaces"):
        np.savez(folder / "amass" / "KIT" / "3" / f"{name}_poses.npz", **smplh(120))
    np.savez(folder / "amass" / "KIT" / "3" / "slow_poses.npz", **smplh(30, rate=15.0))
    np.savez(folder / "amass" / "Eyes_Japan_Dataset" / "a" / "pose_poses.npz", **smplh(300))
    save(folder / "amass" / "KIT" / "3" / "nan_poses.npz", poses=np.full((60, 156), np.nan))
    save(folder / "amass" / "KIT" / "3" / "unused_poses.npz")
    lines = [row for _, row, _ in ROWS] + [row for row, _ in BAD_ROWS]
    (folder / "index.csv").write_text("\r\n".join(["source_path,start_frame,end_frame,new_name", *lines, ""]))
    for name, _, problem in ROWS:
        if problem is None or problem[0] != "no caption":
            (folder / "texts" / f"{name}.txt").write_text("a walk#walk/NOUN#0.0#0.0\r\nand on#on/ADP#nan#nan")
    return folder


def test_every_row_of_an_index_is_kept_or_named(humanml: Path, tmp_path: Path) -> None:
    run(humanml / "amass", tmp_path / "c", "--index", str(humanml / "index.csv"))
    corpus, found = Corpus.open(tmp_path / "c"), report(tmp_path / "c")
    assert {sample.id for sample in corpus.samples} == {name for name, _, problem in ROWS if problem is None}
    told = [(drop["id"], drop["reason"], drop["detail"]) for drop in found["dropped"]]
    for name, _, problem in ROWS:
        if problem is not None:
            assert any(name == id and problem[0] == reason and problem[1] in text for id, reason, text in told), name
    assert len(told) + len(corpus.samples) == found["given"]["clips"] == len(ROWS)
    assert all(words in line for line, (_, words) in zip(found["bad_lines"], BAD_ROWS, strict=True))
    captions = sum(len(sample.captions) for sample in corpus.samples)
    assert captions == 8 and found["given"]["captions"] == captions + sum(d["captions"] for d in found["dropped"])
    assert found["given"]["files"] == 6 and found["given"]["files_not_named"] == 1
    spans = {sample.id: sample.span for sample in corpus.samples}
    assert spans["000004"][0] == 3.0  # Eyes_Japan_Dataset loses 60 frames at 20 fps
    assert spans["000002"] == (0.5, 2.0)


def test_files_in_reports_have_their_endings(humanml: Path, tmp_path: Path) -> None:
    run(humanml / "amass", tmp_path / "c", "--index", str(humanml / "index.csv"))
    files = {drop["id"]: drop["file"] for drop in report(tmp_path / "c")["dropped"]}
    assert files["000017"] == "KIT/3/nan_poses.npz" and files["000014"] == "./pose_data/KIT/3/gone_poses.npy"


def test_excluded_clips_and_recordings(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "KIT" / "3").mkdir(parents=True)
    for number, name in enumerate(("walk_poses", "run#1_poses", "jump_poses", "hop_poses", "skip_poses")):
        write_motion(data / "KIT" / "3", name, "one\ntwo#a/X#0.1#0.5", seed=number)
    exclude = tmp_path / "exclude.txt"
    lines = [
        "KIT__3__walk_poses",  # a clip
        "KIT/3/run#1_poses.npz",  # a file
        "",
        "jump_poses",  # a recording's name
        "KIT__3__hop_poses_0.1-0.5",  # one sample of a clip
        "MKIT__3__skip_poses",  # a mirrored copy
        "./pose_data/KIT/4/nobody_poses.npy",
        "nothing at all",
    ]
    exclude.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    said = run(data, tmp_path / "c", "--exclude", str(exclude), "--mirror", "--strict")
    assert sorted(sample.id.replace("KIT__3__", "") for sample in Corpus.open(tmp_path / "c").samples) == [
        "Mhop_poses", "Mhop_poses_0.1-0.5", "Mskip_poses_0.1-0.5", "hop_poses", "skip_poses", "skip_poses_0.1-0.5",
    ]  # fmt: skip
    found = report(tmp_path / "c")
    assert found["dropped_by_reason"] == {"excluded": 5}
    assert found["unmatched_exclusions"] == lines[-2:]
    assert "2 lines of the exclusion list that name nothing, such as ./pose_data/KIT/4/nobody_poses.npy" in said[0]
    exclude.write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="exclude.txt: not UTF-8"):
        run(data, tmp_path / "d", "--exclude", str(exclude))
    with pytest.raises(UserError, match="gone.txt: no such file"):
        run(data, tmp_path / "d", "--exclude", "gone.txt")


def test_lists_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_motion(tmp_path / "data", "walk", "a walk")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.txt").write_bytes(b"\xff\xfe1\0")
    with pytest.raises(UserError, match="train.txt: not UTF-8"):
        run(tmp_path / "data", tmp_path / "c", "--split_lists", str(tmp_path / "lists"))
    (tmp_path / "lists" / "train.txt").write_text("walk")
    (tmp_path / "lists" / "val.txt").mkdir()
    with pytest.raises(UserError, match="val.txt: unreadable .a folder"):
        run(tmp_path / "data", tmp_path / "c", "--split_lists", str(tmp_path / "lists"))
    (tmp_path / "actions.json").write_text(json.dumps({"walk": 3}))
    with pytest.raises(UserError, match="actions.json is not a JSON object of names"):
        run(tmp_path / "data", tmp_path / "c", "--actions_file", str(tmp_path / "actions.json"))


def test_a_rate_for_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "data" / "KIT").mkdir(parents=True)
    write_motion(tmp_path / "data" / "KIT", "walk", "a walk")
    with pytest.raises(UserError, match="--rates CMU=120 names no folder below"):
        run(tmp_path / "data", tmp_path / "c", "--rates", "CMU=120")
    run(tmp_path / "data", tmp_path / "c", "--rates", "KIT=120")


def test_mirrored_files_beside_their_originals(tmp_path: Path) -> None:
    """Published copies are kept as they are, or with --mirror made anew with the published captions."""
    data = tmp_path / "data"
    data.mkdir()
    for name, text in (("000001", "lifts the left arm"), ("M000001", "right arm up"), ("March", "a march")):
        write_motion(data, name, text)
    (data / "M000002.txt").write_text("as published, right")
    write_motion(data, "000002", "as given, left")
    run(data, tmp_path / "c")
    assert [sample.id for sample in Corpus.open(tmp_path / "c").samples] == ["000001", "000002", "M000001", "March"]
    run(data, tmp_path / "m", "--mirror")
    assert {sample.id: sample.captions[0].text for sample in Corpus.open(tmp_path / "m").samples} == {
        "000001": "lifts the left arm",
        "M000001": "right arm up",
        "000002": "as given, left",
        "M000002": "as published, right",
        "March": "a march",
        "MMarch": "a march",
    }
    (drop,) = report(tmp_path / "m")["dropped"]
    assert (drop["file"], drop["reason"], drop["detail"]) == (
        "M000001.npz", "mirrored copy", "of 000001, which --mirror makes itself"
    )  # fmt: skip

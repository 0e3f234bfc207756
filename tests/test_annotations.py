"""Captions with seconds: the JSON of KIT-ML and TMR, joined with recordings by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.formats.amass import read_amass
from ds_hymotion.formats.annotations import Annotation, is_mirrored_id, read_annotations
from ds_hymotion.formats.files import FormatError
from ds_hymotion.formats.humanml3d import Caption
from ds_hymotion.motion.transforms import canonical, face_forward, resample
from tests.motion_files import report, run, write_motion


def entry(path: str = "KIT/3/walk_poses", duration: float | None = 2.0, *segments: dict[str, Any]) -> dict[str, Any]:
    given = segments or ({"seg_id": "0", "text": "a person walks", "start": 0.0, "end": duration},)
    return {"path": path, "duration": duration, "annotations": list(given)}


def segment(text: Any, start: Any, end: Any) -> dict[str, Any]:
    return {"seg_id": f"s{start}", "text": text, "start": start, "end": end}


def written(path: Path, entries: dict[str, Any] | str) -> Path:
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two recordings of two seconds at 60 fps."""
    folder = tmp_path / "data"
    (folder / "KIT" / "3").mkdir(parents=True)
    write_motion(folder / "KIT" / "3", "walk_poses", frames=120, seed=1)
    write_motion(folder / "KIT" / "3", "dance waltz 01_poses", frames=120, seed=2)
    return folder


def test_genuine_annotations(shared: Path) -> None:
    entries = read_annotations(shared / "samples" / "humanml3d" / "kitml_annotations.json")
    assert len(entries) == 5766 and entries.problems == []
    assert sum(len(found.captions) for found in entries) == 12164
    assert entries[0] == Annotation(
        "00001", "KIT/4/WalkingStraightForward01_poses", 3.78, (Caption("A person is walking forwards.", 0.0, 3.78),)
    )
    assert sum(is_mirrored_id(found.id) and found.path.startswith("M/KIT/") for found in entries) > 2000


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "no object but list"),
        ({"duration": 1.0}, "path None is not a path"),
        (entry(path=3), "path 3 is not a path"),  # type: ignore[arg-type]
        (entry(path="../../etc/passwd"), "not a path below the recordings' folder"),
        (entry(path="./"), "not a path below"),
        (entry("a", float("nan")), "duration nan is not a number of seconds"),
        (entry("a", 10**400), "is not a number of seconds"),  # type: ignore[arg-type]
        (entry("a", True), "duration True is not a number of seconds"),
        ({"path": "a", "annotations": None}, "no usable caption"),
        ({"path": "a", "annotations": {"0": 1}}, "annotations is not a list of objects"),
        ({"path": "a", "annotations": ["walks"]}, "annotations is not a list of objects"),
        (entry("a", 2.0, segment("", 0, 1)), "the text is empty"),
    ],
)
def test_entries_that_cannot_be_used_cost_themselves_alone(tmp_path: Path, value: Any, words: str) -> None:
    path = written(tmp_path / "a.json", {"1": value, "2": entry()})
    found = read_annotations(path)
    assert [row.id for row in found] == ["2"]
    assert any(problem.startswith(f"{path} entry '1'") and words in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (segment(" \n", 0, 1), "the text is empty"),
        (segment(None, 0, 1), "the text is empty"),
        (segment(["walks"], 0, 1), "text ['walks'] is not a text"),
        (segment("\ud800", 0, 1), "holds half a character"),
        (segment("a\0b", 0, 1), "is not a text"),
        (segment("walks", float("nan"), 1), "start nan is not a number of seconds"),
        (segment("walks", 0, float("inf")), "end inf is not a number of seconds"),
        (segment("walks", -0.5, 1), "start -0.5 is not a number of seconds"),
        (segment("walks", "0", 1), "start '0' is not a number of seconds"),
        (segment("walks", 1, 0.5), "start 1.0 to end 0.5 s is no span"),
        (segment("walks", 1, 1), "is no span"),
        (segment("walks", 1, None), "is no span"),
    ],
)
def test_segments_that_cannot_be_used_cost_themselves_alone(tmp_path: Path, bad: Any, words: str) -> None:
    path = written(tmp_path / "a.json", {"1": entry("a", 2.0, bad, segment("one\n two", 0, 1), {"text": "all"})})
    found = read_annotations(path)
    assert found[0].captions == (Caption("one two", 0.0, 1.0), Caption("all", 0.0, 2.0))
    assert len(found.problems) == 1 and "entry '1' segment" in found.problems[0] and words in found.problems[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[1, 2]", "not a JSON object of entries"),
        ('{"1": ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"1": ' * 5000 + "1" + "}" * 5000, "not JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_annotations(written(tmp_path / "a.json", text))


def test_a_name_given_twice_is_named(tmp_path: Path) -> None:
    one, two = json.dumps(entry()), json.dumps(entry("KIT/3/run"))
    path = written(tmp_path / "a.json", f'{{"1": {one}, "1": {two}, "a/b": {one}, "a\\nb": {one}}}')
    found = read_annotations(path)
    assert [row.path for row in found] == ["KIT/3/walk_poses"]
    assert found.problems == [
        f"{path} entry '1': an earlier entry has this name",
        f"{path} entry 'a/b': its name is no name of a clip",
        f"{path} entry 'a\\nb': its name is no name of a clip",
    ]


def test_windows_in_seconds(data: Path, tmp_path: Path) -> None:
    segments = [
        segment("walks", 0.0, 2.0),
        segment("strolls", 0.0, 2.0),
        segment("turns left", 0.5, 1.5),
        segment("stops", 1.5, 2.1),
        segment("goes on", 1.0, 2.5),
        segment("comes back", 3.0, 4.0),
    ]
    annotations = written(tmp_path / "a.json", {"00007": entry("KIT/3/walk", 2.0, *segments)})
    run(data, tmp_path / "c", "--annotations", str(annotations))
    corpus = Corpus.open(tmp_path / "c")
    samples = {sample.id: sample for sample in corpus.samples}
    assert {name: [c.text for c in sample.captions] for name, sample in samples.items()} == {
        "00007": ["walks", "strolls"],
        "00007_0.5-1.5": ["turns left"],
        "00007_1.5-2.1": ["stops"],
    }
    whole = canonical(resample(read_amass(data / "KIT" / "3" / "walk_poses.npz").motion, 30))
    layout = corpus.representation
    assert whole.frames == 60
    assert torch.equal(corpus.features(samples["00007"]), layout.encode(whole))
    part = samples["00007_0.5-1.5"]
    assert part.span == (0.5, 1.5) and part.frames == 30
    assert torch.equal(corpus.features(part), layout.encode(face_forward(whole.crop(15, 45))))
    assert samples["00007_1.5-2.1"].span == (1.5, 2.0)  # a tenth of a second past the end is rounding
    found = report(tmp_path / "c")
    assert [(drop["id"], drop["detail"]) for drop in found["dropped"]] == [
        ("00007_1.0-2.5", "1 to 2.5 s of 2 s"),
        ("00007_3.0-4.0", "3 to 4 s of 2 s"),
    ]
    assert {drop["file"] for drop in found["dropped"]} == {"KIT/3/walk_poses.npz"}
    assert found["given"] == {
        "files": 2, "files_not_named": 1, "captions": 6, "mirrored_captions": 0, "clips": 1
    }  # fmt: skip


def test_paths_with_and_without_suffix_ending_and_spaces(data: Path, tmp_path: Path) -> None:
    entries = {
        "1": entry("./KIT/3/walk_poses.npz"),
        "2": entry("KIT/KIT/3/walk"),
        "3": entry("kit/3/dance_waltz_01"),
        "4": entry("KIT/3/dance waltz 01_poses"),
        "5": entry("KIT/4/walk_poses"),
        "6": entry("humanact12/P1", 2.0),
    }
    annotations = written(tmp_path / "a.json", entries)
    said = run(data, tmp_path / "c", "--annotations", str(annotations))
    found = {sample.id: sample.source for sample in Corpus.open(tmp_path / "c").samples}
    walk, dance = "KIT/3/walk_poses", "KIT/3/dance waltz 01_poses"
    assert found == {"1": walk, "2": walk, "3": dance, "4": dance}
    assert {drop["id"]: drop["reason"] for drop in report(tmp_path / "c")["dropped"]} == {
        "5": "recording not found", "6": "recording not found"
    }  # fmt: skip
    assert said[0].startswith("given     2 files, 6 clips with 6 captions\n")
    run(data / "KIT", tmp_path / "d", "--annotations", str(annotations))  # a data set of its own
    assert {sample.id for sample in Corpus.open(tmp_path / "d").samples} == set("1234")


def test_mirrored_entries_give_the_captions_of_mirrored_copies(data: Path, tmp_path: Path) -> None:
    entries = {
        "00001": entry("KIT/3/walk_poses", 2.0, segment("turns to the left", 0.0, 2.0)),
        "M00001": entry("M/KIT/3/walk_poses", 2.0, segment("as published, right", 0.0, 2.0)),
        "00002": entry("KIT/3/dance waltz 01_poses", 2.0, segment("steps left", 0.0, 2.0)),
        "M00002": entry("M/KIT/3/walk_poses", 2.0, segment("of another recording", 0.0, 2.0)),
        "M00003": entry("M/KIT/3/walk_poses", 2.0, segment("without an original", 0.0, 2.0)),
    }
    annotations = written(tmp_path / "a.json", entries)
    run(data, tmp_path / "c", "--annotations", str(annotations), "--mirror")
    corpus = Corpus.open(tmp_path / "c")
    assert {sample.id: sample.captions[0].text for sample in corpus.samples if sample.mirrored} == {
        "M00001": "as published, right",
        "M00002": "steps right",
    }
    found = report(tmp_path / "c")
    assert [(drop["id"], drop["reason"]) for drop in found["dropped"]] == [("M00003", "no caption")]
    assert found["bad_lines"] == [
        f"{annotations} entry 'M00002': M/KIT/3/walk_poses is no mirrored copy of KIT/3/dance waltz 01_poses"
    ]
    assert found["given"]["captions"] == 3 and found["given"]["mirrored_captions"] == 2


def test_the_genuine_list_meets_recordings_of_its_paths(shared: Path, tmp_path: Path) -> None:
    """Recordings under genuine paths, as several releases lay them out, and the two sample files, which it lacks."""
    tree = tmp_path / "amass"
    for folder, name, frames in (
        ("KIT/KIT/4", "WalkingStraightForward01_poses", 378),
        ("KIT/KIT/4", "WalkingStraightForward02_stageii", 531),
        ("KIT/KIT/572", "dance_waltz_01_poses", 400),
        ("CMU/CMU/128", "128_01_poses", 400),
        ("ACCAD/x", "unknown_poses", 100),
    ):
        (tree / folder).mkdir(parents=True, exist_ok=True)
        write_motion(tree / folder, name, frames=frames, fps=100.0)
    for path in (shared / "samples" / "amass").glob("*.npz"):
        (tree / path.name).symlink_to(path)
    annotations = shared / "samples" / "humanml3d" / "kitml_annotations.json"
    said = run(tree, tmp_path / "c", "--annotations", str(annotations))
    samples = Corpus.open(tmp_path / "c").samples
    names = {sample.id.partition("_")[0]: sample.source for sample in samples}
    assert names["00001"] == "KIT/KIT/4/WalkingStraightForward01_poses" and samples[0].frames > 50
    assert len(set(names.values())) >= 2
    found = report(tmp_path / "c")
    given, dropped = found["given"], found["dropped"]
    assert given["files"] == 7 and given["files_not_named"] >= 3
    assert given["clips"] == 2883 == len({*names, *(drop["id"].partition("_")[0] for drop in dropped)})
    assert given["captions"] + given["mirrored_captions"] == 12164
    kept = sum(len(sample.captions) for sample in samples)
    assert given["captions"] == kept + sum(drop["captions"] for drop in dropped)
    assert "2,883 clips with 6,082 captions" in said[0]


def test_two_sources_of_captions_exclude_each_other(data: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="nowhere.json: no such file"):
        run(data, tmp_path / "c", "--annotations", "nowhere.json")
    with pytest.raises(ValueError, match="--annotations a.json and --index i.csv exclude each other"):
        run(data, tmp_path / "c", "--annotations", "a.json", "--index", "i.csv")
    with pytest.raises(ValueError, match="--annotations a.json and --texts t exclude each other"):
        run(data, tmp_path / "c", "--annotations", "a.json", "--texts", "t")
    assert not list(tmp_path.glob("c*"))

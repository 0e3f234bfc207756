from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ds_hymotion.arguments import parse_flags
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.flags import PrepareArguments
from ds_hymotion.data.publishing import partial_folder
from ds_hymotion.data.splits import read_split_lists, split_by_hash
from ds_hymotion.data.writer import CorpusWriter
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import read_amass, write_amass
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.transforms import canonical, face_forward, heading, mirror, resample
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.mirror import mirror_caption
from tests.motion_files import content, report, run, swinging, write_motion


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three motions with captions, in two folders."""
    folder = tmp_path / "data"
    (folder / "KIT" / "3").mkdir(parents=True)
    write_motion(folder / "KIT" / "3", "walk_poses", "a person walks to the left\nsomeone walks", seed=1)
    write_motion(folder / "KIT" / "3", "kick 02_poses", "kicks with the right leg#kick/VERB#0.0#0.0\n", seed=2)
    write_motion(folder, "jump", "a jump", seed=3, frames=70, fps=100.0)
    return folder


@pytest.fixture
def humanml(tmp_path: Path) -> Path:
    """A recording of 240 frames at 60 fps, cut by an index into two clips; and a row of a recording that is absent."""
    folder = tmp_path / "humanml"
    (folder / "amass" / "KIT" / "3").mkdir(parents=True)
    (folder / "texts").mkdir()
    write_motion(folder / "amass" / "KIT" / "3", "turn_poses", frames=240, fps=60.0, seed=5)
    rows = [
        "./pose_data/KIT/3/turn_poses.npy,10,40,000001.npy",
        "./pose_data/KIT/3/turn_poses.npy,30,70,000002.npy",
        "./pose_data/CMU/1/gone_poses.npy,0,10,000003.npy",
        "./pose_data/humanact12/humanact12/P1.npy,0,-1,000004.npy",
        "./pose_data/KIT/3/turn_poses.npy,70,90,000005.npy",
    ]
    (folder / "index.csv").write_text("source_path,start_frame,end_frame,new_name\n" + "\n".join(rows) + "\n")
    (folder / "texts" / "000001.txt").write_text(
        "a person turns left#a/DET#0.0#0.0\nraises the right arm#raise/VERB#0.5#1.0\na nod#nod/NOUN#0.5#1.0\n"
    )
    for name in ("000002", "000003", "000004", "000005"):
        (folder / "texts" / f"{name}.txt").write_text("turns clockwise#turn/VERB#nan#nan\n")
    return folder


def test_captions_beside_the_motions(data: Path, tmp_path: Path) -> None:
    said = run(data, tmp_path / "c", "--split", "1", "0", "0")
    corpus = Corpus.open(tmp_path / "c")
    assert {sample.id: (sample.frames, [caption.text for caption in sample.captions]) for sample in corpus.samples} == {
        "KIT__3__kick 02_poses": (20, ["kicks with the right leg"]),
        "KIT__3__walk_poses": (20, ["a person walks to the left", "someone walks"]),
        "jump": (21, ["a jump"]),
    }
    assert [sample.source for sample in corpus.samples] == ["KIT/3/kick 02_poses", "KIT/3/walk_poses", "jump"]
    assert "kept      3 samples from 3 recordings" in said[0] and "[<60) 3" in said[0]
    assert corpus.header["counts"]["frames"] == 61 and corpus.header["arguments"]["fps"] == 30


def test_a_sample_is_the_recording_resampled_and_canonical(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "c", "--fps", "20")
    corpus = Corpus.open(tmp_path / "c")
    sample = next(sample for sample in corpus.samples if sample.id == "jump")
    wanted = canonical(resample(read_amass(data / "jump.npz").motion, 20))
    found = corpus.motion(sample)
    assert torch.allclose(found.rotations, wanted.rotations, atol=1e-5)
    assert torch.allclose(found.translation, wanted.translation, atol=1e-6)
    joints = found.joints()
    assert float(joints[..., 1].min()) == pytest.approx(0, abs=1e-5)
    assert joints[0, 0, [0, 2]].tolist() == pytest.approx([0, 0], abs=1e-5)
    assert heading(found) == pytest.approx(0, abs=1e-5)


def test_captions_from_a_folder_by_path_or_by_name(tmp_path: Path) -> None:
    data, texts = tmp_path / "data", tmp_path / "texts"
    for folder in ("a", "b", "c"):
        (data / folder).mkdir(parents=True)
    (texts / "b").mkdir(parents=True)
    write_motion(data / "a", "walk_poses")
    write_motion(data / "b", "walk_poses", "this one is not asked for")
    write_motion(data / "c", "run_poses")
    (texts / "walk.txt").write_text("which walk is it\n")
    (texts / "b" / "walk.txt").write_text("the walk of b")
    (texts / "run_poses.txt").write_text("\ufeffa run\n\n", encoding="utf-8")
    run(data, tmp_path / "out", "--texts", str(texts))
    corpus = Corpus.open(tmp_path / "out")
    assert {sample.id: sample.captions[0].text for sample in corpus.samples} == {
        "b__walk_poses": "the walk of b",
        "c__run_poses": "a run",
    }
    (dropped,) = report(tmp_path / "out")["dropped"]
    assert dropped["source"] == "a/walk_poses" and dropped["reason"] == "no caption"
    assert "several motions are called walk_poses" in dropped["detail"]


def test_index_windows_and_spans(humanml: Path, tmp_path: Path) -> None:
    run(humanml / "amass", tmp_path / "c", "--index", str(humanml / "index.csv"))
    corpus = Corpus.open(tmp_path / "c")
    samples = {sample.id: sample for sample in corpus.samples}
    assert list(samples) == ["000001", "000001_0.5-1.0", "000002"]
    recording = read_amass(humanml / "amass" / "KIT" / "3" / "turn_poses.npz").motion
    clip = canonical(resample(recording.crop(30, 120), 30))  # 60 fps: every third frame is one of the index
    assert torch.equal(corpus.features(samples["000001"]), corpus.representation.encode(clip))
    assert samples["000001"].span == (0.5, 2.0) and samples["000001"].frames == 45
    part = samples["000001_0.5-1.0"]
    assert [caption.text for caption in part.captions] == ["raises the right arm", "a nod"]
    assert part.span == (1.0, 1.5) and part.frames == 15
    assert torch.equal(corpus.features(part), corpus.representation.encode(face_forward(clip.crop(15, 30))))
    dropped = {drop["id"]: (drop["reason"], drop["detail"]) for drop in report(tmp_path / "c")["dropped"]}
    assert dropped["000003"] == ("recording not found", "")
    assert dropped["000004"] == ("recording not found", "HumanAct12 gives joint positions, not body poses")
    assert dropped["000005"][0] == "window outside the recording"
    assert len({sample.split for sample in corpus.samples}) == 1  # one recording, one split


@pytest.mark.parametrize(("rate", "span"), [(59.9999885, (4 / 3, 8 / 3)), (250.0, (1.92, 3.84)), (60.0, (2.0, 4.0))])
def test_seconds_of_an_index_are_those_of_its_twenty_frames(
    tmp_path: Path, rate: float, span: tuple[float, float]
) -> None:
    """Seconds 2 to 4 are index frames 40 to 80, each int(fps / 20) source frames: 40 · 2 / 60 s at 59.9999885 fps."""
    (tmp_path / "data").mkdir()
    (tmp_path / "texts").mkdir()
    write_motion(tmp_path / "data", "walk_poses", frames=round(6 * rate), fps=rate)
    (tmp_path / "index.csv").write_text(
        "source_path,start_frame,end_frame,new_name\n./pose_data/walk_poses.npy,0,90,000001.npy\n"
    )
    (tmp_path / "texts" / "000001.txt").write_text("a walk#a/DET walk/NOUN#2.0#4.0\n")
    run(tmp_path / "data", tmp_path / "c", "--index", str(tmp_path / "index.csv"))
    (sample,) = Corpus.open(tmp_path / "c").samples
    assert sample.id == "000001_2.0-4.0" and sample.span == pytest.approx(span, abs=0.5 / 30)
    assert sample.frames == pytest.approx(30 * (span[1] - span[0]), abs=1)


def test_a_line_of_the_index_captions_that_lost_its_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_motion(tmp_path / "data", "walk", "a man walks#a/DET man/NOUN walk/VERB#0.0\na man turns#right\na man")
    run(tmp_path / "data", tmp_path / "c")
    (sample,) = Corpus.open(tmp_path / "c").samples
    assert [caption.text for caption in sample.captions] == ["a man turns#right", "a man"]
    assert len(report(tmp_path / "c")["bad_lines"]) == 1


def test_an_index_finds_renamed_folders_and_suffixes(tmp_path: Path) -> None:
    (tmp_path / "data" / "BMLrub" / "BMLrub" / "rub001").mkdir(parents=True)
    (tmp_path / "texts").mkdir()
    write_motion(tmp_path / "data" / "BMLrub" / "BMLrub" / "rub001", "0000 treadmill_slow_stageii")
    (tmp_path / "index.csv").write_text(
        "source_path,start_frame,end_frame,new_name\n"
        "./pose_data/BioMotionLab_NTroje/rub001/0000_treadmill_slow_poses.npy,0,10,000001.npy\n"
    )
    (tmp_path / "texts" / "000001.txt").write_text("a walk")
    run(tmp_path / "data", tmp_path / "c", "--index", str(tmp_path / "index.csv"))
    assert [sample.id for sample in Corpus.open(tmp_path / "c").samples] == ["000001"]


def test_mirrored_copies(humanml: Path, tmp_path: Path) -> None:
    (humanml / "texts" / "M000002.txt").write_text("published as mirrored, left#x/X#0#0\n")
    run(humanml / "amass", tmp_path / "c", "--index", str(humanml / "index.csv"), "--mirror")
    corpus = Corpus.open(tmp_path / "c")
    samples = {sample.id: sample for sample in corpus.samples}
    texts = {name: [caption.text for caption in sample.captions] for name, sample in samples.items()}
    assert texts["M000001"] == ["a person turns right"]
    assert texts["M000001_0.5-1.0"] == ["raises the left arm", "a nod"]
    assert texts["M000002"] == ["published as mirrored, left"]
    assert [sample.id for sample in corpus.samples if sample.mirrored] == ["M000001", "M000001_0.5-1.0", "M000002"]
    wanted = canonical(mirror(corpus.motion(samples["000001"])))
    assert torch.allclose(corpus.motion(samples["M000001"]).rotations, wanted.rotations, atol=1e-5)
    assert len({sample.split for sample in corpus.samples}) == 1


@pytest.mark.parametrize(
    ("caption", "mirrored"),
    [
        ("Left foot, then RIGHT foot", "Right foot, then LEFT foot"),
        ("steps leftward with a left-handed righthand grip", "steps rightward with a right-handed lefthand grip"),
        ("stands upright at a right angle, bright leftovers", "stands upright at a right angle, bright leftovers"),
        ("turns clockwise, then counter-clockwise", "turns counterclockwise, then clockwise"),
        ("goes right away from the wall", "goes left away from the wall"),
        ("sits down right away", "sits down right away"),
        ("他先用左手,再左右摇摆,逆时针转", "他先用右手,再左右摇摆,顺时针转"),
        ("", ""),
    ],
)
def test_mirror_caption(caption: str, mirrored: str) -> None:
    assert mirror_caption(caption) == mirrored


def test_bad_files_are_left_out_and_named(data: Path, tmp_path: Path) -> None:
    for name in ("cut", "nan", "pickled", "text", "short"):
        (data / f"{name}.txt").write_text("words")
    whole = (data / "jump.npz").read_bytes()
    (data / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (data / "text.npz").write_text("this is no archive")
    write_motion(data, "short", frames=2, fps=60.0)
    fine = dict(np.load(data / "jump.npz"))
    np.savez(data / "nan.npz", **{**fine, "trans": np.full_like(fine["trans"], np.nan)})
    np.savez(data / "pickled.npz", **{**fine, "poses": np.array([{}], dtype=object)})
    np.savez(data / "male_shape.npz", betas=np.zeros(16))
    write_motion(data, "silent")
    (data / "silent.txt").write_text("\n \n")
    said = run(data, tmp_path / "c", "--split", "1", "0", "0")
    corpus = Corpus.open(tmp_path / "c")
    assert len(corpus) == 3 and bool(corpus.mean.isfinite().all() and corpus.std.isfinite().all())
    dropped = {drop["source"]: drop["reason"] for drop in report(tmp_path / "c")["dropped"]}
    assert dropped == {
        "cut": "truncated or damaged zip",
        "nan": "NaN or Inf in trans",
        "pickled": "needs pickle",
        "text": "not an npz archive",
        "short": "too short",
        "male_shape": "not a motion",
        "silent": "no caption",
    }
    assert "dropped   7" in said[0] and "1 needs pickle" in said[0]


def test_strict_stops_at_the_first(data: Path, tmp_path: Path) -> None:
    (data / "cut.npz").write_bytes(b"PK")
    (data / "cut.txt").write_text("words")
    with pytest.raises(UserError, match="--strict: cut.*truncated or damaged zip"):
        run(data, tmp_path / "c", "--strict")
    (data / "cut.npz").unlink()
    np.savez(data / "male_shape.npz", betas=np.zeros(16))  # no motion, and no fault
    run(data, tmp_path / "c", "--strict")
    assert len(Corpus.open(tmp_path / "c")) == 3


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match="holds no .npz file"):
        run(tmp_path / "data", tmp_path / "c")
    write_motion(tmp_path / "data", "walk")
    with pytest.raises(UserError, match="nothing usable.*1 no caption; the first is walk"):
        run(tmp_path / "data", tmp_path / "c")
    assert not list(tmp_path.glob("c*"))
    run(tmp_path / "data", tmp_path / "c", "--unconditional")
    assert Corpus.open(tmp_path / "c").samples[0].captions[0].text == ""


def test_long_clips(data: Path, tmp_path: Path) -> None:
    write_motion(data, "long", "for ever", frames=100, fps=60.0)  # 50 frames at 30 fps
    frames = {}
    for treatment in ("crop", "split", "drop"):
        run(data, tmp_path / treatment, "--max_frames", "22", "--min_frames", "7", "--long_clips", treatment)
        samples = Corpus.open(tmp_path / treatment).samples
        frames[treatment] = {sample.id: sample.frames for sample in samples if sample.id.startswith("long")}
    assert frames["crop"] == {"long": 22}
    assert frames["split"] == {"long_part0": 22, "long_part1": 22}
    rest = report(tmp_path / "split")["dropped"][-1]
    assert (rest["id"], rest["reason"]) == ("long_part2", "too short") and "the last 6 of 50 frames" in rest["detail"]
    assert frames["drop"] == {}
    assert report(tmp_path / "crop")["cropped"] == ["long"]
    assert report(tmp_path / "drop")["dropped_by_reason"] == {"too long": 1}
    part = Corpus.open(tmp_path / "split")
    sample = next(sample for sample in part.samples if sample.id == "long_part1")
    assert heading(part.motion(sample)) == pytest.approx(0, abs=1e-5)
    assert sample.span == (pytest.approx(22 / 30, abs=1e-6), pytest.approx(44 / 30, abs=1e-6))


def test_velocity_outliers_are_reported_or_dropped(data: Path, tmp_path: Path) -> None:
    motion = swinging(40, 60.0, seed=9)
    rotations = motion.rotations.clone()
    rotations[20, 7] = rotations[20, 7] @ torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # 90° in one frame
    write_amass(data / "glitch.npz", Motion(rotations, motion.translation, 60.0))
    (data / "glitch.txt").write_text("a twitch")
    run(data, tmp_path / "keep")
    (found,) = report(tmp_path / "keep")["velocity_outliers"]
    assert (found["source"], found["joint"]) == ("glitch", "left_ankle") and found["frame"] in (20, 21)
    assert found["degrees_per_second"] == pytest.approx(90 * 60, rel=0.02)
    assert len(Corpus.open(tmp_path / "keep")) == 4
    run(data, tmp_path / "drop", "--outliers", "drop")
    assert report(tmp_path / "drop")["dropped_by_reason"] == {"velocity outlier": 1}


def test_a_rate_can_be_put_right(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "c", "--rates", "KIT=30")
    frames = {sample.source: sample.frames for sample in Corpus.open(tmp_path / "c").samples}
    assert frames == {"KIT/3/kick 02_poses": 40, "KIT/3/walk_poses": 40, "jump": 21}


def test_split_by_hash_is_stable() -> None:
    sources = [f"KIT/{number}" for number in range(2000)]
    split = split_by_hash(sources, (0.8, 0.1, 0.1), seed=0)
    counts = [sum(value == name for value in split.values()) for name in ("train", "val", "test")]
    assert counts[0] == pytest.approx(1600, abs=60) and counts[1] == pytest.approx(200, abs=45)
    assert split_by_hash([*sources, "more"], (0.8, 0.1, 0.1), seed=0).items() >= split.items()
    assert split_by_hash(sources, (0.8, 0.1, 0.1), seed=1) != split
    assert set(split_by_hash(sources, (0.9, 0.1, 0), seed=0).values()) == {"train", "val"}
    for seed in range(20):  # a lone recording always trains
        assert split_by_hash(["only"], (0.1, 0.45, 0.45), seed) == {"only": "train"}


def test_split_lists_are_honoured(humanml: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "train.txt").write_text("000001\nM000001\n")
    (lists / "test.txt").write_text("000002\n")
    flags = ["--index", str(humanml / "index.csv"), "--split_lists", str(lists), "--mirror"]
    run(humanml / "amass", tmp_path / "c", *flags)
    corpus = Corpus.open(tmp_path / "c")
    assert [sample.id for sample in corpus.split("test")] == ["000002", "M000002"]
    assert len(corpus.split("train")) == 4 and corpus.split("val") == []
    assert report(tmp_path / "c")["recordings_in_several_splits"] == ["KIT/3/turn_poses"]
    assert {"id": "000005", "reason": "not in the split lists"}.items() <= report(tmp_path / "c")["dropped"][-1].items()
    (lists / "val.txt").write_text("000002\n")
    with pytest.raises(UserError, match=r"test.txt names '000002', which val.txt also names"):
        read_split_lists(lists)
    (lists / "train.txt").unlink()
    with pytest.raises(UserError, match="has no train.txt"):
        read_split_lists(lists)


def test_action_types(data: Path, tmp_path: Path) -> None:
    actions = tmp_path / "actions.json"
    actions.write_text('{"jump": "BALANCE", "KIT/3/walk_poses": "LOCOMOTION"}')
    run(data, tmp_path / "c", "--actions_file", str(actions), "--mirror")
    found = {sample.id: sample.action for sample in Corpus.open(tmp_path / "c").samples}
    assert found["jump"] == found["Mjump"] == "BALANCE" and found["KIT__3__walk_poses"] == "LOCOMOTION"
    assert found["KIT__3__kick 02_poses"] is None
    actions.write_text('{"nobody": "BALANCE"}')
    with pytest.raises(UserError, match="names 'nobody' but no usable clip"):
        run(data, tmp_path / "d", "--actions_file", str(actions))


def test_text_features_now_or_later(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "now", "--mirror", "--encode_text", "hashed")
    run(data, tmp_path / "later", "--mirror")
    said = run(data, tmp_path / "later", "--mirror", "--encode_text", "hashed")
    assert "already prepared" in said[0]
    assert content(tmp_path / "now") == content(tmp_path / "later")
    corpus = Corpus.open(tmp_path / "now")
    cache = TextCache(corpus.text_cache_folder("hashed"))
    captions = [caption.text for sample in corpus.samples for caption in sample.captions]
    assert len(cache.lookup(captions)) == 8 and len(cache) == 6  # two captions name no side
    assert (cache.token_dim, cache.pooled_dim) == (128, 128)


def test_the_number_of_workers_changes_nothing(data: Path, tmp_path: Path) -> None:
    (data / "cut.npz").write_bytes(b"PK")
    (data / "cut.txt").write_text("words")
    flags = ["--mirror", "--shard_mb", "0.03"]
    run(data, tmp_path / "one", *flags)
    run(data, tmp_path / "two", *flags, workers=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert (tmp_path / "one" / "motion-00001.safetensors").exists()


class Killed(BaseException):
    pass


def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies before its n-th change of the disk, for every n, and is then made again."""
    flags = ["--mirror", "--shard_mb", "0.03", "--encode_text", "hashed"]
    run(data, tmp_path / "whole", *flags)
    whole = content(tmp_path / "whole")
    rename, unlink, make = os.replace, Path.unlink, Path.mkdir
    said: list[str] = []
    deaths = 0
    while True:
        left = deaths

        def step() -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *names: (step(), rename(*names)))
            patch.setattr(Path, "unlink", lambda *names, **more: (step(), unlink(*names, **more)))
            patch.setattr(Path, "mkdir", lambda *names, **more: (step(), make(*names, **more)))
            patch.setattr(CorpusWriter, "__exit__", lambda writer, *error: writer.close())  # a kill cleans nothing up
            try:
                run(data, tmp_path / "c", *flags)
                break
            except Killed:
                deaths += 1
        said += run(data, tmp_path / "c", *flags)
        assert content(tmp_path / "c") == whole, deaths
        assert not partial_folder(tmp_path / "c").exists()
        for name in whole:
            (tmp_path / "c" / name).unlink()
        for folder in ("c/text/hashed", "c/text", "c"):
            (tmp_path / folder).rmdir()
    assert deaths > 12
    assert {"going on after 1 of 3 recordings", "going on after 2 of 3 recordings"} <= set(said)


def test_killed_while_it_replaces_a_corpus_it_loses_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(data, tmp_path / "whole", "--fps", "20", "--encode_text", "hashed")
    whole = content(tmp_path / "whole")
    rename = os.replace
    for deaths in range(5, 12):
        out = tmp_path / f"c{deaths}"
        run(data, out, "--fps", "30", "--encode_text", "hashed")
        left = deaths

        def replace(*names: Any) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            rename(*names)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            patch.setattr(CorpusWriter, "__exit__", lambda writer, *error: writer.close())
            with contextlib.suppress(Killed):
                run(data, out, "--fps", "20", "--encode_text", "hashed", "--overwrite")
        run(data, out, "--fps", "20", "--encode_text", "hashed", "--overwrite")
        assert content(out) == whole
        assert len(Corpus.open(out)) == 3
    assert not list(tmp_path.glob(".c*"))


def test_a_full_disk_is_no_traceback(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*names: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(names[1]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match=r"plan.json: No space left on device; .*goes on where it stopped"):
            run(data, tmp_path / "c")
    run(data, tmp_path / "c")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory"):
        run(data, tmp_path / "file" / "c")
    with pytest.raises(UserError, match="not the name of a folder"):
        run(data, Path("."))


def test_a_corpus_can_be_read_by_whom_the_umask_allows(data: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run(data, tmp_path / "c")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "c").iterdir()} == {"0o640"}


def test_other_arguments_or_data_are_not_mixed_up(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "c")
    before = content(tmp_path / "c")
    with pytest.raises(UserError, match=r"made differently \(fps was 30.0, is 20.0\)"):
        run(data, tmp_path / "c", "--fps", "20")
    write_motion(data, "more", "one more")
    with pytest.raises(UserError, match="its motion or caption files have changed"):
        run(data, tmp_path / "c")
    assert content(tmp_path / "c") == before
    run(data, tmp_path / "c", "--overwrite")
    assert len(Corpus.open(tmp_path / "c")) == 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--split", "0.5", "0.2", "0.2"], "--split 0.5 0.2 0.2 must be three shares"),
        (["--split", "1", "0", "0", "--split_lists", "x"], "exclude each other"),
        (["--fps", "0"], "--fps 0.0 is not legal: give frames per second"),
        (["--max_frames", "1"], "--max_frames 1 is not legal"),
        (["--long_clips", "cut"], "crop, split or drop"),
        (["--representation", "bvh"], "bvh.*legal are hymotion-201, smpl24-rotmat"),
        (["--positions_relative_to", "pelvis"], "no meaning for smpl24-rotmat"),
        (["--encode_text", "bert"], "--encode_text bert is not legal: give one of: hashed"),
        (["--rates", "KIT"], "FOLDER=FPS"),
        (["--texts", "nowhere"], "--texts nowhere is not a folder"),
        (["--index", "nowhere.csv"], "--texts texts is not a folder"),
        (["--actions_file", "nowhere.json"], "nowhere.json is missing"),
        (["--frobnicate"], "unknown flag --frobnicate"),
        (["--workers", "many"], "invalid int value"),
    ],
)
def test_wrong_flags(data: Path, tmp_path: Path, flags: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(data, tmp_path / "c", *flags)
    assert not list(tmp_path.glob("c*"))


def test_missing_flags() -> None:
    with pytest.raises(UserError, match="--data_dir is missing"):
        parse_flags(PrepareArguments, []).preparation()


@pytest.mark.parametrize("representation", ["smpl24-rotmat", "hymotion-201"])
def test_genuine_recordings(shared: Path, tmp_path: Path, representation: str) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "amass_sample.txt").write_text("a person moves the left arm\n")
    (texts / "dmpl_sample_poses.txt").write_text("a person runs\nand stops#stop/VERB#1.0#0\n")
    flags = ["--texts", str(texts), "--mirror", "--representation", representation, "--split", "1", "0", "0"]
    run(shared / "samples" / "amass", tmp_path / "c", *flags)
    corpus = Corpus.open(tmp_path / "c")
    found = {sample.id: sample.frames for sample in corpus.samples if not sample.mirrored}
    assert found == {"amass_sample_poses": 151, "dmpl_sample_poses": 59}
    assert report(tmp_path / "c")["bad_lines"] == [f"{texts}/dmpl_sample_poses.txt line 2: times 1 to 0 s are no span"]
    for sample in corpus.samples:
        motion = corpus.motion(sample)
        assert float(motion.joints()[:, : corpus.representation.joints, 1].min()) > -0.05
        assert heading(motion) == pytest.approx(0, abs=1e-4)
    assert float(corpus.joint_variance.max()) > 0.01


def test_overwriting_keeps_text_features_and_names_foreign_files(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    run(data, out, "--encode_text", "hashed")
    (out / "notes.txt").write_text("mine")
    monkeypatch.setattr("ds_hymotion.text.hashed.HashedTextEncoder.encode", None)  # calling it would fail
    run(data, out, "--encode_text", "hashed", "--seed", "5", "--overwrite")
    captions = [caption.text for sample in Corpus.open(out).samples for caption in sample.captions]
    assert all(caption in TextCache(out / "text" / "hashed") for caption in captions)
    with pytest.raises(UserError, match=r"\.c\.replaced holds files"):
        run(data, out, "--encode_text", "hashed", "--seed", "6", "--overwrite")


def test_the_name_that_safetensors_keeps_is_no_clip(data: Path, tmp_path: Path) -> None:
    write_motion(data, "__metadata__", "a strange name")
    run(data, tmp_path / "c")
    assert "__metadata__-2" in {sample.id for sample in Corpus.open(tmp_path / "c").samples}

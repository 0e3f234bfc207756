from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ds_hymotion.data.corpus import Corpus, UnreadableSample
from ds_hymotion.data.corpus_statistics import VARIANCE_STRIDE, corpus_statistics
from ds_hymotion.data.workers import Workers
from ds_hymotion.data.writer import CorpusWriter
from ds_hymotion.errors import UserError
from ds_hymotion.motion.representation import representation
from ds_hymotion.motion.rotation import axis_angle_to_matrix, geodesic_angle
from ds_hymotion.motion.statistics import joint_variance
from tests.motion_files import content, swinging

SMPL = representation("smpl24-rotmat")


def write_corpus(out: Path, samples: int = 6, name: str = "smpl24-rotmat", **options: object) -> Path:
    """Samples "s0" … of 10, 11, … frames; every third one is for validation."""
    layout = representation(name)
    with CorpusWriter(out, layout, 30, {"made": "here"}, shard_mb=0.02, **options) as writer:  # type: ignore[arg-type]
        for number in range(samples):
            features = layout.encode(swinging(10 + number, 30, seed=number))
            split = "val" if number % 3 == 2 else "train"
            action = "LOCOMOTION" if number == 0 else None
            captions = [f"caption {number}", "another"]
            writer.add(f"s{number}", f"r{number}", features, captions, split=split, action=action, hints=["step"])
            writer.end_job()
        writer.finish()
    return out


@pytest.mark.parametrize("name", ["smpl24-rotmat", "hymotion-201"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "corpus", name=name))
    assert len(corpus) == 6 and corpus.fps == 30 and corpus.representation.name == name
    assert [sample.id for sample in corpus.split("val")] == ["s2", "s5"]
    assert corpus.split("test") == []
    sample = corpus.samples[4]
    assert (sample.index, sample.frames, sample.source, sample.span) == (4, 14, "r4", (0.0, 14 / 30))
    assert [caption.text for caption in sample.captions] == ["caption 4", "another"]
    assert corpus.samples[0].action == "LOCOMOTION" and sample.action is None and sample.hints == ("step",)
    motion = swinging(14, 30, seed=4)
    assert torch.equal(corpus.features(sample), corpus.representation.encode(motion))
    read = corpus.motion(sample)
    joints = corpus.representation.joints
    assert read.fps == 30
    assert torch.allclose(read.rotations[:, :joints], motion.rotations[:, :joints], atol=1e-5)
    assert torch.equal(read.translation, motion.translation)
    assert corpus.skeleton.names[0] == "pelvis" and corpus.skeleton.offsets.shape == (24, 3)
    assert corpus.text_cache_folder("hashed") == tmp_path / "corpus" / "text" / "hashed"


def test_statistics_are_of_the_training_split_alone(tmp_path: Path) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "corpus"))
    frames = torch.cat([corpus.features(sample) for sample in corpus.split("train")]).double()
    assert torch.allclose(corpus.mean.double(), frames.mean(dim=0), atol=1e-6)
    assert torch.allclose(corpus.std.double(), frames.std(dim=0, correction=0), atol=1e-6)
    clips = [corpus.motion(sample).rotations[::VARIANCE_STRIDE] for sample in corpus.split("train")]
    assert torch.allclose(corpus.joint_variance.double(), joint_variance(clips), atol=1e-6)


def test_joint_variance_of_a_known_swing(tmp_path: Path) -> None:
    """An elbow that is as long at +0.3 as at -0.3 rad has the variance 0.09 rad² around its mean, the others none."""
    motion = swinging(8, 30)
    angles = torch.zeros(8, 24, 3, dtype=torch.float64)
    angles[:, 18, 0] = torch.tensor([0.3, 0.0, 0.0, 0.0, -0.3, 0.0, 0.0, 0.0], dtype=torch.float64)
    turned = axis_angle_to_matrix(angles)
    features = SMPL.encode(type(motion)(turned.float(), motion.translation, 30))
    save_file({"s": features}, str(tmp_path / "motion.safetensors"))
    found = corpus_statistics(tmp_path, {"motion.safetensors": ["s"]}, SMPL, Workers(1))
    assert float(found["joint_variance"][18]) == pytest.approx(0.09, abs=1e-6)
    assert float(found["joint_variance"].sum()) == pytest.approx(0.09, abs=1e-6)
    assert float(geodesic_angle(turned[0, 18], turned[4, 18])) == pytest.approx(0.6)


def test_mirrored_captions_and_option_survive(tmp_path: Path) -> None:
    layout = representation("hymotion-201", "rest_root")
    with CorpusWriter(tmp_path / "c", layout, 20, {}) as writer:
        features = layout.encode(swinging(5, 20))
        writer.add("Ma", "a", features, ["a line\u2028break"], span=(1.0, 1.25), mirrored=True)
        writer.end_job()
        writer.finish()
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.representation.encode(swinging(5, 20)).equal(corpus.features(corpus.samples[0]))
    assert corpus.samples[0].mirrored and corpus.samples[0].span == (1.0, 1.25)
    assert corpus.samples[0].captions[0].text == "a line\u2028break"


def test_corpora_of_version_1_are_read_without_hints(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    assert json.loads((corpus / "corpus.json").read_text())["version"] == 2
    rows = [json.loads(line) for line in (corpus / "samples.jsonl").read_text().splitlines()]
    assert all(row.pop("hints") == ["step"] for row in rows)
    (corpus / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    header = json.loads((corpus / "corpus.json").read_text())
    (corpus / "corpus.json").write_text(json.dumps({**header, "version": 1}))
    assert [sample.hints for sample in Corpus.open(corpus).samples] == [()] * 6


def test_it_works_in_a_forked_and_in_another_process(tmp_path: Path) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "corpus"))
    wanted = corpus.features(corpus.samples[3])
    assert torch.equal(pickle.loads(pickle.dumps(corpus)).features(corpus.samples[3]), wanted)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(corpus.features(corpus.samples[3]), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no corpus at .*launch/prepare.py"):
        Corpus.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="corpus.json is missing"):
        Corpus.open(tmp_path)
    for name in ("samples.jsonl", "statistics.safetensors", "motion-00001.safetensors"):
        corpus = write_corpus(tmp_path / name)
        (corpus / name).unlink()
        with pytest.raises(UserError, match=f"{name}.*--overwrite"):
            Corpus.open(corpus)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 3}, "version 3, this program reads versions 1 and 2"),
        ({"format": "other"}, "does not describe a prepared corpus"),
        ({"fps": None}, "lacks or misnames"),
        ({"representation": "bvh"}, "bvh.*legal are"),
        ({"channel_names": ["x"]}, "other channels"),
        ({"counts": {"samples": 7}}, "has 6 lines, corpus.json counts 7 samples"),
    ],
)
def test_a_wrong_header_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = write_corpus(tmp_path / "corpus") / "corpus.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=words):
        Corpus.open(path.parent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frames": 99}, r"holds sample 's1' as F32 \[11, 219\], samples.jsonl says F32 \[99, 219\]"),
        ({"id": "other"}, "lacks sample 'other'"),
        ({"id": "s0"}, "names a sample twice"),
        ({"split": "dev"}, "line 2 has a wrong split"),
        ({"captions": []}, "line 2 has a wrong split, no caption"),
        ({"span": [0]}, "line 2 is damaged"),
    ],
)
def test_a_wrong_sample_line_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = write_corpus(tmp_path / "corpus") / "samples.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=words):
        Corpus.open(path.parent)


def test_a_shard_that_was_cut_short_is_named(tmp_path: Path) -> None:
    shard = write_corpus(tmp_path / "corpus") / "motion-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(UserError, match="motion-00000.safetensors is damaged"):
        Corpus.open(shard.parent)


def test_statistics_that_are_not_finite_are_named(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus") / "statistics.safetensors"
    tensors = load_file(path)
    tensors["std"][3] = torch.nan
    save_file(tensors, path)
    with pytest.raises(UserError, match="no finite 'std'"):
        Corpus.open(path.parent)


def test_a_flipped_bit_makes_one_sample_unreadable(tmp_path: Path) -> None:
    shard = write_corpus(tmp_path / "corpus", samples=2) / "motion-00000.safetensors"
    corpus = Corpus.open(shard.parent)
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 64  # the last value of the shard's last sample
    shard.write_bytes(damaged)
    corpus = Corpus.open(shard.parent)
    readable = []
    for sample in corpus.samples:
        try:
            corpus.features(sample)
            readable.append(sample.id)
        except UnreadableSample as error:
            assert f"sample {sample.id!r} in" in str(error) and "is damaged" in str(error)
    assert len(readable) == 1


def test_the_writer_refuses_what_would_be_no_sample(tmp_path: Path) -> None:
    features = SMPL.encode(swinging(4))
    with CorpusWriter(tmp_path / "c", SMPL, 30, {}) as writer:
        with pytest.raises(ValueError, match="not finite"):
            writer.add("a", "a", features * torch.nan, ["x"])
        with pytest.raises(ValueError, match=r"not float32 \[T, 219\]"):
            writer.add("a", "a", features[:, 1:], ["x"])
        writer.add("a", "a", features, ["x"], split="val")
        with pytest.raises(ValueError, match="occurs twice"):
            writer.add("a", "a", features, ["x"])
        writer.end_job()
        with pytest.raises(UserError, match="training split"):
            writer.finish()


def test_the_same_corpus_is_not_written_again(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c")
    with CorpusWriter(tmp_path / "c", SMPL, 30, {"made": "here"}) as writer:
        assert writer.finished
    with pytest.raises(UserError, match="made was 'here', is 'there'"):
        CorpusWriter(tmp_path / "c", SMPL, 30, {"made": "there"})


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    with (
        CorpusWriter(tmp_path / "c", SMPL, 30, {}),
        pytest.raises(UserError, match="in use by another preparation"),
    ):
        CorpusWriter(tmp_path / "c", SMPL, 30, {})


def test_nothing_foreign_is_touched(tmp_path: Path) -> None:
    for name in ("mine", "c.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tmp").write_text("years of work")
    before = content(tmp_path)
    with pytest.raises(UserError, match="mine holds other files"):
        CorpusWriter(tmp_path / "mine", SMPL, 30, {}, overwrite=True)
    with pytest.raises(UserError, match=r"c.partial holds other files \(thesis.tmp\)"):
        CorpusWriter(tmp_path / "c", SMPL, 30, {}, overwrite=True)
    assert content(tmp_path) == before


def test_overwriting_keeps_text_features_and_foreign_files(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", samples=6)
    (corpus / "text" / "hashed").mkdir(parents=True)
    (corpus / "text" / "hashed" / "index.json").write_text("{}")
    (corpus / "notes.txt").write_text("mine")
    write_corpus(corpus, samples=3, overwrite=True)
    assert len(Corpus.open(corpus)) == 3
    assert (corpus / "text" / "hashed" / "index.json").read_text() == "{}"
    assert content(tmp_path / ".c.replaced") == {"notes.txt": b"mine"}

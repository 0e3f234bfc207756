"""Genuine and built-in motions through the whole path: prepared, decoded, trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ds_hymotion.data.builtin import generate_set
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.prepare import Preparation, prepare
from ds_hymotion.formats.amass import read_amass, write_amass
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import REPRESENTATIONS, representation
from ds_hymotion.motion.rotation import geodesic_angle
from ds_hymotion.motion.transforms import canonical, resample
from tests.ranks import RankPool
from tests.runs import run_settings, train


def assert_decodes_back(motion: Motion, name: str) -> None:
    for kind in REPRESENTATIONS:
        decoded = representation(kind).to_motion(representation(kind).encode(motion), motion.fps)
        joints = representation(kind).joints
        assert float((decoded.joints() - motion.joints())[:, :joints].norm(dim=-1).max()) < 1e-4, (name, kind)
        angle = geodesic_angle(decoded.rotations[:, :joints], motion.rotations[:, :joints])
        assert float(angle.max()) < 1e-4, (name, kind)


def test_every_built_in_sub_action_decodes_back(tmp_path: Path) -> None:
    for clip in generate_set(5, None, 0, (60, 90)):
        path = tmp_path / f"{clip.id}.npz"
        write_amass(path, clip.motion)
        assert_decodes_back(canonical(resample(read_amass(path).motion, 30)), clip.id)


def test_genuine_samples_decode_back(shared: Path) -> None:
    for path in sorted((shared / "samples" / "amass").glob("*.npz")):
        assert_decodes_back(canonical(resample(read_amass(path).motion, 30)), path.name)


@pytest.mark.parametrize("kind", sorted(REPRESENTATIONS))
def test_genuine_samples_train(ranks: RankPool, shared: Path, tmp_path: Path, kind: str) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "amass_sample_poses.txt").write_text("a person moves on the spot\nsomeone turns around\n")
    (texts / "dmpl_sample_poses.txt").write_text("a person runs\n")
    (texts / "cut.txt").write_text("somebody\n")
    data = tmp_path / "data"
    data.mkdir()
    for path in (shared / "samples" / "amass").glob("*.npz"):
        (data / path.name).symlink_to(path)
    (data / "male_shape.npz").write_bytes(b"PK")
    (data / "cut.npz").write_bytes((data / "dmpl_sample_poses.npz").read_bytes()[:5000])
    said: list[str] = []
    task = Preparation(
        data, tmp_path / "corpus", texts=texts, representation=kind, split=(1.0, 0.0, 0.0),
        max_frames=60, long_clips="split", encode_text="hashed", progress=False,
    )  # fmt: skip
    corpus = Corpus.open(prepare(task, say=said.append))
    assert len(corpus.samples) >= 4
    report = json.loads((tmp_path / "corpus" / "report.json").read_text())
    reasons = {drop["source"]: drop["reason"] for drop in report["dropped"]}
    assert reasons == {"cut": "truncated or damaged zip", "male_shape": "not a motion"}
    assert all(reason in "\n".join(said) for reason in reasons.values())

    settings = run_settings(
        hymotion__model={"preset": "tiny"},
        hymotion__training__max_steps=20,
        hymotion__evaluation={"eval_steps": 1, "split": "train", "times": [0.5], "max_clips": 4},
        optimizer={"type": "AdamW", "params": {"lr": 1e-3}},
        gradient_clipping=1.0,
    )
    ranks.run(1, train, settings, corpus.folder, tmp_path / "run")
    entries = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    held_out = [entry["loss"] for entry in entries if entry["kind"] == "eval"]
    assert len(held_out) == 20 and all(math.isfinite(loss) for loss in held_out)
    assert held_out[-1] < 0.8 * held_out[0]

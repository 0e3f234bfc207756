"""The tiny network learns: it overfits eight clips, and each caption brings back its own clip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_hymotion.data.builtin import generate_clip, write_set
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.prepare import Preparation, prepare
from ds_hymotion.generation import Prompt, SamplingSettings, generate_motions
from ds_hymotion.reports.nearest import nearest_clips
from ds_hymotion.text.hashed import HashedTextEncoder
from ds_hymotion.training.weights import load_model
from tests.ranks import RankPool
from tests.runs import run_settings, train

CLIPS = [
    ("LOCOMOTION", "walk"), ("MANIPULATION", "reach"), ("GESTURE", "wave"), ("GESTURE", "clap"), ("POSTURE", "kneel"),
    ("BALANCE", "one_leg_stand"), ("TRANSITION", "sit_down"), ("TRANSITION", "turn_around"),
]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("steps", "left", "own"), [(150, 0.25, 6), pytest.param(500, 0.1, 7, marks=pytest.mark.full)])
def test_eight_clips_are_learned_and_told_apart(
    ranks: RankPool, tmp_path: Path, steps: int, left: float, own: int
) -> None:
    """After ``steps`` at most ``left`` of the loss is left, and ``own`` of eight samples are nearest to their clip."""
    clips = [generate_clip(action, 7 + i, frames=60, sub_action=name) for i, (action, name) in enumerate(CLIPS)]
    write_set(tmp_path / "set", clips)
    task = Preparation(
        tmp_path / "set" / "amass", tmp_path / "corpus", texts=tmp_path / "set" / "texts",
        index=tmp_path / "set" / "index.csv", split=(1.0, 0.0, 0.0), encode_text="hashed", progress=False,
    )  # fmt: skip
    corpus = Corpus.open(prepare(task, say=lambda _: None))
    assert [sample.frames for sample in corpus.samples] == [60] * 8
    settings = run_settings(
        train_batch_size=8,
        optimizer={"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.99], "weight_decay": 0.0}},
        gradient_clipping=1.0,
        hymotion={
            "model": {"preset": "tiny"},
            "flow": {"time": "stratified"},
            "training": {"max_steps": steps, "warmup_steps": 20, "schedule": "cosine", "min_lr_ratio": 0.05,
                         "ema_decay": 0.99, "save_steps": 0},
            "evaluation": {"eval_steps": steps, "split": "train"},
        },
    )  # fmt: skip
    start = {**settings["hymotion"], "training": {**settings["hymotion"]["training"], "max_steps": 1}}
    start["training"].update(warmup_steps=0)
    start["evaluation"] = {**start["evaluation"], "eval_steps": 1}
    start_settings = {**settings, "optimizer": {"type": "AdamW", "params": {"lr": 0.0}}, "hymotion": start}
    ranks.run(1, train, start_settings, corpus.folder, tmp_path / "start")
    ranks.run(1, train, settings, corpus.folder, tmp_path / "run", seconds=500)
    before, after = (held_out(tmp_path / name) for name in ("start", "run"))
    print(f"held-out velocity loss {before:.3f} -> {after:.3f}: {100 * after / before:.1f} % of its start")
    assert after < left * before

    model = load_model(tmp_path / "run")
    prompts = [Prompt(clip.captions[0].text, 60, clip.id, clip.id) for clip in corpus.samples]
    motions = generate_motions(model, HashedTextEncoder(), prompts, SamplingSettings(guidance=1.0))
    nearest = nearest_clips(motions, corpus, [prompt.clip for prompt in prompts])
    print(*(f"{p.clip}: {n.clip.id} at {100 * n.distance:.1f} cm" for p, n in zip(prompts, nearest)), sep="\n")
    assert sum(near.clip.id == prompt.clip for prompt, near in zip(prompts, nearest)) >= own


def held_out(run: Path) -> float:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return float([entry["loss"] for entry in entries if entry["kind"] == "eval"][-1])

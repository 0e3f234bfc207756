"""A prepared corpus of built-in motions, for benchmarks that train."""

from __future__ import annotations

from pathlib import Path

from ds_hymotion.data.builtin.collection import generate_set
from ds_hymotion.data.builtin.files import write_set
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.preparation import Preparation
from ds_hymotion.data.prepare import prepare


def builtin_corpus(
    folder: Path,
    clips: int,
    frames: tuple[int, int],
    split: tuple[float, float, float] = (1.0, 0.0, 0.0),
    seed: int = 0,
) -> Corpus:
    """``clips`` built-in motions of ``frames`` frames, shortest and longest, with hashed text features."""
    motions = folder / "motions"
    write_set(motions, generate_set(clips=clips, seed=seed, frames=frames))
    task = Preparation(
        motions / "amass",
        folder / "corpus",
        texts=motions / "texts",
        index=motions / "index.csv",
        actions_file=motions / "actions.json",
        split=split,
        encode_text="hashed",
        progress=False,
    )
    return Corpus.open(prepare(task, say=lambda _: None))

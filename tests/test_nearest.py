"""The table of nearest clips: clips without an action type are no hits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ds_hymotion.generation import Prompt
from ds_hymotion.reports.nearest import nearest_table
from tests.corpora import wavy_corpus


def test_only_known_types_are_counted(tmp_path: Path) -> None:
    corpus = wavy_corpus(tmp_path, [20, 24])
    motions = [corpus.motion(clip) for clip in corpus.samples]
    prompts = [Prompt("a", clip.frames, clip.id, clip.id) for clip in corpus.samples]
    assert "no clip has an action type" in nearest_table(prompts, motions, corpus)

    first, second = corpus.samples
    corpus.samples[:] = [replace(first, action="POSTURE"), replace(second, action="GESTURE")]
    assert "caption's type: 2 of 2" in nearest_table(prompts, motions, corpus)
    assert "caption's type: 0 of 2" in nearest_table(prompts, motions[::-1], corpus)

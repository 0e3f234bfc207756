"""Prompts: files of them, and those that a corpus gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_hymotion.data.actions.types import ActionTypes, samples_digest
from ds_hymotion.errors import UserError
from ds_hymotion.generation import Prompt, checked_prompts, corpus_prompts, read_prompts
from tests.corpora import wavy_corpus

PROMPT_FILES = [
    ("walk#12.5#x", ["line 1", "'12.5'", "120"]),
    ("walk\n#120#x", ["line 2", "no text"]),
    ("walk#" + "9" * 5000, ["line 1", "whole number"]),
    ("\n \n", ["no prompt"]),
]


@pytest.mark.parametrize(("content", "words"), PROMPT_FILES, ids=["fraction", "no text", "huge", "blank"])
def test_prompt_files(tmp_path: Path, content: str, words: list[str]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_prompts(path, 60)
    for word in words:
        assert word in str(caught.value)


def test_a_prompt_file_may_follow_other_prompts_and_start_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\ufeffa person walks\na person runs#90\na person waves#80#wave\n", encoding="utf-8")
    prompts = [Prompt("a person sits", 60, "0000"), *read_prompts(path, 60, 1)]
    assert [(p.text, p.frames, p.name) for p in checked_prompts(prompts, 360)] == [
        ("a person sits", 60, "0000"),
        ("a person walks", 60, "0001"),
        ("a person runs", 90, "0002"),
        ("a person waves", 80, "wave"),
    ]


def test_a_corpus_gives_prompts_that_the_network_can_sample(tmp_path: Path) -> None:
    corpus = wavy_corpus(tmp_path, [10, 30, 90])
    prompts = checked_prompts(corpus_prompts(corpus, 60), 60)
    assert sorted(prompt.frames for prompt in prompts) == [20, 30, 60]
    assert {prompt.clip for prompt in prompts} == {sample.id for sample in corpus.samples}


def test_with_experts_a_corpus_gives_the_types_it_was_sorted_into(tmp_path: Path) -> None:
    corpus = wavy_corpus(tmp_path, [30, 40])
    ActionTypes(("A", "B"), (1, 0), "labels", samples_digest(corpus.samples)).write(corpus.folder)
    assert [prompt.action for prompt in corpus_prompts(corpus, 60)] == [None, None]
    assert [prompt.action for prompt in corpus_prompts(corpus, 60, as_sorted=True)] == ["B", "A"]

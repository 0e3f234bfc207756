"""Captions encoded by launch/prepare.py: flags, summary, report, resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.qwen_clip import QwenClipEncoder
from ds_hymotion.text.sources import EncoderSources
from tests.commands import run_here
from tests.corpora import wavy_motion
from tests.tiny_text import tiny_sources

CAPTIONS = ["a person walks", ("a person jumps " * 60).strip(), "a person walks"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> EncoderSources:
    return tiny_sources(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def motions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("motions")
    for number, caption in enumerate(CAPTIONS):
        write_amass(folder / f"clip{number}.npz", wavy_motion(20, number))
        (folder / f"clip{number}.txt").write_text(caption + "\n")
    return folder


def flags(motions: Path, out: Path, sources: EncoderSources) -> list[str]:
    return [
        *("--data_dir", str(motions), "--out", str(out), "--workers", "1", "--split", "1", "0", "0"),
        *("--encode_text", "qwen_clip", "--qwen", sources.qwen, "--clip", sources.clip),
    ]


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_a_corpus_gets_the_released_features(
    motions: Path,
    sources: EncoderSources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    dtype: torch.dtype,
) -> None:
    given = [*flags(motions, tmp_path / "corpus", sources), "--system_prompt_file", str(sources.system_prompt_file)]
    given += ["--text_dtype", name, "--encoder_dtype", "fp32"]
    assert run_here("prepare.py", given, monkeypatch) == 0
    line = "2 distinct captions of 5 to 128 tokens, median 66.5; cut: 1 over 128 Qwen3 tokens, 1 over 77 CLIP tokens"
    said = capsys.readouterr().out
    assert f"text      qwen_clip ({str(dtype).removeprefix('torch.')}): {line}" in said
    corpus = Corpus.open(tmp_path / "corpus")
    cache = TextCache(corpus.text_cache_folder("qwen_clip"))
    assert cache.dtype == dtype and len(cache) == 2
    found, wanted = cache.lookup(CAPTIONS[:2]), QwenClipEncoder(sources).encode(CAPTIONS[:2])
    assert torch.equal(found.tokens, wanted.tokens.to(dtype).float())
    assert torch.equal(found.pooled, wanted.pooled.to(dtype).float())
    report = json.loads((tmp_path / "corpus" / "report.json").read_text())["text"]["qwen_clip"]
    assert report["tokens"] == {"min": 5, "median": 66.5, "max": 128}
    assert report["truncated"] == {"128 Qwen3 tokens": 1, "77 CLIP tokens": 1}
    assert report["made_with"]["encoder_dtype"] == "fp32"

    # Again: nothing is encoded, the line is still there.
    before = (tmp_path / "corpus" / "report.json").read_bytes()
    assert run_here("prepare.py", given, monkeypatch) == 0
    assert line in capsys.readouterr().out
    assert (tmp_path / "corpus" / "report.json").read_bytes() == before


def test_a_later_encoding_gives_the_same_corpus(
    motions: Path, sources: EncoderSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ["--system_prompt_file", str(sources.system_prompt_file)]
    assert run_here("prepare.py", [*flags(motions, tmp_path / "now", sources), *prompt], monkeypatch) == 0
    later = flags(motions, tmp_path / "later", sources)
    assert run_here("prepare.py", later[: later.index("--encode_text")], monkeypatch) == 0
    assert run_here("prepare.py", [*later, *prompt], monkeypatch) == 0
    for name in ("report.json", "text/qwen_clip/index.json", "text/qwen_clip/text-00000.safetensors"):
        assert (tmp_path / "later" / name).read_bytes() == (tmp_path / "now" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "neither is given"),
        (["--release_dir", "{folder}"], "no Python file defines"),
        (["--system_prompt_file", "{folder}/prompt.txt", "--text_dtype", "int8"], "--text_dtype int8 is not legal"),
        (["--system_prompt_file", "{folder}/prompt.txt", "--encoder_dtype", "int8"], "encoder_dtype 'int8' is not one"),
        (["--system_prompt_file", "{folder}/prompt.txt", "--qwen", "{folder}"], "--qwen {folder} cannot be loaded"),
        (["--system_prompt_file", "{folder}/prompt.txt", "--encode_text", "hashed"], "is for --encode_text qwen_clip"),
    ],
)
def test_mistakes_are_named_before_any_motion_is_read(
    motions: Path,
    sources: EncoderSources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
) -> None:
    (tmp_path / "prompt.txt").write_text("Say it.")
    given = [*flags(motions, tmp_path / "corpus", sources), *(part.format(folder=tmp_path) for part in more)]
    assert run_here("prepare.py", given, monkeypatch) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert words.format(folder=tmp_path) in said[-1]
    assert not (tmp_path / "corpus").exists()

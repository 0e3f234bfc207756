"""What a person gets wrong on the command line: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ds_hymotion.data.corpus import Corpus
from tests.commands import run_command, run_here
from tests.corpora import wavy_corpus
from tests.runs import run_settings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 30])


CASES = [
    ("--data_dir none", ["none", "launch/prepare.py"]),
    ("--data_dir EMPTY", ["corpus.json", "launch/prepare.py"]),
    ("--data_dir=", ["--data_dir is missing"]),
    ("--deepspeed_config none.json", ["none.json", "no such file", "ds_configs/cpu_tiny.json"]),
    ("--deepspeed_config=", ["--deepspeed_config is missing"]),
    ("--preset huge", ["'huge'", "hy-motion-1.0", "tiny"]),
    ("--preset hy-motion-1.0", ["128 wide per token", "4096", "ctxt_input_dim"]),
    ("--max_steps 0", ["max_steps = 0"]),
    ("--max_steps few", ["--max_steps", "'few'"]),
    ("--learning_rat 1", ["--learning_rat", "legal flags", "--learning_rate"]),
    ("--text_encoder qwen", ["qwen", "--encode_text"]),
    ("--resume nowhere", ["--resume nowhere", "no checkpoint"]),
    ("--output_dir=", ["--output_dir is missing"]),
]


@pytest.mark.parametrize(("change", "words"), CASES, ids=[change for change, _ in CASES])
def test_training_flags(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: str,
    words: list[str],
) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps(run_settings(hymotion__model={"preset": "tiny"})))
    (tmp_path / "empty").mkdir()
    flags = {"--deepspeed_config": str(config), "--data_dir": str(corpus.folder), "--output_dir": str(tmp_path / "run")}
    arguments = [part for pair in flags.items() for part in pair] + change.replace(
        "EMPTY", str(tmp_path / "empty")
    ).split()
    assert run_here("train.py", arguments, monkeypatch) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message and message.startswith("error: ")
    for word in words:
        assert word in message
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_not_overwritten(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps(run_settings()))
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    arguments = [
        "--deepspeed_config",
        str(config),
        "--data_dir",
        str(corpus.folder),
        "--output_dir",
        str(tmp_path / "run"),
    ]
    assert run_here("train.py", arguments, monkeypatch) == 2
    assert "holds checkpoints; continue with --resume" in capsys.readouterr().err


SAMPLING = [
    ("", ["--model is missing"]),
    ("--model none --prompt walk", ["--out is missing"]),
    ("--model none --out OUT", ["no prompts"]),
    ("--model none --out OUT --prompt walk", ["none", "no such run folder"]),
    ("--model none --out OUT --prompts none.txt", ["none.txt", "text#frames#id"]),
    ("--model none --out OUT --prompt walk --formats fbx", ["'fbx'", "npz"]),
]


@pytest.mark.parametrize(("given", "words"), SAMPLING, ids=[given for given, _ in SAMPLING])
def test_sampling_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, words: list[str]
) -> None:
    assert run_here("sample.py", given.replace("OUT", str(tmp_path / "out")).split(), monkeypatch) == 2
    message = capsys.readouterr().err.strip()
    assert message.count("error: ") == 1
    for word in words:
        assert word in message


def test_a_mistake_ends_the_process_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    done = run_command(
        [
            sys.executable,
            "launch/train.py",
            "--deepspeed_config",
            "none.json",
            "--data_dir",
            "x",
            "--output_dir",
            str(tmp_path / "run"),
        ],
        tmp_path,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "none.json: no such file" in done.stderr

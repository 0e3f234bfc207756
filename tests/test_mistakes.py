"""What a person gets wrong on the command line: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.deepspeed_check import check_with_deepspeed
from ds_hymotion.parallel.engine_settings import engine_settings
from ds_hymotion.parallel.mesh import Mesh
from tests.commands import run_command, run_here
from tests.corpora import wavy_corpus
from tests.ranks import RankPool
from tests.runs import run_settings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 30])


CASES = [
    ("--data_dir none", ["none", "launch/prepare.py"]),
    ("--data_dir EMPTY", ["corpus.json", "launch/prepare.py"]),
    ("--data_dir=", ["--data_dir is missing"]),
    ("--deepspeed_config none.json", ["none.json", "no such file", "ds_configs/cpu_tiny.json"]),
    ("--preset huge", ["'huge'", "hy-motion-1.0", "tiny"]),
    ("--preset hy-motion-1.0", ["128 wide per token", "4096", "--encode_text qwen_clip"]),
    ("--max_steps 0", ["max_steps = 0"]),
    ("--max_steps few", ["--max_steps", "'few'"]),
    ("--learning_rat 1", ["--learning_rat", "did you mean --learning_rate?", "legal flags"]),
    ("--text_encoder qwen", ["text/qwen", "--encode_text hashed or qwen_clip"]),
    ("--learning_rate 1e38", ["optimizer.params.lr = 1e+38", "1e-4"]),
    ("--resume nowhere", ["--resume nowhere", "no checkpoint"]),
    ("--experts 2 --expert_names A B", ["no action type", "launch/prepare.py --out CORPUS --actions"]),
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
    ("--model none --out OUT --prompt walk --batch 0", ["--batch 0", "at least 1"]),
    ("--model none --out OUT --prompt walk --guidance nan", ["--guidance nan", "finite"]),
    ("--model OUT --out x --prompt walk", ["no intact checkpoint", "a run that has saved one"]),
]


@pytest.mark.parametrize(("given", "words"), SAMPLING, ids=[given for given, _ in SAMPLING])
def test_sampling_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, words: list[str]
) -> None:
    (tmp_path / "out").mkdir()
    assert run_here("sample.py", given.replace("OUT", str(tmp_path / "out")).split(), monkeypatch) == 2
    message = capsys.readouterr().err.strip()
    assert message.count("error: ") == 1
    for word in words:
        assert word in message


DEEPSPEED = [
    ({"zero_optimization": {"stage": 1, "overlap": True}}, ["DeepSpeed refuses", "overlap = True"]),
    ({"communication_data_type": "int3"}, ["DeepSpeed refuses", "int3"]),
    ({"wandb": {"enabled": True}}, ["wandb.enabled = true", "pip install wandb"]),
    ({"tensorboard": {"enabled": True, "output_path": "FILE/x"}}, ["tensorboard.output_path", "writable folder"]),
]


@pytest.mark.parametrize(("given", "words"), DEEPSPEED, ids=[str(given)[:40] for given, _ in DEEPSPEED])
def test_what_deepspeed_refuses_is_one_line(
    ranks: RankPool, tmp_path: Path, given: dict[str, Any], words: list[str]
) -> None:
    (tmp_path / "file").touch()
    settings = {**run_settings(), **given}
    text = json.dumps(settings).replace("FILE", str(tmp_path / "file"))
    problems = ranks.run(2, deepspeed_problem, json.loads(text))
    assert problems[0] == problems[1]
    for word in words:
        assert word in problems[0]


def deepspeed_problem(settings: dict[str, Any]) -> str:
    mesh = Mesh.current()
    config = RunConfig(settings, "run.json", ranks=mesh.data_size)
    try:
        check_with_deepspeed(engine_settings(config, mesh), config.name, mesh)
    except UserError as error:
        return str(error)
    return ""


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

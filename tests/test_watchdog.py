"""A run that stands still ends by itself, and says which rank keeps the others waiting."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.training import watchdog
from ds_hymotion.training.stall import behind, doing, report, verdict
from ds_hymotion.training.watchdog import STALLED
from tests.commands import cpu_environment, run_command
from tests.conftest import ROOT
from tests.corpora import wavy_corpus
from tests.ranks import free_port
from tests.runs import run_settings

LIMIT_S = 4.0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34])


def run_stalled(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch, stall: str, launcher: list[str], **changes: Any
) -> tuple[int, str, float]:
    """Exit code, output and duration of a run in which a rank sleeps."""
    command = [*launcher, *stalling_flags(corpus, folder, monkeypatch, stall, **changes)]
    started = time.monotonic()
    done = run_command(command, folder)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - started


def stalling_flags(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch, stall: str, **changes: Any
) -> list[str]:
    """The script and its flags; the environment tells it where to stall."""
    config = folder / "run.json"
    settings = run_settings(hymotion__watchdog_s=LIMIT_S, hymotion__training__max_steps=50, **changes)
    config.write_text(json.dumps(settings))
    monkeypatch.setenv("STALL", stall)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    flags = ["--deepspeed_config", str(config), "--data_dir", str(corpus.folder), "--output_dir", str(folder / "run")]
    return ["tests/stalling_train.py", *flags]


def deepspeed() -> list[str]:
    return ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port())]


def test_a_sleeping_rank_is_named_and_the_launcher_fails(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said, seconds = run_stalled(corpus, tmp_path, monkeypatch, "1:5:step", deepspeed())
    assert code != 0 and seconds < 120, said
    assert said.count("watchdog: no progress for") == 1
    silent = float(re.search(r"no progress for (\d+) s", said)[1])  # type: ignore[index]
    assert LIMIT_S <= silent + 0.5 <= LIMIT_S + 10
    first, second = re.findall(r"^  rank \d.*\n.*\n.*$", said, re.MULTILINE)
    assert "rank 0 (stage 0, data rank 0, tensor rank 0): step 5, " in first and "micro-batch 1 of 1 begun" in first
    assert re.search(r"waits in all_reduce of \[\d+\] float32 over ranks 0,1", first)
    assert re.search(r"inputs of its micro-batch: motion \[2, \d\d, 219\], noise \[2, \d\d, 219\]", first)
    assert "rank 1 (stage 0, data rank 1, tensor rank 0): step 5" in second and "in no collective; the last" in second
    assert "tests/stalling_train.py" in said
    assert "watchdog: rank 1 (stage 0, data rank 1, tensor rank 0) is in no collective, the others wait for it" in said
    assert f"all ranks end with code {STALLED}" in said


def test_the_others_end_where_the_stores_host_is_frozen(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of its store returns then, and rank 1 ends by the clock alone."""
    flags = stalling_flags(corpus, tmp_path, monkeypatch, "0:3:frozen")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, *flags],
            cwd=ROOT,
            env={**cpu_environment(tmp_path), **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        _, said = ranks[1].communicate(timeout=120)
        assert ranks[1].returncode == STALLED, said
        assert "watchdog: rank 1 (stage 0, data rank 1, tensor rank 0) is in" in said
        assert "rank 1 (stage 0, data rank 1, tensor rank 0): step 3, " in said and "waits in all_reduce" in said
        assert ranks[0].poll() is None
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_store_that_fails_once_disarms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TALK_S", 0.2)
    ended = threading.Event()

    class Failing:
        def check(self, *_: object) -> bool:
            raise RuntimeError("Connection reset by peer")

        set = check

    monkeypatch.setattr(watchdog, "_store", lambda *_: Failing())
    guard = watchdog.Watchdog(SimpleEngine(), 0.05, lambda code: code == STALLED and ended.set())  # type: ignore[arg-type]
    with guard:
        guard.beat(1)
        assert ended.wait(10)
    assert not any(thread.is_alive() for thread in guard._threads)


class SimpleEngine:
    """What a watchdog asks of an engine."""

    mesh = SimpleNamespace(world=2, rank=1, pipe_rank=0, data_rank=1, model_rank=0)
    called_modules = (torch.nn.Identity(),)
    accumulation = 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("stall", "changes", "words"),
    [
        ("0:5:step", {}, ["watchdog: rank 0 (stage 0, data rank 0, tensor rank 0) is in no collective"]),
        ("1:5:data", {}, ["rank 1 (stage 0, data rank 1", "waiting for its next batch"]),
        (
            "1:5:step",
            {"hymotion__parallel__pipeline": 2, "zero_optimization": {"stage": 1}},
            [
                "watchdog: rank 1 (stage 1, data rank 0, tensor rank 0) is in no collective",
                "step 5, sending to another stage",
                "waits in send of ",
            ],
        ),
        (
            "1:3:step",
            {"hymotion__parallel__model": 2, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
            ["watchdog: rank 1 (stage 0, data rank 0, tensor rank 1) is in no collective"],
        ),
    ],
)
def test_other_stalls_under_torchrun(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stall: str,
    changes: dict[str, Any],
    words: list[str],
) -> None:
    torchrun = ["torchrun", "--nproc_per_node=2", f"--master_port={free_port()}"]
    code, said, _ = run_stalled(corpus, tmp_path, monkeypatch, stall, torchrun, **changes)
    assert code != 0
    for word in words:
        assert word in said, said


@pytest.mark.full
def test_one_process_alone(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, _ = run_stalled(corpus, tmp_path, monkeypatch, "0:2:step", [sys.executable])
    assert code == STALLED, said
    assert "watchdog: rank 0 (stage 0, data rank 0, tensor rank 0) is between" in said


def state(inside: bool, **counts: int) -> dict[str, Any]:
    """What a rank says of itself; ``counts`` by group, such as r01=3."""
    counted = {",".join(group[1:]): count for group, count in counts.items()}
    return {"place": "stage 0", "doing": "in a forward pass", "collective": {"inside": inside, "counts": counted}}


def test_verdicts() -> None:
    """Of calls that return at once, as NCCL's do, the counts tell who is late."""
    assert verdict({0: state(True), 1: None}).startswith("rank 1 does not answer")
    assert verdict({0: state(True), 1: state(False)}).startswith("rank 1 (stage 0) is in no collective")
    waiting = {0: state(True, r012=3), 1: state(False, r012=3), 2: state(False, r012=2)}
    assert verdict(waiting).startswith("rank 2 (stage 0) is in no collective")
    late = {
        0: state(False, r01=7, r02=3),
        1: state(False, r01=7),
        2: state(False, r02=2, r23=1),
        3: state(False, r23=1),
    }
    assert verdict(late).startswith("rank 2 (stage 0) has called fewer collectives")
    assert verdict({0: state(True, r01=3), 1: state(True, r01=3)}).startswith("every rank waits")
    assert verdict({0: state(False, r01=3), 1: state(False, r01=3)}).startswith("no rank waits")
    assert verdict({0: state(False)}) == "rank 0 (stage 0) is in a forward pass"
    assert behind({0: {"0,1": 3}, 1: {}}) == [1]


def test_what_a_thread_is_doing_is_read_from_its_calls() -> None:
    def backward() -> tuple[str, list[str]]:
        return doing(sys._getframe())

    words, calls = backward()
    assert words == "in a backward pass" and calls[0].startswith("tests/test_watchdog.py:") and len(calls) == 5
    assert doing(None) == ("between two operations", [])
    full = {**state(True), "step": 3, "micro_batch": 0, "shapes": "", "calls": calls, "silent_s": 9.0}
    full["collective"] |= {"name": "barrier", "message": "", "ranks": [0, 1], "seconds": 8.0}
    said = report({0: full, 1: None}, 5)
    assert "waits in barrier of objects over ranks 0,1, called 8 s ago" in said and "rank 1: no answer" in said

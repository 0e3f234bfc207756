"""The same script under DeepSpeed's launcher, torchrun and plain python; a signal saves and ends the run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ds_hymotion.data.corpus import Corpus
from tests.commands import ROOT, cpu_environment, run_command
from tests.corpora import wavy_corpus
from tests.ranks import free_port
from tests.runs import logged, run_settings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34, 40, 44])


def flags(corpus: Corpus, config: Path, run: Path, steps: int) -> list[str]:
    return ["launch/train.py", "--deepspeed", "--deepspeed_config", str(config), "--data_dir", str(corpus.folder),
            "--output_dir", str(run), "--max_steps", str(steps)]  # fmt: skip


def test_three_launchers_and_a_signal(corpus: Corpus, tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    monitor = {"enabled": True, "output_path": str(tmp_path / "monitor"), "job_name": "run"}
    config.write_text(
        json.dumps(run_settings(zero_optimization={"stage": 1}, csv_monitor=monitor, tensorboard=monitor))
    )

    done = run_command([sys.executable, *flags(corpus, config, tmp_path / "python", 3)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(logged(tmp_path / "python")) == 3
    assert (tmp_path / "python" / "weights.safetensors").is_file()
    assert (tmp_path / "python" / "loss.png").read_bytes().startswith(b"\x89PNG")
    curve = tmp_path / "monitor" / "run" / "Train_loss.csv"
    assert len(curve.read_text().splitlines()) == 4
    assert list((tmp_path / "monitor" / "run").glob("events.out.tfevents.*"))

    torchrun = ["torchrun", "--nproc_per_node=2", f"--master_port={free_port()}"]
    done = run_command([*torchrun, *flags(corpus, config, tmp_path / "torchrun", 3)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert logged(tmp_path / "torchrun") == pytest.approx(logged(tmp_path / "python"), rel=1e-5)

    run = tmp_path / "deepspeed"
    command = ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), *flags(corpus, config, run, 100000)]
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=cpu_environment(tmp_path), stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 200
        while not (run / "log.jsonl").is_file() or len(logged(run)) < 5:
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    finally:
        process.kill()
    deadline = time.monotonic() + 30
    # The ranks outlive the command that was ended, and say this last.
    while "stopped on request" not in (tmp_path / "output.txt").read_text():
        assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
        time.sleep(0.2)
    step = int((run / "checkpoints" / "latest").read_text().strip().removeprefix("step-"))
    assert 5 <= step < 100000
    assert f"stopped on request at step {step}" in (tmp_path / "output.txt").read_text()

    done = run_command([sys.executable, *flags(corpus, config, run, step + 2), "--resume"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(logged(run)) == step + 2

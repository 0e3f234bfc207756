"""A pipeline under DeepSpeed's launcher: it trains, ends when a rank is killed, and resumes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.commands import ROOT, cpu_environment, run_command
from tests.corpora import wavy_corpus
from tests.ranks import free_port
from tests.runs import logged, run_settings


@pytest.mark.full
@pytest.mark.parametrize("mode", ["layers", "temporal"])
def test_a_killed_rank_ends_the_launcher_and_the_run_resumes(tmp_path: Path, mode: str) -> None:
    corpus = wavy_corpus(tmp_path / "wavy", [20, 23, 31, 34, 40, 44])
    config, run = tmp_path / "run.json", tmp_path / "run"
    config.write_text(json.dumps(run_settings(zero_optimization={"stage": 1}, hymotion__training__save_steps=3)))

    def command(steps: int) -> list[str]:
        return ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), "launch/train.py",
                "--deepspeed_config", str(config), "--data_dir", str(corpus.folder), "--output_dir", str(run),
                "--pipeline_stages", "2", "--pipeline_mode", mode, "--gradient_accumulation_steps", "2",
                "--max_steps", str(steps), "--resume"]  # fmt: skip

    text = tmp_path / "output.txt"
    with text.open("w") as output:
        launcher = subprocess.Popen(
            command(100000), cwd=ROOT, env=cpu_environment(tmp_path), stdout=output, stderr=output
        )
    deadline = time.monotonic() + 120
    try:
        while not (run / "checkpoints" / "latest").is_file():
            assert launcher.poll() is None and time.monotonic() < deadline, text.read_text()
            time.sleep(0.2)
        family = psutil.Process(launcher.pid).children(recursive=True)
        ranks = [process for process in family if "--local_rank=1" in process.cmdline()]
        assert len(ranks) == 1
        ranks[0].send_signal(signal.SIGKILL)
        assert launcher.wait(60) != 0, text.read_text()
        assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    finally:
        launcher.kill()
    assert "2 pipeline stages" in text.read_text()

    step = int((run / "checkpoints" / "latest").read_text().strip().removeprefix("step-"))
    done = run_command(command(step + 2), tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(logged(run)) == step + 2
    assert (run / "weights.safetensors").is_file()

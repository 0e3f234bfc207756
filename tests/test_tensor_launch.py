"""Tensor parallelism from the command line: it trains, its run can be sampled, and mistakes end before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.distributed as dist

from ds_hymotion.data.corpus import Corpus
from tests.commands import run_command, run_here
from tests.corpora import wavy_corpus
from tests.ranks import free_port
from tests.runs import logged, run_settings

GROUPS = "hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34])


def flags(corpus: Corpus, folder: Path) -> list[str]:
    config = folder / "run.json"
    config.write_text(json.dumps(run_settings(zero_optimization={"stage": 1})))
    return ["--deepspeed_config", str(config), "--data_dir", str(corpus.folder), "--output_dir", str(folder / "run")]


def test_the_launcher_trains_and_one_process_samples(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port()), "launch/train.py", "--deepspeed"]
    cut = ["--tensor_parallel_size", "2", "--joint_groups", GROUPS, "--joint_update_every", "1", "1", "2"]
    done = run_command([*launcher, *flags(corpus, tmp_path), *cut, "--max_steps", "3"], tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert len(logged(run)) == 3 and all(value > 0 for value in logged(run, "loss_fm_joint_elbow_wrist_neck_spine"))
    assert "motion head: 75 (hip_knee_ankle_shoulder) + 144 (elbow_wrist_neck_spine+others) channels" in done.stdout
    assert "memory per rank, MB: 0: " in done.stdout and "; 1: " in done.stdout
    words = ["--model", str(run), "--prompt", "a motion", "--frames", "20", "--steps", "2", "--formats", "npz"]
    assert run_here("sample.py", [*words, "--out", str(tmp_path / "samples")], monkeypatch) == 0
    assert (tmp_path / "samples" / "0000.npz").stat().st_size > 1000


@pytest.mark.parametrize(
    ("world", "change", "words"),
    [
        (1, "--tensor_parallel_size 2", ["hymotion.parallel.model = 2", "1 process(es)", "deepspeed --num_gpus 2"]),
        (6, "--tensor_parallel_size 4", ["hymotion.parallel.model = 4", "6 process(es)", "a multiple of 4"]),
        (4, "--tensor_parallel_size 4", ["hymotion.parallel.model = 4", "2 heads", "use one of 1, 2"]),
        (2, "--tensor_parallel_size 2 --joint_groups others", ["1 group(s) for 2 tensor ranks", "such as pelvis,hip"]),
        (1, "--joint_groups hip,toe:others", ["'toe'", "legal are hip"]),
        (1, "--joint_groups hip,left_hip:others", ["left_hip is in 'hip' and 'left_hip'"]),
        (1, "--joint_loss_weights 1 2", ["joint_loss_weights has 2 value(s) for 3 joint groups"]),
        (1, "--joint_update_every 1 0 1", ["joint_update_every.1 = 0", "greater than or equal to 1"]),
    ],
)
def test_mistakes_end_before_a_process_group_starts(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    world: int,
    change: str,
    words: list[str],
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(world))
    arguments = flags(corpus, tmp_path)
    config = json.loads((tmp_path / "run.json").read_text())
    del config["train_batch_size"], config["hymotion"]["training"]["joint_groups"]
    (tmp_path / "run.json").write_text(json.dumps(config))
    assert run_here("train.py", [*arguments, *change.split()], monkeypatch) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message and message.startswith("error: ")
    for word in words:
        assert word in message
    assert not dist.is_initialized() and not (tmp_path / "run").exists()

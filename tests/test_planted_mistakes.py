"""Thirty mistakes in files and flags: each one line with key, value and a legal value, before any process group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ds_hymotion.config.json_files import set_by_path
from ds_hymotion.data.corpus import Corpus
from tests.commands import run_here
from tests.corpora import wavy_corpus
from tests.runs import run_settings

CPU = {"device": "cpu"}
ZERO = "zero_optimization"
TWENTY_HEADS = {"preset": "tiny", "feat_dim": 80, "num_heads": 20, "num_layers": 3}

# Processes, values by JSON key (__ for dots), flags, words of the message.
PLANTED: list[tuple[int, dict[str, Any], str, list[str]]] = [
    # Misspelt keys at every level.
    (1, {"gradient_cliping": 1.0}, "", ["gradient_cliping = 1.0", "did you mean gradient_clipping?"]),
    (1, {"zero_optimization__stge": 1}, "", ["zero_optimization.stge = 1", "did you mean stage?"]),
    (1, {ZERO: {"stage": 2, "offload_param": {"devise": 1}}}, "", ["offload_param.devise = 1", "did you mean device?"]),
    (1, {"optimizer__param": {}}, "", ["optimizer.param = {}", "did you mean optimizer.params?"]),
    (1, {"optimizer__params__weight_deacy": 0}, "", ["weight_deacy = 0", "optimizer.params.weight_decay?"]),
    (1, {"tensorboard__enable": True}, "", ["tensorboard.enable = True", "did you mean enabled?"]),
    (1, {"hymotoin": {}}, "", ["hymotoin = {}", "did you mean hymotion?"]),
    (1, {"hymotion__watchdog": 3}, "", ["hymotion.watchdog = 3", "did you mean watchdog_s?"]),
    (1, {"hymotion__training__warm_up_steps": 3}, "", ["warm_up_steps = 3", "did you mean warmup_steps?"]),
    (1, {"hymotion__data__mix": [{"corpus": "a", "wieght": 1}]}, "", ["mix.0.wieght = 1", "did you mean weight?"]),
    (1, {}, "--tensor_paralel_size 2", ["--tensor_paralel_size", "did you mean --tensor_parallel_size?"]),
    # Illegal values.
    (1, {"zero_optimization__stage": "one"}, "", ["stage = 'one'", "0, 1, 2, 3"]),
    (1, {"communication_data_type": "int3"}, "", ["DeepSpeed refuses", "int3"]),
    (1, {"optimizer__type": "Sophia"}, "", ["optimizer.type = 'Sophia'", "AdamW"]),
    (1, {"hymotion__flow__time": "beta"}, "", ["hymotion.flow.time = 'beta'", "'uniform'"]),
    (1, {"hymotion__watchdog_s": -1}, "", ["hymotion.watchdog_s = -1", "greater than or equal to 0"]),
    (1, {"hymotion__model__num_layers": 4}, "", ["num_layers = 4", "divisible by 3, such as 3"]),
    (1, {}, "--joint_groups hip,tail:others", ["'tail'", "legal are hip"]),
    (1, {}, "--joint_groups hip,knee", ["no group takes pelvis", "add them, or others"]),
    (1, {}, "--max_steps 1.5", ["--max_steps", "'1.5'"]),
    # Illegal combinations.
    (2, {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2}, "", ["train_batch_size = 6", "= 4", "leave"]),
    (1, {"zero_optimization__stage": 1}, "--fp16 --bf16", ["are both true; enable one of them"]),
    (1, {}, "--fp16", ["fp16.enabled = true with zero_optimization.stage = 0", "use zero_optimization.stage 1"]),
    (2, {"zero_optimization__stage": 3}, "--pipeline_stages 2", ["pipeline = 2", "stage 0 or 1, not 3; use 1"]),
    (2, {"zero_optimization__stage": 3}, "--tensor_parallel_size 2", ["model = 2", "stage = 3; use stage 1"]),
    (1, {"zero_optimization__stage": 3}, "--sync_others_every 2", ["others_every = 2", "stage = 3"]),
    (1, {"zero_optimization__stage": 3}, "--joint_update_every 1 2", ["joint_update_every = [1, 2]", "stage = 3"]),
    (1, {ZERO: {"stage": 2, "offload_param": CPU}}, "", ["offload_param has no effect", "stage = 2; use stage 3"]),
    (1, {ZERO: {"offload_optimizer": CPU}}, "", ["offload_optimizer has no effect", "stage = 0; use stage 2 or 3"]),
    (1, {ZERO: {"stage": 2, "offload_optimizer": {"device": "disk"}}}, "", ["device = 'disk'", "none, cpu, nvme"]),
    (1, {ZERO: {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "", ['device = "nvme"', 'use "cpu"']),
    (8, {"hymotion__model": TWENTY_HEADS}, "--tensor_parallel_size 8", ["model = 8", "20 heads", "1, 2, 4, 5"]),
    (3, {}, "--tensor_parallel_size 2", ["hymotion.parallel.model = 2", "3 process(es)", "a multiple of 2"]),
    (1, {"hymotion__text__encoder": "null"}, "", ["encoder = null", "condition_drop = 1, not 0.5", "--unconditional"]),
    (1, {}, "--model_name no-such-model", ["--model_name no-such-model", "tencent/HY-Motion-1.0"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 30])


@pytest.mark.parametrize(
    ("world", "changes", "flags", "words"), PLANTED, ids=[f"{flags}{changes}"[:60] for _, changes, flags, _ in PLANTED]
)
def test_planted(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    world: int,
    changes: dict[str, Any],
    flags: str,
    words: list[str],
) -> None:
    settings = run_settings()
    del settings["train_batch_size"], settings["hymotion"]["training"]["joint_groups"]
    for key, value in changes.items():
        set_by_path(settings, key.replace("__", "."), value)
    config, run = tmp_path / "run.json", tmp_path / "run"
    config.write_text(json.dumps(settings))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    given = ["--deepspeed_config", str(config), "--data_dir", str(corpus.folder), "--output_dir", str(run)]
    assert run_here("train.py", [*given, *flags.split()], monkeypatch) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message and message.startswith("error: ")
    for word in words:
        assert word in message
    assert not dist.is_initialized() and not run.exists()

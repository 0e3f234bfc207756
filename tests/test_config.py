"""The checked configuration: every mistake is one line with the key, the value and a legal value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ds_hymotion.arguments import TrainArguments, parse_flags
from ds_hymotion.config.json_files import read_json
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.errors import UserError
from tests.conftest import ROOT


def test_defaults_and_overrides() -> None:
    config = RunConfig(
        {"hymotion": {"training": {"max_steps": 7}}},
        overrides={"hymotion.training.seed": 3, "optimizer.params.lr": 0.5, "hymotion.model.preset": None},
    )
    assert config.hymotion.training.max_steps == 7
    assert config.hymotion.training.seed == 3
    assert config.hymotion.model.preset == "tiny"
    assert config.deepspeed["optimizer"]["params"]["lr"] == 0.5
    assert config.dtype == "fp32"


@pytest.mark.parametrize(
    ("given", "ranks", "triple"),
    [
        ({}, 2, (2, 1, 1)),
        ({"train_batch_size": 8}, 2, (8, 4, 1)),
        ({"train_batch_size": 8, "gradient_accumulation_steps": 2}, 2, (8, 2, 2)),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, 4, (24, 3, 2)),
        ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}, 1, (8, 2, 4)),
    ],
)
def test_batch_triple(given: dict[str, int], ranks: int, triple: tuple[int, int, int]) -> None:
    settings = RunConfig(given, ranks=ranks).deepspeed
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(settings[key] for key in keys) == triple


MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({"train_batchsize": 4}, ["train_batchsize", "did you mean train_batch_size"]),
    ({"zero_optimisation": {"stage": 1}}, ["zero_optimisation", "did you mean zero_optimization"]),
    ({"zero_optimization": {"stage": 4}}, ["stage = 4", "0, 1, 2, 3"]),
    ({"activation_checkpointing": {}}, ["activation_checkpointing", "hymotion.model.checkpoint_blocks"]),
    ({"bf16": {"bf16_optimizer_states": True}}, ["bf16.bf16_optimizer_states", "fp32"]),
    ({"zero_optimization": {"stage": 1, "overlap_comm": "True"}}, ["overlap_comm", "use true without"]),
    ({"zero_optimization": {"stage": 1, "overlap_comm": "auto"}}, ['overlap_comm = "auto"', "leave it out"]),
    ({"bf16": {"enabled": "no"}}, ["bf16.enabled = 'no'", "true or false"]),
    ({"data_types": {"grad_accum_dtype": "fp8"}}, ["grad_accum_dtype = 'fp8'", "fp32"]),
    ({"gradient_clipping": "much"}, ["gradient_clipping = 'much'", "such as 1.0"]),
    ({"gradient_clipping": -1}, ["gradient_clipping = -1", "from 0"]),
    ({"optimizer": {"type": ["AdamW"]}}, ["optimizer.type = ['AdamW']", "SGD"]),
    ({"hymotion": {"data": {"bucket_bounds": []}}}, ["bucket_bounds = []", "at least 1"]),
    ({"hymotion": {"data": {"bucket_bounds": [300, 60]}}}, ["bucket_bounds = [300, 60]", "above the one before"]),
    ({"hymotion": {"data": {"bucket_bounds": [-5]}}}, ["bucket_bounds.0 = -5", "equal to 1"]),
    ({"optimizer": {"params": [1]}}, ["optimizer.params = [1]", "object"]),
    ({"optimizer": {"params": {"bettas": [0.9, 0.99]}}}, ["bettas", "did you mean optimizer.params.betas"]),
    ({"optimizer": {"params": {"betas": [0.9]}}}, ["'betas': [0.9]"]),
    ({"optimizer": {"params": {"weight_decay": "x"}}}, ["'weight_decay': 'x'"]),
    ({"zero_optimization": {"stage": 1, "cpu_offload": True}}, ["zero_optimization.cpu_offload", "offload_optimizer"]),
    ({"optimizer": {"params": {"lr": float("inf")}}}, ["lr = inf", "1e-4"]),
    ({"pipeline": {"stage": 2}}, ["key pipeline", "hymotion.parallel.pipeline"]),
    ({"fp16": {"enable": True}}, ["fp16.enable", "did you mean fp16.enabled"]),
    ({"fp16": {"enabled": True, "loss_scale": 128}}, ["fp16.loss_scale = 128", "use 0"]),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["both true"]),
    ({"fp16": {"enabled": True}}, ["fp16.enabled", "stage 1"]),
    ({"bf16": {"enabled": True}}, ["bf16.enabled", "stage 1"]),
    ({"scheduler": {"type": "WarmupLR"}}, ["scheduler", "hymotion.training.schedule"]),
    ({"tensor_parallel": {"autotp_size": 2}}, ["tensor_parallel", "AutoTP"]),
    ({"optimizer": {"type": "Lion"}}, ["'Lion'", "AdamW"]),
    ({"optimizer": {"type": "AdamW", "params": {"lr": "fast"}}}, ["'fast'", "1e-4"]),
    ({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}, ["train_batch_size = 7"]),
    ({"gradient_accumulation_steps": 0}, ["gradient_accumulation_steps = 0", "from 1"]),
    ({"hymotion": {"modle": {}}}, ["hymotion.modle", "did you mean model"]),
    ({"hymotion": {"model": {"presett": "tiny"}}}, ["hymotion.model.presett", "did you mean preset"]),
    ({"hymotion": {"training": {"max_steps": 0}}}, ["hymotion.training.max_steps = 0", "1"]),
    ({"hymotion": {"training": {"max_steps": "many"}}}, ["'many'", "integer"]),
    ({"hymotion": {"flow": {"loss": "l1"}}}, ["'l1'", "'mse' or 'smooth_l1'"]),
    ({"hymotion": {"flow": {"condition_drop": 1.5}}}, ["1.5", "less than or equal to 1"]),
    ({"hymotion": {"evaluation": {"times": [2.0]}}}, ["holds 2.0", "0..1"]),
    ({"hymotion": {"data": {"bucket_lr_factors": [1.0]}}}, ["bucket_lr_factors", "6 buckets"]),
    ({"hymotion": {"data": {"bucket_lr_factors": [-1.0] * 6}}}, ["bucket_lr_factors.0 = -1", "equal to 0"]),
    ({"hymotion": {"data": {"length_jitter": float("inf")}}}, ["length_jitter = inf", "finite"]),
    ({"hymotion": {"training": {"joint_loss_weights": [float("inf")]}}}, ["joint_loss_weights.0 = inf", "finite"]),
    ({"hymotion": {"watchdog_s": True}}, ["watchdog_s = True", "not legal", "600.0"]),
    ({"hymotion": {"evaluation": {"times": [True]}}}, ["times = [True]", "not legal"]),
    ({"hymotion": 3}, ["hymotion = 3", "object"]),
    ({"hymotion": {"gradient_sync": {"others_every": 0}}}, ["others_every = 0", "1"]),
    ({"hymotion": {"gradient_sync": {"allways": []}}}, ["did you mean always"]),
    ({"hymotion": {"gradient_sync": {"always": []}}}, ["always", "at least 1"]),
]

SELECTIVE: list[tuple[dict[str, Any], str]] = [
    ({"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}, "fp16.enabled = true .* use bf16 or fp32"),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer .* leave it out"),
    ({"zero_optimization": {"stage": 2, "overlap_comm": True}}, "overlap_comm = true .* set it to false"),
    ({"zero_optimization": {"stage": 1, "contiguous_gradients": False}}, "contiguous_gradients = false"),
    ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, "stage = 2 .* use stage 1"),
    (
        {
            "zero_optimization": {"stage": 1},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "bf16"},
        },
        "grad_accum_dtype = 'bf16' .* use fp32",
    ),
]


@pytest.mark.parametrize(("given", "words"), SELECTIVE, ids=[words for _, words in SELECTIVE])
def test_selective_sync_refuses_what_it_is_not_proven_with(given: dict[str, Any], words: str) -> None:
    RunConfig(given, "run.json")
    with pytest.raises(UserError, match=f"^run.json: .*{words}.* or set others_every to 1$"):
        RunConfig({**given, "hymotion": {"gradient_sync": {"others_every": 2}}}, "run.json")


@pytest.mark.parametrize(("given", "words"), MISTAKES, ids=[str(given)[:50] for given, _ in MISTAKES])
def test_mistakes(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        RunConfig(given, "run.json")
    message = str(caught.value)
    assert message.startswith("run.json") and "\n" not in message
    for word in words:
        assert word in message


def test_the_shipped_file_is_legal() -> None:
    for path in sorted((ROOT / "ds_configs").glob("*.json")):
        assert RunConfig.load(path).hymotion.training.max_steps > 0


@pytest.mark.parametrize(("content", "word"), [("{", "line 1"), ("[]", "object"), (b"\xff\xfe", "cannot be read")])
def test_unreadable_files(tmp_path: Path, content: str | bytes, word: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=word):
        read_json(path)
    with pytest.raises(UserError, match="no such file"):
        read_json(tmp_path / "none.json")


def test_flags() -> None:
    given = (
        "--deepspeed --deepspeed_config a.json --data_dir C --output_dir R --local_rank=1 --learning_rate 1e-5 --resume"
    )
    arguments = parse_flags(TrainArguments, given.split())
    assert arguments.deepspeed and arguments.resume == "auto"
    assert arguments.overrides()["optimizer.params.lr"] == 1e-5
    assert arguments.overrides()["hymotion.training.max_steps"] is None
    for name in ("allow_fps", "allow_other_data"):
        given_flags = parse_flags(TrainArguments, [f"--{name}", "--seed", "3"])
        assert getattr(given_flags, name) is True and given_flags.seed == 3
        assert getattr(parse_flags(TrainArguments, [f"--{name}", "false"]), name) is False
    for wrong, word in (("--max_step 3", "legal flags: .*--max_steps"), ("--max_steps three", "invalid int value")):
        with pytest.raises(UserError, match=word):
            parse_flags(TrainArguments, wrong.split())

"""Command-line flags of a training run; they override the DeepSpeed JSON."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transformers import HfArgumentParser

from ds_hymotion.errors import UserError

Arguments = TypeVar("Arguments")
AUTO = "auto"


def parse_flags(kind: type[Arguments], arguments: list[str] | None = None) -> Arguments:
    """Parse flags into a dataclass whose fields carry help texts; an unknown flag is a :class:`UserError`."""
    parser = HfArgumentParser(kind, allow_abbrev=False)  # type: ignore[arg-type]
    parser.error = _refuse  # type: ignore[method-assign,assignment]
    given = sys.argv[1:] if arguments is None else arguments
    parsed, unknown = parser.parse_args_into_dataclasses(given, return_remaining_strings=True)[:2]
    if unknown:
        options = (option for action in parser._actions for option in action.option_strings)
        legal = sorted({"--" + option[2:].replace("-", "_") for option in options if option.startswith("--")})
        meant = "--" + unknown[0].partition("=")[0].lstrip("-").replace("-", "_")
        close = difflib.get_close_matches(meant, legal, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"unknown flag {unknown[0]}; {hint}legal flags: {' '.join(legal)}")
    return parsed


def _refuse(message: str) -> None:
    raise UserError(f"{message}; see --help")


def flag(default: Any, text: str, **more: Any) -> Any:
    """A flag with its help text."""
    return field(default=default, metadata={"help": text, **more})


@dataclass
class TrainArguments:
    """Flags of launch/train.py."""

    model_name: str | None = flag(
        None, "what to train: a preset, a folder with config.yml and latest.ckpt, or a hub name"
    )
    data_dir: str = flag("", "prepared corpus (launch/prepare.py makes one), or a folder of motion files")
    output_dir: str = flag("", "folder for checkpoints, log and weights; by default runs/ and the model's name")
    deepspeed: bool = flag(False, "accepted for DeepSpeed's customary command line; the engine is always DeepSpeed")
    deepspeed_config: str = flag(
        "", "DeepSpeed JSON with a hymotion section, such as ds_configs/cpu_tiny.json; there are defaults"
    )
    auto_tier: bool = flag(False, "choose the file of ds_configs/ by the visible GPUs, in place of --deepspeed_config")
    local_rank: int = flag(-1, "set by launchers")
    resume: str | None = flag(
        None,
        "continue from this run's newest intact checkpoint; without a value, from --output_dir if it has one",
        nargs="?",
        const=AUTO,
    )
    fp16: bool | None = flag(None, "compute in fp16 (bf16 on a CPU)", nargs="?", const=True)
    bf16: bool | None = flag(None, "compute in bf16", nargs="?", const=True)
    unconditional: bool = flag(False, "train without captions, on the null text features")
    preset: str | None = flag(
        None, "network preset; tiny in a file for another one also takes hashed text, and 2 for every longer axis"
    )
    init_from: str | None = flag(None, "weights to start from")
    allow_fresh: bool | None = flag(
        None, "start with fresh tensors where --init_from lacks them or has other shapes", nargs="?", const=True
    )
    lora_rank: int | None = flag(None, "train low-rank adapters of this rank on --init_from instead of its weights")
    replay_corpus: str | None = flag(None, "prepared base corpus that takes a share of every epoch")
    replay_share: float | None = flag(None, "share of the replay corpus's clips in an epoch; 0.2 unless given")
    allow_other_data: bool | None = flag(
        None, "resume with other clips, mix, seed or buckets, from the next epoch on", nargs="?", const=True
    )
    max_steps: int | None = flag(None, "optimizer steps")
    learning_rate: float | None = flag(None, "full learning rate")
    warmup_steps: int | None = flag(None, "steps of linear warm-up")
    per_device_train_batch_size: int | None = flag(None, "clips per micro-batch")
    gradient_accumulation_steps: int | None = flag(None, "micro-batches per step")
    frames_per_gpu: int | None = flag(None, "padded frames per micro-batch, all rows counted")
    eval_steps: int | None = flag(None, "steps between evaluations")
    save_steps: int | None = flag(None, "steps between checkpoints")
    log_steps: int | None = flag(None, "steps between log lines")
    seed: int | None = flag(None, "seed of everything random")
    text_encoder: str | None = flag(None, "name of the corpus's text features")
    joint_groups: str | None = flag(None, "joint groups such as hip,knee:others")
    joint_loss_weights: list[float] | None = flag(None, "loss weight of each joint group", nargs="+")
    joint_update_every: list[int] | None = flag(None, "steps between updates of each group's head rows", nargs="+")
    tensor_parallel_size: int | None = flag(None, "tensor ranks that heads, MLPs and the motion head are cut over")
    pipeline_stages: int | None = flag(None, "stages that the network's layers are divided over")
    pipeline_mode: str | None = flag(None, "what is divided over stages: layers or temporal")
    experts: int | None = flag(None, "experts, one per action type; the corpus needs types")
    expert_names: list[str] | None = flag(None, "the experts' action types, unless they are the usual six", nargs="+")
    expert_parallel_size: int | None = flag(None, "groups of data ranks that the experts are divided over")
    expert_dispatch: str | None = flag(None, "how clips come to their experts' ranks: affinity or all_to_all")
    allow_fps: bool | None = flag(None, "train on a corpus of another frame rate", nargs="?", const=True)
    sync_others_every: int | None = flag(None, "steps between syncs of the gradients outside gradient_sync.always")
    check_sync_steps: int | None = flag(None, "steps between checks that all ranks hold the same weights")

    def overrides(self) -> dict[str, Any]:
        """Values by dotted JSON key; None where a flag was not given."""
        values = {key: getattr(self, name) for name, key in JSON_KEYS.items()}
        for given, other in (("fp16", "bf16"), ("bf16", "fp16")):
            if getattr(self, given) and getattr(self, other) is None:
                values[f"{other}.enabled"] = False
        if self.unconditional:
            values |= {"hymotion.text.encoder": "null", "hymotion.flow.condition_drop": 1.0}
        return values


# Which JSON value a flag overrides.
JSON_KEYS = {
    "fp16": "fp16.enabled",
    "bf16": "bf16.enabled",
    "preset": "hymotion.model.preset",
    "init_from": "hymotion.model.init_from",
    "allow_fresh": "hymotion.model.allow_fresh",
    "lora_rank": "hymotion.lora.rank",
    "replay_corpus": "hymotion.data.replay.corpus",
    "replay_share": "hymotion.data.replay.share",
    "allow_other_data": "hymotion.data.allow_other_data",
    "max_steps": "hymotion.training.max_steps",
    "learning_rate": "optimizer.params.lr",
    "warmup_steps": "hymotion.training.warmup_steps",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "frames_per_gpu": "hymotion.data.frames_per_gpu",
    "eval_steps": "hymotion.evaluation.eval_steps",
    "save_steps": "hymotion.training.save_steps",
    "log_steps": "hymotion.training.log_steps",
    "seed": "hymotion.training.seed",
    "text_encoder": "hymotion.text.encoder",
    "joint_groups": "hymotion.training.joint_groups",
    "joint_loss_weights": "hymotion.training.joint_loss_weights",
    "joint_update_every": "hymotion.training.joint_update_every",
    "tensor_parallel_size": "hymotion.parallel.model",
    "pipeline_stages": "hymotion.parallel.pipeline",
    "pipeline_mode": "hymotion.pipeline.mode",
    "experts": "hymotion.experts.number",
    "expert_names": "hymotion.experts.names",
    "expert_parallel_size": "hymotion.experts.size",
    "expert_dispatch": "hymotion.experts.dispatch",
    "allow_fps": "hymotion.model.allow_fps",
    "sync_others_every": "hymotion.gradient_sync.others_every",
    "check_sync_steps": "hymotion.gradient_sync.check_steps",
}

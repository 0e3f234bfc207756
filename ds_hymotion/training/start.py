"""From flags to a running training: everything that can be wrong is checked before a process group starts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from ds_hymotion.arguments import AUTO, TrainArguments
from ds_hymotion.config.json_files import read_json
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import HEADER, Corpus
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.errors import UserError
from ds_hymotion.model.experts import expert_of
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.parallel.deepspeed_check import check_json
from ds_hymotion.parallel.eight_bit import require_package
from ds_hymotion.parallel.mesh import Mesh, runs_on_gpu
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.parallel.slurm import adopt_slurm
from ds_hymotion.parallel.stages import check_trained
from ds_hymotion.parallel.tensor import check_size
from ds_hymotion.tiers import choose_tier, on_tiny_network
from ds_hymotion.training.adapters import adapted_linears
from ds_hymotion.training.checkpoint import checkpoint_folders
from ds_hymotion.training.defaults import NAME, default_settings, describe
from ds_hymotion.training.joints import JointPlan
from ds_hymotion.training.log import announce
from ds_hymotion.training.model_name import NamedModel, named_model
from ds_hymotion.training.network import network_config, parameter_names, stage_plan
from ds_hymotion.training.raw_data import corpus_of
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.run_folder import make_folder
from ds_hymotion.training.slow_rows import check_slow_rows
from ds_hymotion.training.text import text_source
from ds_hymotion.training.watchdog import PATIENCE


def start_training(arguments: TrainArguments) -> Path | None:
    """Check the flags, the JSON and the corpus, then train; return the run's folder on the first rank.

    Raises:
        UserError: a flag, key or file is wrong; all ranks raise alike.
    """
    adopt_slurm(os.environ)
    if not arguments.data_dir:
        raise UserError("--data_dir is missing; give it, such as --data_dir CORPUS")
    if arguments.model_name and arguments.preset:
        raise UserError(
            f"--model_name {arguments.model_name} and --preset {arguments.preset} both name the network; give one"
        )
    model = named_model(arguments.model_name) if arguments.model_name else None
    output = output_folder(arguments)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config = configuration(arguments, model, world)
    check_json(config)
    resume = _resume_folder(arguments.resume, output)
    require_package(config.deepspeed, config.name)
    space = "hymotion-201" if model is not None and model.channels == 201 else "smpl24-rotmat"
    corpus = Corpus.open(corpus_of(arguments.data_dir, output, space, config.hymotion.text.encoder))
    network = network_config(config.hymotion, corpus)
    groups = sync_groups(config.hymotion.gradient_sync, parameter_names(network))
    if config.hymotion.experts.number and not any(expert_of(name) is None for name in groups.always):
        raise UserError(
            f"hymotion.gradient_sync.frozen = {config.hymotion.gradient_sync.frozen} freezes the whole trunk; leave it "
            'out and set hymotion.experts.phases = [{"until": 1000, "train": ["experts"]}]'
        )
    if config.hymotion.lora:
        adapted_linears(config.hymotion.lora, network)
    mixture = Mixture.open(corpus, config.hymotion.data)
    text_source(config.hymotion.text, mixture, network)
    expert_ids(mixture.samples, config.hymotion.experts.types, mixture.action_of)
    tensor_ranks = config.hymotion.parallel.model
    check_size(network, tensor_ranks)
    check_trained(stage_plan(config, network, corpus), groups)
    joints = JointPlan(config.hymotion.training, corpus.representation, tensor_ranks)
    check_slow_rows(joints, groups, config.hymotion.gradient_sync.others_every)
    patience = max(1800.0, 2 * PATIENCE * config.hymotion.watchdog_s)
    mesh = Mesh.start(tensor_ranks, config.hymotion.parallel.pipeline, patience, config.as_dict())
    existed = output.exists()
    mesh.on_first(lambda: make_folder(output))
    try:
        run = TrainingRun(config, corpus, output, mesh, resume, mixture)
    except UserError:
        if mesh.is_first and not existed:
            with suppress(OSError):
                output.rmdir()  # only where it is empty
        raise
    run.train()
    mesh.stop()
    return output if mesh.is_first else None


def output_folder(arguments: TrainArguments) -> Path:
    """The run's folder: as given, or that of the run to resume, or one by the network's name."""
    if not arguments.output_dir and arguments.resume not in (None, AUTO):
        return Path(str(arguments.resume))
    return Path(arguments.output_dir or f"runs/{Path(arguments.model_name or arguments.preset or 'tiny').name}")


def configuration(arguments: TrainArguments, model: NamedModel | None, world: int) -> RunConfig:
    """The JSON, or defaults, with what the model's name and the flags say; fp16 becomes bf16 on a CPU.

    Raises:
        UserError: an illegal key, value or combination.
    """
    values = {} if model is None else model.overrides()
    values |= {key: value for key, value in arguments.overrides().items() if value is not None}
    name = _tier_file(arguments, world) if arguments.auto_tier else arguments.deepspeed_config
    if name:
        raw = read_json(name)
        tiny = on_tiny_network(raw, values.get("hymotion.model.preset"))
        if changes := {key: value for key, value in tiny.items() if key not in values}:
            announce("network tiny: " + ", ".join(f"{key} = {value!r}" for key, value in changes.items()))
        values |= changes
    else:
        named = model or NamedModel(arguments.preset if arguments.preset in PRESETS else "tiny", {})
        fine_tunes = bool(values.get("hymotion.model.init_from"))
        raw, name = default_settings(fine_tunes, "qwen_clip" if named.reads_qwen else "hashed"), NAME
        announce(describe(raw))
    config = RunConfig(raw, name, values, world)
    if config.dtype == "fp16" and not runs_on_gpu():
        announce(f"{name}: fp16.enabled = true on a CPU, which has no fp16: computing in bf16")
        config = RunConfig(raw, name, {**values, "fp16.enabled": False, "bf16.enabled": True}, world)
    elif config.dtype == "bf16" and arguments.auto_tier and not arguments.bf16 and not _cards_have_bf16():
        announce("--auto_tier: a visible GPU has no bf16: computing in fp16")
        config = RunConfig(raw, name, {**values, "bf16.enabled": False, "fp16.enabled": True}, world)
    return config


def _cards_have_bf16() -> bool:
    """Whether all visible cards multiply bf16 themselves: those of compute capability 8 and above; so do CPUs."""
    return all(torch.cuda.get_device_capability(index) >= (8, 0) for index in _cards())


def _cards() -> range:
    """The visible GPUs; none where the run computes on CPUs."""
    return range(torch.cuda.device_count() if runs_on_gpu() else 0)


def _tier_file(arguments: TrainArguments, world: int) -> str:
    """The file that ``--auto_tier`` chooses."""
    if arguments.deepspeed_config:
        raise UserError(f"--auto_tier and --deepspeed_config {arguments.deepspeed_config} exclude each other: give one")
    memory = [torch.cuda.get_device_properties(index).total_memory for index in _cards()]
    tier, reason = choose_tier(memory, world)
    announce(f"--auto_tier: {tier.path.name}: {reason}")
    return str(tier.path)


def _resume_folder(flag: str | None, output: Path) -> Path | None:
    """The run to resume, or None; an existing run is never overwritten silently, and no corpus becomes a run."""
    if (output / HEADER).is_file():
        raise UserError(f"--output_dir {output} is a prepared corpus; give a folder for the run")
    if flag is None:
        if checkpoint_folders(output):
            raise UserError(f"--output_dir {output} holds checkpoints; continue with --resume or give another folder")
        return None
    if flag == AUTO:
        if checkpoint_folders(output):
            return output
        announce(f"--resume: no checkpoint in {output} yet, so this run starts at step 0")
        return None
    folder = Path(flag)
    if not checkpoint_folders(folder):
        raise UserError(f"--resume {folder}: no checkpoint there; give a run's folder")
    if checkpoint_folders(output) and folder.resolve() != output.resolve():
        raise UserError(
            f"--output_dir {output} holds checkpoints of its own; resume those, or continue {folder} in a new folder"
        )
    return folder

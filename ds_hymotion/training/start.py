"""From flags to a running training: everything that can be wrong is checked before a process group starts."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ds_hymotion.arguments import AUTO, TrainArguments
from ds_hymotion.config import RunConfig, read_json
from ds_hymotion.data.corpus import HEADER, Corpus
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.parallel.stages import check_trained
from ds_hymotion.parallel.tensor import check_size
from ds_hymotion.tiers import choose_tier, on_tiny_network
from ds_hymotion.training.checkpoint import checkpoint_folders
from ds_hymotion.training.joints import JointPlan
from ds_hymotion.training.log import announce
from ds_hymotion.training.network import network_config, parameter_names, stage_plan
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.slow_rows import check_slow_rows
from ds_hymotion.training.text import text_source


def start_training(arguments: TrainArguments) -> bool:
    """Check the flags, the JSON and the corpus, then train; return whether this is the first rank.

    Raises:
        UserError: a flag, key or file is wrong; all ranks raise alike.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    path = _tier_file(arguments, world) if arguments.auto_tier else arguments.deepspeed_config
    for name, example in (
        ("deepspeed_config", "ds_configs/cpu_tiny.json"),
        ("data_dir", "CORPUS"),
        ("output_dir", "RUN"),
    ):
        if not (path if name == "deepspeed_config" else getattr(arguments, name)):
            raise UserError(f"--{name} is missing; give it, such as --{name} {example}")
    config = run_config(arguments, path, world)
    corpus = Corpus.open(arguments.data_dir)
    network = network_config(config.hymotion, corpus)
    groups = sync_groups(config.hymotion.gradient_sync, parameter_names(network))
    mixture = Mixture.open(corpus, config.hymotion.data)
    text_source(config.hymotion.text, mixture, network)
    expert_ids(mixture.samples, config.hymotion.experts.types, mixture.action_of)
    tensor_ranks = config.hymotion.parallel.model
    check_size(network, tensor_ranks)
    check_trained(stage_plan(config, network, corpus), groups)
    joints = JointPlan(config.hymotion.training, corpus.representation, tensor_ranks)
    check_slow_rows(joints, groups, config.hymotion.gradient_sync.others_every)
    output = Path(arguments.output_dir)
    resume = _resume_folder(arguments.resume, output)
    mesh = Mesh.start(tensor_ranks, config.hymotion.parallel.pipeline)
    mesh.on_first(lambda: _make_folder(output))
    TrainingRun(config, corpus, output, mesh, resume, mixture).train()
    mesh.stop()
    return mesh.is_first


def run_config(arguments: TrainArguments, path: str, world: int) -> RunConfig:
    """The JSON with what the flags change, for ``world`` processes.

    Raises:
        UserError: as :class:`RunConfig`.
    """
    raw, given = read_json(path), arguments.overrides()
    changes = {key: value for key, value in on_tiny_network(raw, arguments.preset).items() if given.get(key) is None}
    if changes:
        announce(f"--preset {arguments.preset}: " + ", ".join(f"{key} = {value!r}" for key, value in changes.items()))
    return RunConfig(raw, path, {**given, **changes}, world)


def _tier_file(arguments: TrainArguments, world: int) -> str:
    """The file that ``--auto_tier`` chooses."""
    if arguments.deepspeed_config:
        raise UserError(f"--auto_tier and --deepspeed_config {arguments.deepspeed_config} exclude each other: give one")
    memory = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--output_dir {folder}: cannot be written ({error.strerror}); give a writable folder"
        ) from None

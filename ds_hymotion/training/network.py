"""The network a run trains: its size from preset, corpus and text features, its weights fresh or from a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ds_hymotion.config.hymotion import HymotionSection
from ds_hymotion.config.model import SIZES
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.experts import with_experts
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.presets import preset
from ds_hymotion.model.released import load_into
from ds_hymotion.model.temporal import build, is_state, with_states
from ds_hymotion.motion.representation import HyMotion201
from ds_hymotion.motion.skeleton import smpl24
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups
from ds_hymotion.parallel.stages import ChunkPlan, StagePlan, network_units, plan_stages
from ds_hymotion.parallel.tensor import cut_network, plan_cuts
from ds_hymotion.text.live import TextTower
from ds_hymotion.training.joints import JointPlan
from ds_hymotion.training.log import announce
from ds_hymotion.training.weights import Weights, read_weights

UNSEEN = ("band_frames", "text_position")  # sizes that no tensor's shape shows
USUAL_EXPERT_BLOCKS = 4
WITHOUT_STATES = "weights of whole motions have no states"
TYPICAL_TOKENS = 32  # a caption of some twenty words in its chat template


def network_config(settings: HymotionSection, corpus: Corpus) -> ModelConfig:
    """The preset with the section's changes, as wide as the corpus's representation.

    Raises:
        UserError: an unknown preset, illegal sizes, or a corpus of another frame rate than the network's.
    """
    model = settings.model
    if abs(corpus.fps - model.fps) > 1e-3 and not model.allow_fps:
        raise UserError(
            f"{corpus.folder}: {corpus.fps:g} fps, the network is made for {model.fps:g}; prepare it with --fps "
            f"{model.fps:g}, or allow it with --allow_fps"
        )
    return sized_network(settings, corpus.representation.channels)


def sized_network(settings: HymotionSection, channels: int) -> ModelConfig:
    """The preset with the section's changes, for motions of ``channels`` channels.

    Raises:
        UserError: an unknown preset or illegal sizes.
    """
    model = settings.model
    changes: dict[str, Any] = _chunk_settings(settings) | {"expert_names": settings.experts.types}
    changes |= {name: getattr(model, name) for name in SIZES if getattr(model, name) is not None}
    try:
        if settings.experts.number:
            plain = preset(model.preset, **{**changes, "expert_names": ()})
            most, asked = plain.most_expert_blocks, settings.experts.blocks
            if asked is not None and asked > most:
                raise UserError(
                    f"hymotion.experts.blocks = {asked} must be in 1..{most}: of {plain.num_layers} layers the first "
                    f"{plain.num_layers - most} are shared"
                )
            changes["expert_blocks"] = settings.experts.blocks or min(USUAL_EXPERT_BLOCKS, max(1, most // 2))
        return preset(model.preset, input_dim=channels, **changes)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"hymotion.model: {error}") from None


def _chunk_settings(settings: HymotionSection) -> dict[str, Any]:
    pipeline = settings.pipeline
    if pipeline.mode != "temporal":
        return {}
    chunks = -(-settings.data.bucket_bounds[-1] // pipeline.chunk_frames)
    return {
        "chunk_frames": pipeline.chunk_frames,
        "halo_frames": pipeline.halo_frames,
        "state_frames": pipeline.state_frames,
        "clean_states": pipeline.states == "clean",
        "chunk_networks": chunks if pipeline.weights == "per_stage" else 1,
    }


def parameter_names(config: ModelConfig) -> list[str]:
    """Released names of a network's parameters, in its order; nothing is allocated."""
    with torch.device("meta"):
        return [name for name, _ in build(config).named_parameters()]


def build_generator(
    settings: HymotionSection,
    config: ModelConfig,
    corpus: Corpus,
    held: Callable[[str], bool] | None = None,
    weights: Weights | None = None,
) -> MotionGenerator:
    """A network on the CPU in fp32: fresh by seed, then the ``weights`` that ``init_from`` holds, if any.

    A fresh network takes the corpus's mean and std; one that starts from weights of the same representation keeps
    theirs, which its weights were trained with. ``copy_noise`` is for networks trained from scratch: beside loaded
    blocks an input projection and head of another number of channels start as the release's do.

    Args:
        held: which parameters, by released name, this process needs; the others stay on the meta device. None = all.

    Raises:
        UserError: the weights do not fit, or know joint positions relative to another point.
    """
    recompute = settings.model.checkpoint_blocks, settings.model.checkpoint_kinds
    if held is None:
        generator = build(config, *recompute)
    else:
        with torch.device("meta"):
            generator = build(config, *recompute)
        materialise(generator, held)
    from_scratch = settings.model.init == "copy_noise" and not settings.model.init_from
    initialise(generator, settings.training.seed, copy_noise=from_scratch)
    with torch.no_grad():
        generator.mean.copy_(corpus.mean)
        generator.std.copy_(corpus.std)
    if weights and settings.model.init_from:
        source = weights.tensors
        _check_sizes(settings, config, weights)
        state = with_states(generator, source)
        if settings.experts.number and weights.experts and weights.experts != settings.experts.types:
            raise UserError(
                f"{settings.model.init_from} has experts {', '.join(weights.experts)}, hymotion.experts.names asks for "
                f"{', '.join(settings.experts.types)}; give the same names in the same order"
            )
        state = with_experts(generator, state, settings.experts.noise, settings.training.seed)
        report = load_into(generator, state, settings.model.init_from, settings.model.allow_fresh)
        report = report.with_fresh({name: WITHOUT_STATES for name in state if is_state(name) and name not in source})
        announce(f"{settings.model.init_from}{weights.origin}: {report}\n{report.table()}")
        _check_positions(generator.mean, corpus, settings.model.init_from)
    return generator


def starting_weights(settings: HymotionSection, resumed: bool = False) -> Weights | None:
    """What ``init_from`` holds; None without it, or where a checkpoint of the whole network follows.

    Raises:
        UserError: it cannot be read.
    """
    if settings.model.init_from and (settings.lora or not resumed):
        return read_weights(settings.model.init_from)
    return None


def _check_sizes(settings: HymotionSection, config: ModelConfig, weights: Weights) -> None:
    """What no tensor's shape shows must be the weights' own, unless the section says otherwise by name."""
    if weights.provenance is None:
        return
    for name in UNSEEN:
        theirs, own = getattr(weights.provenance.config, name), getattr(config, name)
        if theirs != own and getattr(settings.model, name) is None:
            raise UserError(
                f"{settings.model.init_from} was trained with {name} = {theirs}, preset {settings.model.preset} has "
                f"{own}; set hymotion.model.{name} to the one that you want"
            )


def materialise(generator: MotionGenerator, held: Callable[[str], bool]) -> None:
    """Give buffers, and parameters whose names are ``held``, memory on the CPU in place of the meta device."""
    for name, parameter in list(generator.named_parameters()):
        if held(name):
            parent, _, child = name.rpartition(".")
            setattr(generator.get_submodule(parent), child, torch.nn.Parameter(torch.empty(parameter.shape)))
    for name, buffer in list(generator.named_buffers()):
        setattr(generator, name, torch.zeros(buffer.shape))


def stage_plan(config: RunConfig, network: ModelConfig, corpus: Corpus) -> StagePlan | ChunkPlan:
    """Which pipeline stage holds what: by time, or by the costs of a micro-batch of clips of the mean length.

    Raises:
        UserError: more stages than layers, or an illegal or uneven split.
    """
    settings = config.hymotion
    if network.chunk_frames:
        return ChunkPlan(network.chunk_networks if settings.parallel.pipeline > 1 else 1)
    canvas = settings.data.bucket_bounds[-1]
    frames = [min(sample.frames, canvas) for sample in corpus.split("train")] or [canvas]
    return stages_by_layers(config, network, sum(frames) / len(frames))


def stages_by_layers(config: RunConfig, network: ModelConfig, mean: float) -> StagePlan:
    """Which pipeline stage holds which layers, where clips have ``mean`` frames.

    Raises:
        UserError: more stages than layers, or an illegal or uneven split.
    """
    settings = config.hymotion
    clips = settings.data.frames_per_gpu / mean or config.deepspeed["train_micro_batch_size_per_gpu"]
    held = settings.experts.number // settings.experts.size
    units = network_units(network, mean, TYPICAL_TOKENS, clips * settings.flow.timesteps_per_sample, held)
    return plan_stages(units, settings.parallel.pipeline, settings.pipeline)


def build_objective(
    generator: MotionGenerator,
    settings: HymotionSection,
    corpus: Corpus,
    joints: JointPlan,
    mesh: Mesh,
    tower: TextTower | None = None,
) -> tuple[FlowObjective, CutPlan]:
    """A whole network, cut in place over the tensor ranks, with this rank's share of the loss, and how it was cut."""
    body = BodyLosses(corpus.representation, generator.mean.clone(), generator.std.clone(), corpus.fps, settings.flow)
    plan = plan_cuts(generator, generator.config, joints.rank_channels)
    cut_network(generator, plan, mesh.model_rank, mesh.model_group)
    return FlowObjective(generator, settings.flow, body, joints.share(mesh), tower), plan


def _check_positions(mean: torch.Tensor, corpus: Corpus, source: str) -> None:
    """hymotion-201 has joint positions relative to the pelvis or the rest root; the pelvis's own mean tells which."""
    space = corpus.representation
    if not isinstance(space, HyMotion201):
        return
    pelvis = mean[space.channel_names().index("pelvis.position.x") :][:3]
    origins = {"pelvis": torch.zeros(3), "rest_root": smpl24().offsets[0]}
    for name, place in origins.items():
        if name != space.positions_relative_to and torch.allclose(pelvis, place, atol=1e-3):
            raise UserError(
                f"{source} has joint positions relative to the {name}, {corpus.folder} relative to the "
                f"{space.positions_relative_to}; prepare it with --positions_relative_to {name}"
            )


def build_engine(
    objective: FlowObjective,
    config: RunConfig,
    mesh: Mesh,
    groups: SyncGroups,
    stages: StagePlan | ChunkPlan,
    plan: CutPlan,
    parts: dict[str, tuple[int, tuple[int, ...]]] | None = None,
) -> DataEngine:
    """The engine that the mesh asks for, over a network of which this rank's stage has memory.

    ``parts`` are the parameters of all ranks, as for :class:`ParameterStates`, where experts are divided over them.
    """
    if mesh.pipe_size == 1:
        return DataEngine(objective, config, mesh, groups, plan, parts)
    if isinstance(stages, ChunkPlan):
        from ds_hymotion.parallel.temporal_engine import TemporalFace

        return TemporalFace(objective, config, mesh, groups, stages)
    from ds_hymotion.parallel.pipeline_engine import PipelineFace

    return PipelineFace(objective, config, mesh, groups, stages, plan, parts)

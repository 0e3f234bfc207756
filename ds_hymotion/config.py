"""The ``hymotion`` section of a DeepSpeed JSON, and the run's configuration as a whole."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.deepspeed_keys import check_deepspeed_keys, check_selective_sync
from ds_hymotion.errors import UserError
from ds_hymotion.expert_checks import check_experts
from ds_hymotion.lora_checks import check_lora
from ds_hymotion.mesh_shape import MeshShape
from ds_hymotion.offload_checks import check_offload
from ds_hymotion.pipeline_checks import check_pipeline, check_temporal


class Section(BaseModel):
    """A part of the ``hymotion`` section: unknown keys are errors; a number may also be given as a string of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelSection(Section):
    """Which network is trained and what it starts from."""

    preset: str = Field("tiny", description="hy-motion-1.0, hy-motion-1.0-lite or tiny; the sizes below change it")
    feat_dim: int | None = Field(None, ge=8, description="width C of the residual streams; C / num_heads must be even")
    num_layers: int | None = Field(
        None, ge=3, description="blocks in all, divisible by 3: a third double, the rest single"
    )
    num_heads: int | None = Field(None, ge=1, description="attention heads; must divide feat_dim")
    mlp_ratio: float | None = Field(None, gt=0, description="width of the MLPs over feat_dim")
    ctxt_input_dim: int | None = Field(None, ge=1, description="width of a text token's features")
    vtxt_input_dim: int | None = Field(None, ge=1, description="width of the pooled text vector")
    band_frames: int | None = Field(None, ge=0, description="motion attends to motion within this many frames")
    text_position: int | None = Field(
        None, ge=1, description="RoPE position of the first text token; at least max_frames"
    )
    init: Literal["copy_noise", "released"] = Field(
        "copy_noise",
        description="fresh weights: copy_noise (head starts as minus the transposed input projection, for training "
        "from scratch) or released (zero gates and head)",
    )
    init_from: str | None = Field(None, description="start from this latest.ckpt, safetensors export or run folder")
    allow_fresh: bool = Field(
        False, description="where init_from lacks a tensor or has it in another shape, start with a fresh one"
    )
    checkpoint_blocks: int = Field(0, ge=0, description="recompute activations of every n-th block; 0 = keep all")
    checkpoint_kinds: list[Literal["double", "single"]] = Field(
        ["double", "single"], description="kinds of block that checkpoint_blocks applies to"
    )
    fps: float = Field(30.0, gt=0, description="frame rate the network is made for, in Hz")
    allow_fps: bool = Field(False, description="train on a corpus of another frame rate all the same")


class MixedCorpus(Section):
    """Another prepared corpus whose training clips join every epoch."""

    corpus: str = Field(min_length=1, description="folder of a prepared corpus like that of --data_dir")
    weight: float | None = Field(
        None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="visits of each of its clips per epoch, on average: 0.25 = another quarter of its clips each epoch",
    )
    repeats: int | None = Field(
        None, ge=1, le=1000, description="instead of weight, in whole visits; 1 where neither is given"
    )


class Replay(Section):
    """A base corpus that fine-tuning goes on seeing, so that the network does not forget it."""

    corpus: str = Field(min_length=1, description="folder of the prepared base corpus")
    share: float = Field(
        0.2, gt=0, le=0.95, allow_inf_nan=False, description="share of its clips among all clips of an epoch"
    )


class DataSection(Section):
    """Clips, buckets and batches."""

    repeats: int = Field(1, ge=1, le=1000, description="visits of each clip of --data_dir per epoch")
    mix: list[MixedCorpus] = Field([], description="further corpora whose training clips join every epoch")
    replay: Replay | None = Field(None, description="a base corpus that takes a share of every epoch")
    allow_other_data: bool = Field(
        False, description="resume although clips, mix, seed or buckets changed: with the next epoch, from its start"
    )
    bucket_bounds: list[int] = Field(
        [60, 120, 180, 240, 300],
        description="lower ends of the frame buckets; the last is the canvas: longer clips are cropped",
    )
    short: Literal["keep", "pad", "drop"] = Field(
        "keep", description="clips below the first bound: a bucket of their own, part of the first bucket, or left out"
    )
    frames_per_gpu: int = Field(
        0,
        ge=0,
        description="fill a micro-batch up to this many padded frames, all rows of its clips counted; at least the "
        "canvas times flow.timesteps_per_sample; 0 = train_micro_batch_size_per_gpu clips",
    )
    length_jitter: float = Field(
        5.0, ge=0, description="jitter in frames on the order by length, so that epochs differ"
    )
    bucket_lr_factors: list[float] = Field(
        [], description="learning-rate factor per bucket, the one below the first bound first; [] = 1 for all"
    )
    max_clips: int = Field(0, ge=0, description="use only the first n training clips of --data_dir; 0 = all")


class FlowSection(Section):
    """Flow matching: what is regressed, and at which times."""

    loss: Literal["mse", "smooth_l1"] = Field("mse", description="loss on the velocity per element")
    time: Literal["uniform", "stratified", "logit_normal"] = Field("uniform", description="distribution of t in [0, 1]")
    timesteps_per_sample: int = Field(1, ge=1, description="rows per clip and step, each with its own t and noise")
    condition_drop: float = Field(0.1, ge=0, le=1, description="share of rows trained with the null text features")
    joint_position_weight: float = Field(0.0, ge=0, description="weight of the squared error of decoded joints, in m²")
    foot_contact_weight: float = Field(0.0, ge=0, description="weight of squared foot speed during contact, in (m/s)²")


class TrainingSection(Section):
    """Length, learning rate, averages, checkpoints."""

    max_steps: int = Field(1000, ge=1, description="optimizer steps")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    schedule: Literal["constant", "cosine", "linear"] = Field("constant", description="learning rate after warm-up")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="final over full learning rate for cosine and linear")
    ema_decay: float = Field(0.999, ge=0, lt=1, description="decay of the weight average; 0 = none")
    seed: int = Field(0, ge=0, description="seed of weights, batches, noise and times")
    log_steps: int = Field(10, ge=1, description="steps between log lines")
    save_steps: int = Field(500, ge=0, description="steps between checkpoints; 0 = only at the end")
    keep_last: int = Field(2, ge=1, description="newest checkpoints kept")
    keep_every: int = Field(
        0, ge=0, description="checkpoints of steps that are multiples of this are kept beside the newest; 0 = none"
    )
    joint_groups: str | None = Field(
        None,
        description="joint groups whose loss is logged, and by which the motion head is cut over tensor ranks: names "
        "with commas, groups with colons; without it hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others are "
        "logged and the head's joints are balanced over the ranks",
    )
    joint_loss_weights: list[Annotated[float, Field(ge=0)]] = Field(
        [], description="weight in the loss of each joint group's channels; [] = 1 for all"
    )
    joint_update_every: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="steps between updates of each joint group's rows of the motion head; [] = 1 for all"
    )


class EvaluationSection(Section):
    """Held-out loss."""

    eval_steps: int = Field(0, ge=0, description="steps between evaluations; 0 = none")
    split: Literal["val", "test", "train"] = Field(
        "val", description="which clips; train = training clips, other noise"
    )
    times: list[float] = Field([0.1, 0.3, 0.5, 0.7, 0.9], min_length=1, description="fixed t of the held-out loss")
    max_clips: int = Field(64, ge=1, description="at most so many clips")


class TextSection(Section):
    """Where text features come from."""

    mode: Literal["cached", "live"] = Field(
        "cached", description="features from the corpus's cache, or encoders kept in the run"
    )
    encoder: str = Field(
        "hashed",
        description="name of the feature cache in the corpus: hashed or qwen_clip; live needs qwen_clip; null = "
        "no captions",
    )
    qwen: str = Field("Qwen/Qwen3-8B", description="live: folder or hub name of Qwen3")
    clip: str = Field("openai/clip-vit-large-patch14", description="live: folder or hub name of CLIP")
    release_dir: str | None = Field(None, description="live: clone of the release, whose system prompt is read")
    system_prompt_file: str | None = Field(None, description="live: file that is the system prompt")
    encoder_dtype: Literal["bf16", "fp16", "fp32"] = Field(
        "bf16", description="live: what frozen layers of Qwen3 compute in"
    )
    frozen_layers: int = Field(
        12, ge=0, description="live: lower layers of Qwen3 that train_upper_layers leaves frozen"
    )
    train_upper_layers: bool = Field(False, description="live: train the layers above; false freezes all of Qwen3")


class GradientSyncSection(Section):
    """Which gradients travel between data ranks, and how often."""

    always: list[str] = Field(
        ["attention_output", "ffn_output", "motion_head"],
        min_length=1,
        description="parameter groups or name patterns that are averaged and stepped every step",
    )
    others_every: int = Field(
        1, ge=1, description="the other parameters are averaged and stepped every so many steps; 1 = every step"
    )
    others_lr_factor: float = Field(
        1.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="learning-rate factor of the parameters that wait: they take fewer steps, which others_every "
        "itself makes up for under Adam",
    )
    frozen: list[str] = Field([], description="parameter groups or name patterns that are not trained and never travel")
    check_steps: int = Field(
        0, ge=0, description="steps between checks that all data ranks hold bit-identical weights; 0 = never"
    )


class PipelineSection(Section):
    """What a pipeline stage holds; ``temporal`` is another model, on any number of stages."""

    mode: Literal["layers", "temporal"] = Field(
        "layers", description="what is divided over stages: the network's layers, or the motion in chunks of time"
    )
    balance: Literal["cost", "parameters", "uniform"] = Field(
        "cost", description="what stages share evenly: computation, parameters, or the number of blocks"
    )
    split: list[int] = Field([], description="blocks per stage, instead of a balance; [] = by balance")
    max_imbalance: float = Field(1.5, ge=1, description="largest stage cost over the mean that a run starts with")
    weights: Literal["tied", "per_stage"] = Field(
        "tied", description="temporal: one network for all chunks, or one of its own for chunk 0, 1, …"
    )
    chunk_frames: int = Field(60, ge=1, description="temporal: frames of a chunk")
    halo_frames: int = Field(0, ge=0, description="temporal: last frames of the previous chunk that a chunk also sees")
    state_frames: int = Field(30, ge=1, description="temporal: last frames of a chunk that its state is made of")
    states: Literal["noisy", "clean"] = Field(
        "noisy", description="temporal: states of the noised input, or of the motion itself; clean samples in sequence"
    )


class ExpertPhase(Section):
    """What learns in a part of a run with experts."""

    until: int = Field(ge=1, description="the phase ends before this step, counted from 0; the last one goes on")
    train: list[Literal["trunk", "experts"]] = Field(
        ["trunk", "experts"], min_length=1, description="what learns; the other part is frozen"
    )
    drop_experts: int = Field(0, ge=0, description="experts left out of every step, drawn by its number")


class ExpertsSection(Section):
    """Tails of the network by action type: the trunk is shared, the last blocks and the head exist once per type."""

    number: int = Field(0, ge=0, description="experts, one per action type; 0 = none")
    names: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="their action types; [] = the six of launch/prepare.py"
    )
    blocks: int | None = Field(
        None, ge=1, description="last blocks of each expert; without it 4, or fewer in a network of fewer than 12"
    )
    noise: float = Field(
        0.0, ge=0, le=1, description="noise on experts that start as copies of init_from, over each tensor's spread"
    )

    size: int = Field(
        1, ge=1, description="groups of data ranks that the experts are divided over; 1 = every rank holds all"
    )
    dispatch: Literal["affinity", "all_to_all"] = Field(
        "affinity", description="clips are planned onto the ranks of their experts, or sent there behind the trunk"
    )
    class_weights: list[Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]] = Field(
        [], description="how often an epoch visits the clips of each type, over once; [] = all alike"
    )
    starving_steps: int = Field(
        200, ge=0, description="warn of an expert that has not learnt for so many steps; 0 = never"
    )
    phases: list[ExpertPhase] = Field([], description="what learns when; [] = trunk and experts throughout")

    @property
    def types(self) -> tuple[str, ...]:
        """The action types that have experts, in the order of their numbers; () without any."""
        return tuple(self.names or ACTION_TYPES) if self.number else ()

    @property
    def owners(self) -> int:
        """Groups of data ranks that the batch plan tells apart: where clips are sent, every rank takes any."""
        return self.size if self.dispatch == "affinity" else 1


class LoraSection(Section):
    """Low-rank adapters: the base weights stay as ``model.init_from`` has them, only adapters of linears train."""

    rank: int = Field(16, ge=1, description="columns of B and rows of A of each adapter")
    alpha: float = Field(16.0, gt=0, allow_inf_nan=False, description="over rank, the factor of B·A")
    targets: list[str] = Field(
        ["qkv", "attention_output", "ffn_input", "ffn_output"],
        min_length=1,
        description="linears with an adapter: groups as in gradient_sync.always, or patterns of their weights' names",
    )


class ParallelSection(Section):
    """How the network is spread over ranks; the data axis takes the ranks that are left."""

    model: int = Field(1, ge=1, description="tensor ranks: heads, MLPs and the motion head are cut over so many")
    pipeline: int = Field(1, ge=1, description="pipeline stages that the layers are divided over")
    memory_steps: int = Field(500, ge=0, description="steps between lines on each rank's memory; 0 = only at the start")


class HymotionSection(Section):
    """The ``hymotion`` section of a DeepSpeed JSON."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    text: TextSection = TextSection()
    flow: FlowSection = FlowSection()
    training: TrainingSection = TrainingSection()
    pipeline: PipelineSection = PipelineSection()
    evaluation: EvaluationSection = EvaluationSection()
    gradient_sync: GradientSyncSection = GradientSyncSection()
    experts: ExpertsSection = ExpertsSection()
    parallel: ParallelSection = ParallelSection()
    lora: LoraSection | None = None
    watchdog_s: float = Field(
        600.0,
        ge=0,
        allow_inf_nan=False,
        description="longest time from step to step in s (ten times as long for the first step, saves and "
        "evaluations): then every rank's state is printed and the run ends with code 86; 0 = never",
    )


class RunConfig:
    """One DeepSpeed JSON, checked: ``deepspeed`` is what DeepSpeed gets, ``hymotion`` our section.

    Args:
        raw: the parsed JSON.
        name: how messages call it.
        overrides: values by dotted key, such as ``{"hymotion.training.max_steps": 100}``; None values are ignored.
        ranks: number of processes, which the mesh's axes divide; None where they are not known, for a check alone.

    Raises:
        UserError: an unknown key, an illegal value or an illegal combination, with a legal value.
    """

    def __init__(
        self,
        raw: dict[str, Any],
        name: str = "config",
        overrides: dict[str, Any] | None = None,
        ranks: int | None = None,
    ) -> None:
        merged = json.loads(json.dumps(raw))
        for key, value in (overrides or {}).items():
            if value is not None:
                set_by_path(merged, key, value)
        section = merged.pop("hymotion", {})
        if not isinstance(section, dict):
            raise UserError(f"{name}: hymotion = {section!r} must be a JSON object")
        self.name = name
        self.hymotion = parse_section(section, name)
        model, pipe = self.hymotion.parallel.model, self.hymotion.parallel.pipeline
        self.ranks = ranks
        self.shape = MeshShape.of(ranks or model * pipe, model, pipe)
        self.deepspeed = check_deepspeed_keys(merged, name, self.shape.data)
        self._cross_checks()

    @classmethod
    def load(cls, path: str | Path, overrides: dict[str, Any] | None = None, ranks: int | None = None) -> RunConfig:
        """Read a JSON file."""
        return cls(read_json(path), str(path), overrides, ranks)

    @property
    def dtype(self) -> str:
        """``fp32``, ``bf16`` or ``fp16``: what the weights are computed in."""
        for kind in ("bf16", "fp16"):
            if self.deepspeed.get(kind, {}).get("enabled"):
                return kind
        return "fp32"

    def as_dict(self) -> dict[str, Any]:
        """The whole configuration as one JSON-able object, defaults filled in."""
        return {**self.deepspeed, "hymotion": self.hymotion.model_dump()}

    def _cross_checks(self) -> None:
        check_pipeline(self)
        check_temporal(self)
        check_experts(self)
        check_lora(self)
        check_offload(self)
        data = self.hymotion.data
        text = self.hymotion.text
        if text.mode == "live" and text.encoder != "qwen_clip":
            raise UserError(
                f"{self.name}: hymotion.text.mode = live with hymotion.text.encoder = {text.encoder!r}; use qwen_clip"
            )
        if text.train_upper_layers and text.mode != "live":
            raise UserError(
                f"{self.name}: hymotion.text.train_upper_layers = true needs the encoders in the run; set "
                "hymotion.text.mode to live"
            )
        if text.encoder == "null" and self.hymotion.flow.condition_drop < 1:
            raise UserError(
                f"{self.name}: hymotion.text.encoder = null needs hymotion.flow.condition_drop = 1, not "
                f"{self.hymotion.flow.condition_drop:g}; --unconditional sets both"
            )
        bad = [t for t in self.hymotion.evaluation.times if not 0 <= t <= 1]
        if bad:
            raise UserError(f"{self.name}: hymotion.evaluation.times holds {bad[0]}; use values in 0..1")
        for number, entry in enumerate(data.mix):
            if entry.weight is not None and entry.repeats is not None:
                raise UserError(
                    f"{self.name}: hymotion.data.mix.{number} gives weight = {entry.weight:g} and repeats = "
                    f"{entry.repeats}; give one of them"
                )
        if data.bucket_lr_factors and len(data.bucket_lr_factors) != len(data.bucket_bounds) + 1:
            raise UserError(
                f"{self.name}: hymotion.data.bucket_lr_factors has {len(data.bucket_lr_factors)} values; "
                f"{len(data.bucket_bounds)} bounds make {len(data.bucket_bounds) + 1} buckets"
            )
        if self.hymotion.gradient_sync.others_every > 1:
            check_selective_sync(self.deepspeed, self.name, self.hymotion.gradient_sync.others_every)


def read_json(path: str | Path) -> dict[str, Any]:
    """Parse a JSON object from a file, or raise a one-line :class:`UserError`."""
    path = Path(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give a DeepSpeed JSON such as ds_configs/cpu_tiny.json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: must hold a JSON object, not a {type(raw).__name__}")
    return raw


def set_by_path(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set ``tree["a"]["b"] = value`` for key ``"a.b"``, making objects on the way."""
    *parents, last = key.split(".")
    for name in parents:
        if tree.get(name) is None:
            tree[name] = {}
        child = tree[name]
        if not isinstance(child, dict):
            raise UserError(f"{key}: {name} = {child!r} must be a JSON object")
        tree = child
    tree[last] = value


def parse_section(section: dict[str, Any], name: str) -> HymotionSection:
    """Validate the ``hymotion`` section; the first mistake becomes a one-line :class:`UserError`."""
    try:
        return HymotionSection.model_validate(section, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        key = ".".join(["hymotion", *path])
        if first["type"] == "extra_forbidden":
            legal = _legal_keys(path[:-1])
            close = difflib.get_close_matches(path[-1], legal, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(
                f"{name}: unknown key {key} = {first['input']!r}; {hint}legal keys: {', '.join(legal)}"
            ) from None
        raise UserError(f"{name}: {key} = {first['input']!r}: {first['msg']}") from None


def _legal_keys(path: list[str]) -> list[str]:
    model: Any = HymotionSection
    for part in path:
        if not part.isdigit():
            model = model.model_fields[part].annotation
            model = next((kind for kind in get_args(model) if hasattr(kind, "model_fields")), model)
    return sorted(model.model_fields)

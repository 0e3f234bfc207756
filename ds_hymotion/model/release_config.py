"""The ``config.yml`` beside a ``latest.ckpt``: which classes of the release build the network, and with which sizes.

Read back, it tells what the tensors' shapes do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.formats.tensors import write_text
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.released import ReleasedCheckpoint

CONFIG = "config.yml"
STATISTICS = "stats"
RELEASED_BAND = 60  # frames: the network class's own default, 2 s at 30 fps
BAND_FPS = 30.0  # the network class multiplies by it, whatever the frame rate
GUIDANCE, STEPS = 5.0, 50


def release_config(config: ModelConfig, fps: float) -> dict[str, Any]:
    """The file's content for a network of whole motions.

    The pipeline reads mean and std from the working directory's ``stats/`` before a checkpoint replaces them by its
    own; the release's clone has that folder, and so has an export.
    """
    network = {
        "input_dim": config.input_dim,
        "feat_dim": config.feat_dim,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "ctxt_input_dim": config.ctxt_input_dim,
        "vtxt_input_dim": config.vtxt_input_dim,
        "mlp_ratio": config.mlp_ratio,
        "dropout": 0.0,
        "mask_mode": "narrowband",
        "apply_rope_to_single_branch": False,
        "time_factor": config.time_factor,
    }
    if config.band_frames != RELEASED_BAND:
        network["narrowband_length"] = config.band_frames / BAND_FPS
    return {
        "train_pipeline": "hymotion/pipeline/motion_diffusion.MotionFlowMatching",
        "train_pipeline_args": {
            "text_encoder_module": "hymotion/network/text_encoders/text_encoder.HYTextModel",
            "text_encoder_cfg": {"llm_type": "qwen3", "max_length_llm": 128},
            "noise_scheduler_cfg": {"method": "euler"},
            "infer_noise_scheduler_cfg": {"validation_steps": STEPS},
            "test_cfg": {"mean_std_dir": f"./{STATISTICS}/", "text_guidance_scale": GUIDANCE},
            "train_frames": config.text_position,
            "output_mesh_fps": int(fps) if float(fps).is_integer() else fps,
            "enable_ctxt_null_feat": True,
        },
        "network_module": "hymotion/network/hymotion_mmdit.HunyuanMotionMMDiT",
        "network_module_args": network,
    }


def write_release_config(folder: Path, config: ModelConfig, fps: float) -> None:
    """Write ``config.yml`` into a folder.

    Raises:
        UserError: it cannot be written.
    """
    text = yaml.safe_dump(release_config(config, fps), sort_keys=False)
    replace_file(folder / CONFIG, lambda temporary: write_text(temporary, text))


def write_statistics(folder: Path, mean: torch.Tensor, std: torch.Tensor) -> None:
    """Write mean and std [C] as ``stats/Mean.npy`` and ``stats/Std.npy``, as the release's pipeline reads them.

    Raises:
        UserError: they cannot be written.
    """
    for name, value in (("Mean.npy", mean), ("Std.npy", std)):
        replace_file(folder / STATISTICS / name, partial(_write_array, value.detach().cpu().float().numpy()))


def _write_array(values: np.ndarray, path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, values, allow_pickle=False)


@dataclass(frozen=True)
class ReleasedSizes:
    """The network of a ``latest.ckpt``, and the frame rate of its motions."""

    network: ModelConfig
    fps: float = BAND_FPS


def released_sizes(checkpoint: ReleasedCheckpoint) -> ReleasedSizes:
    """What a released checkpoint is of: from its tensors' shapes, and what those do not tell from its ``config.yml``.

    Raises:
        UserError: tensors are missing, or ``config.yml`` beside them is damaged or tells other sizes.
    """
    state, config = checkpoint.state, checkpoint.path.parent / CONFIG

    def shape(name: str, axes: int) -> tuple[int, ...]:
        tensor = state.get("motion_transformer." + name)
        if tensor is None or tensor.dim() != axes:
            raise UserError(f"{checkpoint.path}: has no motion_transformer.{name} of a release; give its latest.ckpt")
        return tuple(tensor.shape)

    def blocks(kind: str) -> int:
        return len({key.split(".")[2] for key in state if key.startswith(f"motion_transformer.{kind}_blocks.")})

    width, channels = shape("input_encoder.weight", 2)
    (head,) = shape("double_blocks.0.motion_q_norm.weight", 1)
    sizes: dict[str, Any] = {
        "feat_dim": width,
        "num_layers": blocks("double") + blocks("single"),
        "num_heads": width // max(1, head),
        "input_dim": channels,
        "ctxt_input_dim": shape("ctxt_encoder.weight", 2)[1],
        "vtxt_input_dim": shape("vtxt_encoder.linears.0.weight", 2)[1],
        "mlp_ratio": shape("double_blocks.0.motion_mlp.fc1.weight", 2)[0] / max(1, width),
    }
    network, pipeline = _told(config)
    ratio = network.get("mlp_ratio")
    if isinstance(ratio, float) and int(width * ratio) == round(width * sizes["mlp_ratio"]):
        sizes["mlp_ratio"] = ratio  # the hidden width is cut off to a whole number
    for name in sizes:
        if name in network and network[name] != sizes[name]:
            raise UserError(
                f"{config}: {name} = {network[name]!r}, the tensors of {checkpoint.path.name} have {sizes[name]}; give "
                "the two files of one release"
            )

    def number(values: dict[str, Any], key: str, usual: float, least: float = 1e-6) -> float:
        value = values.get(key, usual)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e6:
            raise UserError(f"{config}: {key} = {value!r} must be a number above 0, such as {usual:g}")
        return float(value)

    sizes["band_frames"] = round(number(network, "narrowband_length", RELEASED_BAND / BAND_FPS, 0.0) * BAND_FPS)
    sizes["time_factor"] = number(network, "time_factor", ModelConfig.time_factor)
    sizes["text_position"] = round(number(pipeline, "train_frames", ModelConfig.text_position))
    return ReleasedSizes(ModelConfig(**sizes), number(pipeline, "output_mesh_fps", BAND_FPS))


def _told(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of network and pipeline in a ``config.yml``; none where there is no such file."""
    if not path.is_file():
        return {}, {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        found = [content.get(key) or {} for key in ("network_module_args", "train_pipeline_args")]
        network, pipeline = ({key: value for key, value in part.items() if value is not None} for part in found)
        return network, pipeline
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
        line = str(error).splitlines()[0]
        raise UserError(
            f"{path}: not a release's configuration ({line}); leave it out, or take the release's"
        ) from None

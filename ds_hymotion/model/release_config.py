"""The ``config.yml`` beside a ``latest.ckpt``: which classes of the release build the network, and with which sizes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ds_hymotion.formats.files import replace_file
from ds_hymotion.formats.tensors import write_text
from ds_hymotion.model.config import ModelConfig

STATISTICS = "stats"
RELEASED_BAND = 60  # frames: the network class's own default, 2 s at 30 fps
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
        network["narrowband_length"] = config.band_frames / 30  # the class multiplies by 30, whatever the frame rate
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
    replace_file(folder / "config.yml", lambda temporary: write_text(temporary, text))


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

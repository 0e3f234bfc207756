"""Settings of a run without a JSON, by the device it runs on."""

from __future__ import annotations

from typing import Any

import torch

from ds_hymotion.parallel.mesh import runs_on_gpu

NAME = "default settings"


def default_settings(fine_tunes: bool, text_encoder: str) -> dict[str, Any]:
    """A DeepSpeed configuration with a ``hymotion`` section: AdamW, ZeRO-1, bf16 where a GPU can.

    Args:
        fine_tunes: whether the run starts from trained weights, which a tenth of the learning rate suits.
        text_encoder: name of the corpus's text features.
    """
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-5 if fine_tunes else 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.0},
        },
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": runs_on_gpu() and torch.cuda.is_bf16_supported()},
        "hymotion": {
            "text": {"encoder": text_encoder},
            "training": {"max_steps": 1000, "warmup_steps": 100, "save_steps": 500},
        },
    }


def describe(settings: dict[str, Any]) -> str:
    """A line on what was chosen."""
    bf16 = settings["bf16"]["enabled"]
    return (
        f"no --deepspeed_config: AdamW with lr {settings['optimizer']['params']['lr']:g}, ZeRO-1, "
        f"{'bf16' if bf16 else 'fp32'}, 1000 steps; flags change it, ds_configs/ has files to begin with"
    )

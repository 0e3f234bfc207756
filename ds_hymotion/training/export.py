"""The files a finished run leaves: weights for people, and the released format for its tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.released import write_released
from ds_hymotion.training.adapters import export_adapters
from ds_hymotion.training.text import export_tower
from ds_hymotion.training.weights import WEIGHTS, Provenance, save_weights


def export_weights(
    folder: Path, tensors: dict[str, torch.Tensor], provenance: Provenance, epoch: int, say: Callable[[str], None]
) -> None:
    """Write whole ``tensors`` by released name: one safetensors file, trained text layers in one of their own, and a
    ``latest.ckpt`` where the network is a release's. Of a run of adapters, write those alone.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        if provenance.lora:
            say(f"adapters: {export_adapters(folder, tensors, provenance)}")
            return
        if text := export_tower(folder, tensors, provenance.text):
            say(f"text layers: {text}")
        save_weights(folder / WEIGHTS, tensors, provenance)
        say(f"weights: {folder / WEIGHTS}")
        if provenance.preset.startswith("hy-motion") and provenance.config == PRESETS[provenance.preset]:
            write_released(folder / "latest.ckpt", tensors, epoch, provenance.steps)
            say(f"released format: {folder / 'latest.ckpt'}")
    except (OSError, UserError) as error:
        raise UserError(f"{folder}: weights not exported ({error}); make room and run again with --resume") from None

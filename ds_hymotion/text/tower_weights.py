"""Trained text weights: their names in a run, in Qwen3, and in a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import save_tensors

FORMAT = "ds_hymotion text tower 1"
TOWER_FILE = "text_tower.safetensors"
# Parameters of :class:`ds_hymotion.text.live.TextTower` inside a run; no released name begins so.
TOWER = "text_tower."
_UPPER = TOWER + "upper."


def is_tower(name: str) -> bool:
    """Whether a run's parameter of this name is a text tower's, not the network's."""
    return name.startswith(TOWER)


def qwen_names(tensors: Mapping[str, Tensor], frozen_layers: int) -> dict[str, Tensor]:
    """A run's text weights under the names they have in Qwen3: "layers.12.mlp.up_proj.weight", "norm.weight"."""
    named = {}
    for name, value in tensors.items():
        kind, _, rest = name.removeprefix(_UPPER).partition(".")
        if kind == "layers":
            number, _, inner = rest.partition(".")
            rest = f"{int(number) + frozen_layers}.{inner}"
        named[f"{kind}.{rest}"] = value
    return named


def save_tower(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write trained text weights by their names in Qwen3."""
    save_tensors(path, tensors, {"format": FORMAT})


def read_tower(path: Path) -> dict[str, Tensor]:
    """What :func:`save_tower` wrote.

    Raises:
        UserError: not such a file.
    """
    try:
        with safe_open(path, framework="pt") as reader:
            found = (reader.metadata() or {}).get("format")
            if found != FORMAT:
                raise UserError(f"{path}: format {found!r} is not {FORMAT!r}; give the {TOWER_FILE} of a run")
            return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a file of text weights ({error}); give the {TOWER_FILE} of a run") from None


@torch.no_grad()
def put_tower(qwen: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Set trained text weights in a whole Qwen3.

    Raises:
        UserError: a tensor that this Qwen3 does not have, or of another shape.
    """
    parameters = dict(qwen.named_parameters())
    for name, value in tensors.items():
        if name not in parameters or parameters[name].shape != value.shape:
            own = tuple(parameters[name].shape) if name in parameters else "absent"
            raise UserError(
                f"{source}: {name} is {tuple(value.shape)}, in this Qwen3 {own}; give the Qwen3 it was trained from"
            )
        parameters[name].copy_(value)

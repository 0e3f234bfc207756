"""The release's ``latest.ckpt``, read and written."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import own_name

INPUT = "motion_transformer.input_encoder."
HEAD = "motion_transformer.final_layer.linear."
CHANNEL_TENSORS = (INPUT + "weight", INPUT + "bias", HEAD + "weight", HEAD + "bias", "mean", "std")
NAMED_TENSORS = 3


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """Contents of a ``latest.ckpt``: tensors by released name, and where its training stood."""

    path: Path
    state: dict[str, Tensor]
    epoch: int
    global_step: int


@dataclass(frozen=True)
class LoadReport:
    """What a load took over (``loaded``), what keeps its fresh value (``fresh``), and why."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        text = f"{len(self.loaded)} tensors loaded"
        return f"{text}, {len(self.fresh)} fresh ({self.why}): {', '.join(self.fresh)}" if self.fresh else text


def load_released(path: str | Path) -> ReleasedCheckpoint:
    """Read a ``latest.ckpt`` on the CPU, memory-mapped where its format allows; no code in it is run.

    Raises:
        UserError: no such file, a damaged one, or one that is not such a checkpoint.
    """
    path = Path(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the latest.ckpt of a release or of a run") from None
    except pickle.UnpicklingError:  # its message advises to load without weights_only: code in the file would run
        raise UserError(f"{path}: damaged, not a PyTorch checkpoint, or one that holds more than tensors") from None
    except Exception as error:  # damage surfaces as nearly anything: struct.error, AssertionError, BadZipFile, ...
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: damaged or not a PyTorch checkpoint ({first})") from None
    state = content.get("model_state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict) or not state:
        found = (
            ", ".join(map(str, list(content)[:NAMED_TENSORS])) if isinstance(content, dict) else type(content).__name__
        )
        raise UserError(f"{path}: holds {found or 'nothing'}, not model_state_dict, epoch and global_step")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{path}: model_state_dict[{name!r}] is a {type(value).__name__}, not a tensor")
    counts = []
    for key in ("epoch", "global_step"):
        value = content.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{path}: {key} = {value!r} is not a whole number")
        counts.append(value)
    return ReleasedCheckpoint(path, state, counts[0], counts[1])


def save_released(path: str | Path, generator: MotionGenerator, epoch: int, global_step: int) -> None:
    """Write the generator's weights as a ``latest.ckpt``; see :func:`write_released`."""
    write_released(path, generator.state_dict(), epoch, global_step)


def write_released(path: str | Path, state: Mapping[str, Tensor], epoch: int, global_step: int) -> None:
    """Write whole tensors by released name as a ``latest.ckpt`` in fp32, under another name first.

    Raises:
        UserError: the place cannot be written; an old file there is untouched.
    """
    whole = {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in state.items()}
    content = {"model_state_dict": whole, "epoch": int(epoch), "global_step": int(global_step)}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            torch.save(content, file)

    replace_file(path, write)


@torch.no_grad()
def load_into(
    generator: MotionGenerator,
    state: Mapping[str, Tensor],
    source: str | Path = "checkpoint",
    allow_fresh: bool = True,
) -> LoadReport:
    """Copy ``state`` into the generator, cast to its dtypes.

    Where the generator has another number of motion channels and ``allow_fresh``, the tensors that follow that number
    (input projection, head, mean, std) keep the values they have; everything else is taken over.

    Args:
        source: how messages call the state.

    Raises:
        UserError: missing, unknown or otherwise differing tensors, by name and shapes. Nothing was changed then.
    """
    own = generator.state_dict()
    channels = generator.config.input_dim
    theirs = state[INPUT + "weight"].shape[-1] if state.get(INPUT + "weight", torch.empty(())).ndim == 2 else channels
    of_channels = tuple(name for name in own if own_name(name) in CHANNEL_TENSORS)
    fresh = of_channels if theirs != channels and allow_fresh else ()
    differing = [
        f"{name} is {_shape(state[name])} where the network has {_shape(own[name])}"
        for name in own
        if name in state and name not in fresh and state[name].shape != own[name].shape
    ]
    missing = [f"{name} {_shape(own[name])}" for name in own if name not in state and name not in fresh]
    unknown = [f"{name} {_shape(state[name])}" for name in state if name not in own]
    for problem, tensors in (("differs", differing), ("lacks", missing), ("has unknown", unknown)):
        if tensors:
            raise UserError(
                f"{source}: {problem} {_list(tensors)}; the network is {_sizes(generator)}: choose the "
                "preset that this checkpoint was made with"
            )
    loaded = tuple(name for name in own if name not in fresh)
    for name in loaded:
        own[name].copy_(state[name])
    return LoadReport(loaded, fresh, f"{theirs} channels there, {channels} here" if fresh else "")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"


def _list(tensors: Sequence[str]) -> str:
    rest = len(tensors) - NAMED_TENSORS
    return "; ".join(tensors[:NAMED_TENSORS]) + (f"; and {rest} more" if rest > 0 else "")


def _sizes(generator: MotionGenerator) -> str:
    config = generator.config
    return f"width {config.feat_dim}, {config.num_layers} layers, {config.num_heads} heads, {config.input_dim} channels"

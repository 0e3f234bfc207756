"""The release's ``latest.ckpt``, read and written."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.model.generator import MotionGenerator

RELEASED = "latest.ckpt"  # its name in a release
INPUT = "motion_transformer.input_encoder."
HEAD = "motion_transformer.final_layer.linear."
CHANNEL_TENSORS = (INPUT, HEAD, "mean ", "std ")
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
    """What a load did with every tensor.

    Attributes:
        loaded: names of tensors that were taken over.
        fresh: those that keep the values they had, and why.
        unused: those of the file that the network has no place for, and why.
        sizes: how many numbers each tensor of the network has.
    """

    loaded: tuple[str, ...]
    fresh: Mapping[str, str]
    unused: Mapping[str, str]
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        parts += [f"{len(names)} {kind}" for kind, names in (("fresh", self.fresh), ("unused", self.unused)) if names]
        return ", ".join(parts)

    def with_fresh(self, reasons: Mapping[str, str]) -> LoadReport:
        """The same where some of the loaded tensors were the network's own fresh ones, for these reasons."""
        loaded = tuple(name for name in self.loaded if name not in reasons)
        return replace(self, loaded=loaded, fresh={**self.fresh, **reasons})

    def table(self) -> str:
        """A line for every part of the network: how many tensors and numbers were loaded, how many are fresh, why."""
        rows = [("part", "loaded", "numbers", "fresh", "unused", "why")]
        parts = dict.fromkeys(map(part_of, [*self.sizes, *self.unused]))
        for part in parts:
            loaded = [name for name in self.loaded if part_of(name) == part]
            fresh = [name for name in self.fresh if part_of(name) == part]
            unused = [name for name in self.unused if part_of(name) == part]
            reasons = dict.fromkeys([self.fresh[name] for name in fresh] + [self.unused[name] for name in unused])
            why = "; ".join([*reasons][:NAMED_TENSORS]) + ("; ..." if len(reasons) > NAMED_TENSORS else "")
            numbers = sum(self.sizes[name] for name in loaded)
            rows.append((part, str(len(loaded)), f"{numbers:,}", str(len(fresh)), str(len(unused)), why))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            f"{part:<{widths[0]}}  " + "  ".join(f"{x:>{w}}" for x, w in zip(numbers, widths[1:])) + f"  {why}".rstrip()
            for part, *numbers, why in rows
        )


def part_of(name: str) -> str:
    """The part of the network that a tensor belongs to, such as ``double_blocks``."""
    return name.removeprefix("motion_transformer.").partition(".")[0]


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
    allow_fresh: bool = False,
) -> LoadReport:
    """Copy ``state`` into the generator, cast to its dtypes.

    Args:
        source: how messages call the state.
        allow_fresh: let tensors that the state lacks or has in another shape keep the values they have, and leave
            tensors aside that the network does not know.

    Raises:
        UserError: missing, unknown or otherwise differing tensors, by name and shapes, or no tensor in common. Nothing
            was changed then.
    """
    own = generator.state_dict()
    differing = {
        name: f"{_shape(state[name])} there, {_shape(own[name])} here"
        for name in own
        if name in state and state[name].shape != own[name].shape
    }
    missing = {name: "not there" for name in own if name not in state}
    unknown = {name: "not in this network" for name in state if name not in own}
    loaded = tuple(name for name in own if name in state and name not in differing)
    named = {
        "differs": [f"{name} is {_shape(state[name])} where the network has {_shape(own[name])}" for name in differing],
        "lacks": [f"{name} {_shape(own[name])}" for name in missing],
        "has unknown": [f"{name} {_shape(state[name])}" for name in unknown],
    }
    for problem, tensors in named.items():
        if tensors and (not allow_fresh or not loaded):
            raise UserError(
                f"{source}: {problem} {_list(tensors)}; the network is {_sizes(generator)}: {_advice(named)}"
            )
    for name in loaded:
        own[name].copy_(state[name])
    return LoadReport(loaded, {**differing, **missing}, unknown, {name: value.numel() for name, value in own.items()})


def _advice(named: Mapping[str, Sequence[str]]) -> str:
    others = [*named["lacks"], *named["has unknown"]]
    if not others and all(text.startswith(CHANNEL_TENSORS) for text in named["differs"]):
        return (
            "the motions have another number of channels; prepare the corpus with the representation of these weights, "
            "or start input projection, head, mean and std afresh with --allow_fresh"
        )
    return "choose the preset that this checkpoint was made with, or start such tensors afresh with --allow_fresh"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"


def _list(tensors: Sequence[str]) -> str:
    rest = len(tensors) - NAMED_TENSORS
    return "; ".join(tensors[:NAMED_TENSORS]) + (f"; and {rest} more" if rest > 0 else "")


def _sizes(generator: MotionGenerator) -> str:
    config = generator.config
    return f"width {config.feat_dim}, {config.num_layers} layers, {config.num_heads} heads, {config.input_dim} channels"

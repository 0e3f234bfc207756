"""Adam with moments of 8 bit, of the package bitsandbytes: a quarter of the memory of fp32 moments.

A moment is a code per element, a table of 256 values, and the largest magnitude of every block of elements.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ds_hymotion.config.deepspeed_keys import EIGHT_BIT
from ds_hymotion.errors import UserError

MOMENT_BYTES = 1 + 4 / 256
"""A number's share of a moment: its code, and of the magnitude of a block of 256, bitsandbytes' own size."""
NAMES = {"exp_avg": "state1", "exp_avg_sq": "state2"}
"""A moment's name in other Adams, which checkpoints use, and in this one."""


def require_package(settings: dict[str, Any], name: str) -> None:
    """Refuse a run whose optimizer cannot be had here; a plan alone does not need it.

    Raises:
        UserError: bitsandbytes is asked for and not installed.
    """
    kind = settings["optimizer"]["type"]
    if kind in EIGHT_BIT and find_spec("bitsandbytes") is None:
        raise UserError(
            f"{name}: optimizer.type = {kind!r} needs the package bitsandbytes; pip install bitsandbytes, or use "
            f"{EIGHT_BIT[kind]}"
        )


def optimizer_of(settings: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer] | None]:
    """``settings`` as DeepSpeed takes them, and what makes the optimizer where its type is not one of DeepSpeed's."""
    optimizer = settings["optimizer"]
    if optimizer["type"] not in EIGHT_BIT:
        return settings, None
    import bitsandbytes

    kind = getattr(bitsandbytes.optim, optimizer["type"])
    rest = {key: value for key, value in settings.items() if key != "optimizer"}
    return {**rest, "zero_allow_untested_optimizer": True}, lambda groups: kind(groups, **optimizer["params"])


def is_quantised(state: MutableMapping[str, Any], name: str) -> bool:
    """Whether the moment called ``name`` is held as codes; small tensors keep theirs in fp32."""
    value = state.get(NAMES.get(name, ""))
    return torch.is_tensor(value) and value.dtype == torch.uint8


def read_moment(state: MutableMapping[str, Any], name: str) -> Tensor:
    """A moment [n] in fp32."""
    number = NAMES[name][-1]
    codes, largest = state[NAMES[name]].view(-1), state[f"absmax{number}"]
    block = -(-codes.numel() // largest.numel())
    scale = largest.repeat_interleave(_block_size(block))[: codes.numel()]
    return state[f"qmap{number}"][codes.long()] * scale


def write_moment(state: MutableMapping[str, Any], name: str, values: Tensor) -> None:
    """Replace a moment by the nearest codes of ``values`` [n]."""
    from bitsandbytes.functional import quantize_blockwise

    number = NAMES[name][-1]
    codes, largest = state[NAMES[name]], state[f"absmax{number}"]
    size = _block_size(-(-codes.numel() // largest.numel()))
    quantised, scales = quantize_blockwise(values, code=state[f"qmap{number}"], blocksize=size)
    codes.copy_(quantised.view(codes.shape))
    largest.copy_(scales.absmax)


def _block_size(least: int) -> int:
    """The power of two that blocks have, at least ``least`` elements: a last block may be shorter."""
    return 1 << (least - 1).bit_length()

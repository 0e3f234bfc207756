"""What a network's units keep, need and send in one micro-batch: a real pass over tensors without memory.

The network runs forward and backward in torch's fake tensors, so autograd itself says what it keeps. Blocks of a kind
are alike, so a network of three layers tells all; collectives of tensor ranks are counted and do nothing.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ds_hymotion.flow.losses import channel_sums
from ds_hymotion.model.adapters import LowRank, add_adapters, linear_names
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.parallel.tensor import cut_network, plan_cuts
from ds_hymotion.parallel.wrapped_calls import WrappedCalls
from ds_hymotion.reports.planner.load import Shape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYERS = 3
EMBED, DOUBLE, SINGLE, HEAD, LOSS = "embed", "double", "single", "head", "loss"


@dataclass
class Trace:
    """Bytes of one micro-batch on one tensor rank, by kind of unit.

    Attributes:
        kept: what autograd keeps for the backward pass, weights apart.
        inputs: the stream that a recomputed block keeps instead.
        sent: messages of tensor ranks, both passes.
        again: those of the forward pass, which a recomputed block sends twice.
        working: most that is alive in the backward pass beside what is kept.
        wire: what crosses a stage boundary in one direction.
    """

    kept: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    working: int = 0
    wire: int = 0


@lru_cache(maxsize=64)
def trace(
    config: ModelConfig,
    shape: Shape,
    dtype: str,
    channels: tuple[tuple[int, ...], ...],
    rank: int = 0,
    low_rank: LowRank | None = None,
) -> Trace:
    """Run one micro-batch of ``shape`` on tensor rank ``rank``, whose ranks predict ``channels``.

    Experts are traced as the plain network: each row goes through one of them.
    """
    small = dataclasses.replace(config, num_layers=LAYERS, expert_names=(), expert_blocks=0)
    kind = DTYPES[dtype]
    inputs = shape.weight * config.feat_dim * kind.itemsize
    wire = inputs + shape.rows * (config.feat_dim * kind.itemsize + 4 * (1 + shape.tokens))
    found, where = Trace(inputs=inputs, wire=wire), _Place()
    with torch.device("meta"):
        network = MotionGenerator(small)
    if low_rank:
        here = set(linear_names(network))
        modules = tuple(name for name in low_rank.modules if name in here)
        add_adapters(network, dataclasses.replace(low_rank, modules=modules), 0, lambda _: False)
    cut_network(network, plan_cuts(network, small, channels), rank, None)
    with _standing_collectives(len(channels), rank, found, where), FakeTensorMode():
        _materialise(network, kind)
        given = _inputs(small, shape)
        _follow(network, where)
        alive, kept = _Alive(), _Kept(network, found, where)
        with alive, torch.autograd.graph.saved_tensors_hooks(kept.add, lambda value: value):
            velocity = network(*given)
            where.unit = LOSS
            loss = channel_sums(velocity, torch.zeros(velocity.shape), given[1]).sum()
            del velocity
            at_rest = alive.peak = alive.now
            found.again.update(found.sent)
            loss.backward()
        batch = sum(value.nbytes for value in given) + given[0].nbytes  # the noise
        found.working = alive.peak - at_rest + batch
    for name, blocks in ((DOUBLE, small.double_layers), (SINGLE, small.single_layers)):
        for counts in (found.kept, found.sent, found.again):
            counts[name] = -(-counts[name] // blocks)
    return found


@dataclass
class _Place:
    """The unit that is running."""

    unit: str = EMBED


class _Kept:
    """Counts what autograd packs, each storage once."""

    def __init__(self, network: nn.Module, found: Trace, where: _Place) -> None:
        self._seen = WeakIdKeyDictionary({value.untyped_storage(): True for value in network.parameters()})
        self._found, self._where = found, where

    def add(self, value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage not in self._seen:
            self._seen[storage] = True
            self._found.kept[self._where.unit] += storage.nbytes()
        return value


class _Alive(TorchDispatchMode):
    """Counts the bytes of all tensors made inside that are still alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and (storage := value.untyped_storage()) not in self._known:
                self._known[storage] = True
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, size: int) -> None:
        self.now -= size


def _materialise(network: MotionGenerator, dtype: torch.dtype) -> None:
    """Fake weights in place of those on the meta device; their gradients go as soon as they are whole."""
    for name, value in list(network.named_parameters()):
        parent, _, child = name.rpartition(".")
        fake = nn.Parameter(torch.empty(value.shape, dtype=dtype), requires_grad=value.requires_grad)
        if value.requires_grad:
            fake.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
        setattr(network.get_submodule(parent), child, fake)


def _inputs(config: ModelConfig, shape: Shape) -> tuple[Tensor, ...]:
    rows, frames, tokens = shape.rows, shape.frames, shape.tokens
    return (
        torch.zeros(rows, frames, config.input_dim),
        torch.full((rows,), frames),
        torch.zeros(rows, tokens, config.ctxt_input_dim),
        torch.full((rows,), tokens),
        torch.zeros(rows, config.vtxt_input_dim),
        torch.zeros(rows),
        torch.zeros(rows, dtype=torch.bool),
    )


def _follow(network: MotionGenerator, where: _Place) -> None:
    """Keep ``where`` up to date: forward by each unit's call, backward by the gradient of its output."""
    parts = network.motion_transformer
    units = [*((block, DOUBLE) for block in parts.double_blocks), *((block, SINGLE) for block in parts.single_blocks)]
    for number, (module, name) in enumerate([*units, (parts.final_layer, HEAD)]):

        def enter(_: nn.Module, given: tuple[Any, ...], name: str = name, first: bool = number == 0) -> None:
            where.unit = name
            if first and given[0].motion.requires_grad:
                given[0].motion.register_hook(lambda _: setattr(where, "unit", EMBED))

        def leave(_: nn.Module, given: Any, output: Any, name: str = name) -> None:
            motion = output if isinstance(output, Tensor) and name == HEAD else output.motion
            if motion.requires_grad:
                motion.register_hook(lambda _: setattr(where, "unit", name))

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


@contextmanager
def _standing_collectives(size: int, rank: int, found: Trace, where: _Place) -> Iterator[None]:
    """Inside, messages of tensor ranks are counted, as whole as they are handed over, and nothing is sent."""

    def count(message: Tensor, *_: Any, **__: Any) -> None:
        found.sent[where.unit] += message.nbytes

    calls = WrappedCalls()
    if size > 1:
        for name in ("all_reduce", "all_gather_single", "all_gather_into_tensor"):
            if hasattr(dist, name):
                calls.replace(dist, name, count)
        calls.replace(dist, "get_rank", lambda *_: rank)
    try:
        yield
    finally:
        calls.restore()

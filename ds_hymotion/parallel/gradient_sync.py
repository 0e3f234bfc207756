"""Selective gradient sync: some parameters are averaged over the data ranks and stepped every step, the others every
few steps with the mean of what they accumulated.

DeepSpeed knows no such thing: it averages and steps all parameter groups of an optimizer. The deferred parameters are
therefore the *last* group, and between syncs DeepSpeed is shown its own lists without their last entry while it
reduces, steps, clears and gathers, so that nothing of the group is touched: no weight, moment, decay or gradient, and
no byte sent. Indices of the other groups stay valid. Everything is done on this engine's objects, never on the
library's classes. Written for DeepSpeed 0.19; the tests compare every mode with two plain optimizers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.states import shape_of
from ds_hymotion.parallel.traffic import GRADIENTS, WEIGHTS, Traffic

# What each optimizer walks through group by group, in reduce, step, zero_grad and all-gather.
WALKED = {
    "DeepSpeedZeroOptimizer": (
        "bit16_groups",
        "bit16_groups_flat",
        "parallel_partitioned_bit16_groups",
        "params_in_partition",
    ),
    "BF16_Optimizer": (
        "bf16_groups",
        "bf16_groups_flat",
        "bf16_partitioned_groups",
        "fp32_groups_flat_partition",
        "fp32_groups_gradients",
        "fp32_groups_gradients_flat",
        "fp32_groups_gradient_flat_partition",
        "non_expert_gradients",
    ),
}


class GradientSync:
    """Runs an engine's backward and step so that the deferred parameters take part in every ``every``-th step only.

    Between syncs each rank adds up its own gradients of the deferred parameters, in fp32, over micro-batches and
    steps. At a sync the sums are divided by the number of steps they hold, averaged over the data ranks, clipped
    together with the others, and stepped. A run that ends or saves between two syncs does not force one.

    Args:
        engine: DeepSpeed's engine; with deferred parameters, its optimizer has two groups, the deferred one last.
        always: the parameters of the first group by name.
        deferred: those of the last group by name, in its order; may be empty: then every step is DeepSpeed's own.
        every: steps from sync to sync.
        traffic: counts what is sent.
        names: the deferred parameters of all pipeline stages; by default ``deferred`` alone.
    """

    def __init__(
        self,
        engine: Any,
        always: Mapping[str, torch.nn.Parameter],
        deferred: Mapping[str, torch.nn.Parameter],
        every: int,
        traffic: Traffic,
        names: Sequence[str] | None = None,
    ) -> None:
        self.engine = engine
        self.always = dict(always)
        self.deferred = dict(deferred)
        self.names = list(self.deferred if names is None else names)
        self.every = every
        self.traffic = traffic
        self.held = 0
        self.due = True
        self._syncs = True
        self._kind = type(engine.optimizer).__name__
        self._reduces_in_backward = not self.deferred or bool(engine.zero_optimization_partition_gradients())
        self._elements = {"always": _elements(self.always)}
        if self.deferred:
            self._elements_at_sync = {**self._elements, "others": _elements(self.deferred)}
            engine.enable_backward_allreduce = self._reduces_in_backward
            if self._reduces_in_backward:
                self._filter_hooks()

    def begin(self, step: int) -> None:
        """Start optimizer step ``step`` (from 0): a sync where (step + 1) is a multiple of ``every``."""
        self.due = not self.deferred or (step + 1) % self.every == 0

    @property
    def stepping(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that this step moves, by name."""
        return {**self.always, **self.deferred} if self.due else self.always

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Backward of one micro-batch; after the step's ``last`` one the gradients of ``stepping`` are averaged."""
        if self._reduces_in_backward:
            self._syncs = self.due and last
            with self._sends(GRADIENTS, self._syncs), self._walk(self._syncs):
                self.engine.backward(loss)
            return
        self.engine.backward(loss)
        if last:
            with self.reducing():
                self.engine.allreduce_gradients()

    def step(self, last: bool) -> None:
        """The engine's step after one micro-batch, which moves weights after the step's ``last`` one."""
        if not last:
            self.engine.step()
            return
        with self.moving():
            self.engine.step()

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Surrounds an engine's own reduction of gradients, after the last backward of a step."""
        if self.deferred and self.due:
            torch._foreach_mul_(list(self.accumulated().values()), 1.0 / (self.held + 1))
        with self._sends(GRADIENTS, self.due), self._walk(self.due):
            yield

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Surrounds an engine's own optimizer step, with all that it clears and gathers."""
        with self._sends(WEIGHTS, self.due), self._walk(self.due):
            yield
        if self.deferred:
            self.held = 0 if self.due else self.held + 1

    def accumulated(self) -> dict[str, torch.Tensor]:
        """This rank's own sums of deferred gradients by name; the tensors themselves."""
        if self._kind == "BF16_Optimizer":
            sums = self.engine.optimizer.fp32_groups_gradients[-1]
            return {name: value.view(p.shape) for (name, p), value in zip(self.deferred.items(), sums)}
        for parameter in self.deferred.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return {name: _gradient(parameter) for name, parameter in self.deferred.items()}

    @torch.no_grad()
    def restore(self, held: int, sums: Mapping[str, torch.Tensor]) -> None:
        """Continue with ``held`` steps in this rank's sums."""
        self.held = held
        for name, value in self.accumulated().items():
            value.copy_(sums[name])

    @contextmanager
    def _walk(self, whole: bool) -> Iterator[None]:
        """Unless ``whole``, hide the deferred group from the engine and its optimizers."""
        if whole or not self.deferred:
            yield
        elif self._kind in WALKED:
            with (
                _shortened(self.engine.optimizer, WALKED[self._kind]),
                _shortened(self.engine.basic_optimizer, ("param_groups",)),
            ):
                yield
        else:
            # Without ZeRO the engine reduces what requires a gradient, and clips, steps and clears what has one.
            kept = [parameter.grad for parameter in self.deferred.values()]
            for parameter in self.deferred.values():
                parameter.grad = None
                parameter.requires_grad_(False)
            try:
                yield
            finally:
                for parameter, gradient in zip(self.deferred.values(), kept):
                    parameter.requires_grad_(True)
                    parameter.grad = gradient

    def _filter_hooks(self) -> None:
        """ZeRO-2 reduces each gradient in a hook of its own: deferred ones wait for the sync's last micro-batch."""
        optimizer, process = self.engine.optimizer, self.engine.optimizer.process_gradients
        last_group = len(optimizer.bit16_groups) - 1

        def process_when_due(parameter: torch.nn.Parameter, group: int) -> None:
            if group == last_group:
                if not self._syncs:
                    return
                _gradient(parameter).mul_(1.0 / (self.held + 1))
            process(parameter, group)

        optimizer.process_gradients = process_when_due

    def _sends(self, purpose: str, syncs: bool) -> Any:
        elements = self._elements_at_sync if syncs and self.deferred else self._elements
        return self.traffic.region(purpose, elements) if sum(elements.values()) else nullcontext()


@contextmanager
def _shortened(owner: Any, names: tuple[str, ...]) -> Iterator[None]:
    whole = {name: getattr(owner, name) for name in names}
    for name, groups in whole.items():
        setattr(owner, name, groups[:-1])
    try:
        yield
    finally:
        for name, groups in whole.items():
            setattr(owner, name, groups)


def _elements(parameters: Mapping[str, torch.nn.Parameter]) -> int:
    return sum(math.prod(shape_of(parameter)) for parameter in parameters.values())


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


class OutOfSync(UserError):
    """Ranks hold different weights that should be equal: a defect, or a damaged machine."""


def assert_synced(mesh: Mesh, parameters: Mapping[str, torch.Tensor], when: str = "") -> None:
    """Check that all data ranks hold bit-identical tensors (collective over all ranks).

    Raises:
        OutOfSync: on all ranks alike, naming the first tensor that differs.
    """
    digests = {name: _digest(value) for name, value in parameters.items()}
    every = mesh.gather_over_data(digests)
    # Experts that some ranks hold are compared among these.
    different = [name for name in digests if len({other[name] for other in every if name in other}) > 1]
    problem = ""
    if different:
        name = different[0]
        first = next(rank for rank, other in enumerate(every) if name in other)
        ranks = [rank for rank, other in enumerate(every) if other.get(name, every[first][name]) != every[first][name]]
        problem = (
            f"{name} on data rank {ranks[0]} is not that of data rank {first} "
            f"({len(different)} of {len(digests)} tensors differ)"
        )
    if problem := next(filter(None, mesh.gather_objects(problem)), ""):
        raise OutOfSync(f"{when + ': ' if when else ''}{problem}; go back to the last checkpoint with --resume")


def _digest(value: torch.Tensor) -> bytes:
    flat = value.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return hashlib.blake2b(flat.data, digest_size=16).digest()

"""Access to every trained parameter's fp32 state by name, whatever DeepSpeed optimizer holds it.

On the model axis a rank holds its part of a cut parameter. Of that, with ZeRO, it owns a slice of the flattened part,
or none; without ZeRO all of it. Whole tensors go in and come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ds_hymotion.parallel.cpu_adam import replay_steps
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.eight_bit import NAMES, is_quantised, read_moment, write_moment
from ds_hymotion.parallel.experts import EXPERT
from ds_hymotion.parallel.mesh import Mesh

MASTER = "master"


@dataclass(frozen=True)
class Fragment:
    """This rank's slice ``[start, start + numel)`` of a flattened parameter."""

    name: str
    start: int
    numel: int


class ParameterStates:
    """Reads and writes fp32 weights and optimizer moments of a DeepSpeed engine, by parameter name.

    Args:
        engine: what ``deepspeed.initialize`` returned.
        parameters: trained parameters by name, in the same order on every rank.
        mesh: this rank's place.
        plan: how the parameters are cut over the model axis.
        stages: every trained parameter of all ranks with its stage and the shape this model rank holds there; None
            where every rank holds all of them.
        holder: by name, the first data rank that holds a parameter; None where all of them do.

    Attributes:
        names: every trained parameter of all ranks, in the same order on every rank.
        holder: by name, the first data rank that holds a parameter.
    """

    def __init__(
        self,
        engine: Any,
        parameters: dict[str, torch.nn.Parameter],
        mesh: Mesh,
        plan: CutPlan | None = None,
        stages: dict[str, tuple[int, tuple[int, ...]]] | None = None,
        holder: Callable[[str], int] | None = None,
    ) -> None:
        self.engine = engine
        self.parameters = parameters
        self.mesh = mesh
        self.plan = plan or CutPlan()
        self._stages = stages or {name: (0, shape_of(value)) for name, value in parameters.items()}
        self.holder = holder or (lambda name: 0)
        self.names = list(self._stages)
        self._written: dict[tuple[torch.Tensor, str], torch.Tensor] = {}
        self.partitioned = bool(engine.zero_optimization()) or hasattr(engine.optimizer, "bf16_groups")

    def fragments(self) -> Iterator[Fragment]:
        """The slices this rank keeps: disjoint over the data axis with ZeRO, whole parts without."""
        for name, parameter in self.parameters.items():
            if not self.partitioned:
                yield Fragment(name, 0, parameter.numel())
            elif (mapping := _mapping(parameter)) is not None:
                address = mapping.lp_fragment_address
                yield Fragment(name, address.start, address.numel)

    def kinds(self) -> list[str]:
        """``master`` and the moments the optimizer keeps per element, such as ``exp_avg``."""
        moments = {
            key
            for flat in self._flat_parameters()
            for key, value in self._base.state.get(flat, {}).items()
            if torch.is_tensor(value) and value.shape == flat.shape and value.dim() > 0
        }
        other = {held: name for name, held in NAMES.items()}
        return [MASTER, *sorted(other.get(key, key) for key in moments)]

    def local(self, fragment: Fragment, kind: str) -> torch.Tensor:
        """This rank's slice, flat, as the very tensor the optimizer updates."""
        parameter = self.parameters[fragment.name]
        if not self.partitioned:
            return (parameter.data if kind == MASTER else self._base.state[parameter][self._held(kind)]).view(-1)
        value = _mapping(parameter).get_hp_fragment(None if kind == MASTER else self._held(kind))
        return value.narrow(0, 0, fragment.numel)

    def whole_shape(self, name: str) -> tuple[int, ...]:
        """A parameter's shape as all model ranks together hold it."""
        return self.plan.whole_shape(name, self._stages[name][1])

    def held(self, name: str) -> tuple[int, int]:
        """The stage that holds a parameter, and how many of its numbers each rank like this one has there."""
        stage, shape = self._stages[name]
        return stage, math.prod(shape)

    def describe(self) -> str:
        """How many parameters are trained, and how many of them all stages of one tensor rank hold."""
        whole = sum(math.prod(self.whole_shape(name)) for name in self.names)
        here = sum(math.prod(shape) for _, shape in self._stages.values())
        held = f" ({here / 1e6:.2f} M on each of {self.plan.size} tensor ranks)" if here < whole else ""
        return f"{whole / 1e6:.2f} M trained parameters{held}"

    def gather(self, name: str, pieces: dict[str, tuple[Fragment, torch.Tensor]]) -> torch.Tensor:
        """A whole fp32 tensor on the first rank, from every rank's ``pieces`` (collective); undefined elsewhere."""
        stage, shape = self._stages[name]
        if stage != self.mesh.pipe_rank:
            return self.join(name, None)
        holder = self.holder(name)
        part = torch.zeros(math.prod(shape), dtype=torch.float32, device=self.mesh.device)
        if name in pieces and (self.partitioned or self.mesh.data_rank == holder):
            fragment, value = pieces[name]
            part[fragment.start : fragment.start + fragment.numel] = value.detach().to(part.device, torch.float32)
        if self.partitioned or holder:
            self.mesh.reduce_to_first(part)
        return self.join(name, part)

    def join(self, name: str, part: torch.Tensor | None) -> torch.Tensor:
        """The whole tensor on the first rank, from the first data ranks' parts (collective); undefined elsewhere.

        A rank whose stage does not hold the parameter gives None.
        """
        here = torch.empty(0) if part is None else self._join_over_model(name, part)
        return self.mesh.bring_to_first(here, self.whole_shape(name), self._stages[name][0])

    def _join_over_model(self, name: str, part: torch.Tensor) -> torch.Tensor:
        if name not in self.plan.cuts or self.mesh.data_rank != 0:
            return part.view(self._stages[name][1])
        part = part.reshape(-1)
        cut, whole = self.plan.cuts[name], self.whole_shape(name)
        shapes = [cut.part_shape(whole, rank) for rank in range(self.plan.size)]
        parts = self.mesh.gather_over_model(part, [math.prod(shape) for shape in shapes])
        return cut.join([value.view(shape) for value, shape in zip(parts, shapes)]) if parts else part

    def pieces(self, kind: str) -> dict[str, tuple[Fragment, torch.Tensor]]:
        """This rank's slices of one kind, for :meth:`gather`."""
        return {fragment.name: (fragment, self._value(fragment, kind)) for fragment in self.fragments()}

    @torch.no_grad()
    def put(self, fragment: Fragment, kind: str, whole: torch.Tensor) -> None:
        """Write this rank's slice of a whole tensor; weights that the network uses are :meth:`put_weight`'s.

        Moments of 8 bit take it in at :meth:`settle`.
        """
        target = self._value(fragment, kind)
        target.copy_(self.slice_of(fragment, whole).to(target.device, target.dtype))

    @torch.no_grad()
    def settle(self) -> None:
        """Quantise the 8-bit moments that were written since the last call."""
        for (flat, kind), values in self._written.items():
            write_moment(self._base.state[flat], kind, values)
        self._written.clear()

    def _value(self, fragment: Fragment, kind: str) -> torch.Tensor:
        """This rank's slice, flat, in floating point; of an 8-bit moment a copy that is kept for :meth:`settle`."""
        if kind != MASTER:
            flat, start = self._place(fragment)
            state = self._base.state[flat]
            if is_quantised(state, kind):
                if (flat, kind) not in self._written:
                    self._written[flat, kind] = read_moment(state, kind)
                return self._written[flat, kind].narrow(0, start, fragment.numel)
        return self.local(fragment, kind)

    def _place(self, fragment: Fragment) -> tuple[torch.Tensor, int]:
        """The tensor that the optimizer steps for a slice, and where the slice begins in it."""
        parameter = self.parameters[fragment.name]
        if not self.partitioned:
            return parameter, 0
        mapping = _mapping(parameter)
        return self._base.param_groups[mapping.param_group_index]["params"][0], mapping.get_hp_fragment_address().start

    def element_bytes(self, kind: str) -> int:
        """Bytes that one element of a kind of state takes."""
        return 1 if is_quantised(self._first_state(), kind) else 4

    def _first_state(self) -> dict[str, Any]:
        return next((self._base.state[flat] for flat in self._flat_parameters() if flat in self._base.state), {})

    def _held(self, kind: str) -> str:
        """How the optimizer's state calls a moment."""
        state = self._first_state()
        return NAMES[kind] if kind in NAMES and NAMES[kind] in state else kind

    def slice_of(self, fragment: Fragment, whole: torch.Tensor) -> torch.Tensor:
        """This rank's slice, flat, of a whole tensor."""
        part = self.plan.cut(fragment.name, whole, self.mesh.model_rank)
        return part.reshape(-1)[fragment.start : fragment.start + fragment.numel]

    @torch.no_grad()
    def put_weight(self, name: str, whole: torch.Tensor) -> None:
        """Set the weight the network computes with, in its own precision; needed on every rank that holds it."""
        self.write(self.parameters[name], self.plan.cut(name, whole, self.mesh.model_rank))

    @torch.no_grad()
    def write(self, parameter: torch.nn.Parameter, part: torch.Tensor) -> None:
        """Copy this rank's ``part`` into a parameter, trained or not."""
        parameter.data.copy_(part.to(parameter.device, parameter.dtype))

    @property
    def steps(self) -> list[int]:
        """The optimizer's own step count of each parameter group, which Adam's bias correction uses."""
        counts = []
        for group in self._base.param_groups:
            value = self._base.state.get(group["params"][0], {}).get("step", 0)
            counts.append(int(value.item() if torch.is_tensor(value) else value))
        return counts

    def expert_steps(self) -> dict[str, int]:
        """The step count of every expert's group, by its number; {} without experts (collective over data)."""
        own = {str(g[EXPERT]): n for g, n in zip(self._base.param_groups, self.steps) if g.get(EXPERT) is not None}
        return {key: count for rank in self.mesh.gather_over_data(own) for key, count in rank.items()} if own else {}

    def group_steps(self, shared: list[int], experts: dict[str, int]) -> list[int]:
        """The step count of each of this rank's groups, from those of groups without and with an expert."""
        numbers = [group.get(EXPERT) for group in self._base.param_groups]
        return shared + [experts[str(number)] for number in numbers if number is not None]

    @torch.no_grad()
    def prepare(self, steps: list[int]) -> None:
        """Make the optimizer allocate its moments before its first step, and set each group's step count."""
        base = self._base
        if not base.state:
            rates = [group["lr"] for group in base.param_groups]
            grads = {flat: flat.grad for flat in self._flat_parameters()}
            for group in base.param_groups:
                group["lr"] = 0.0
            for flat in grads:
                flat.grad = torch.ones_like(flat)
            base.step()
            for flat in grads:
                for key, value in base.state.get(flat, {}).items():
                    per_element = torch.is_tensor(value) and value.shape == flat.shape and value.dim() > 0
                    if per_element or key.startswith("absmax"):
                        value.zero_()
            for flat, grad in grads.items():
                flat.grad = grad
            for group, rate in zip(base.param_groups, rates):
                group["lr"] = rate
        for group, step in zip(base.param_groups, steps, strict=True):
            for flat in group["params"]:
                state = base.state.get(flat, {})
                if torch.is_tensor(state.get("step")):
                    state["step"].fill_(step)
                elif "step" in state:
                    state["step"] = step
        replay_steps(base)
        if hasattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    @property
    def _base(self) -> torch.optim.Optimizer:
        return self.engine.basic_optimizer

    def _flat_parameters(self) -> Iterator[torch.Tensor]:
        for group in self._base.param_groups:
            yield from group["params"]


def shape_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """A parameter's shape before ZeRO-3 divided it, which leaves an empty tensor in its place."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _mapping(parameter: torch.nn.Parameter) -> Any:
    """DeepSpeed's record of the slice of ``parameter`` that this rank's optimizer holds, or None."""
    return getattr(parameter, "_hp_mapping", None)

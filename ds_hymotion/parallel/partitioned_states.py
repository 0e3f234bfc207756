"""Access to the fp32 states of ZeRO-3, which divides the weights themselves over the data ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ds_hymotion.parallel.states import MASTER, Fragment, ParameterStates, shape_of


class PartitionedStates(ParameterStates):
    """As :class:`ParameterStates`: every data rank owns one slice of every flattened parameter, of equal length but
    for what the last ranks lack.

    DeepSpeed joins the slices of many parameters to flat groups, and shows a group to its optimizer only while it
    steps.
    """

    def fragments(self) -> Iterator[Fragment]:
        for name, parameter in self.parameters.items():
            length = parameter.ds_tensor.ds_numel  # type: ignore[attr-defined]
            start = length * self.mesh.data_rank
            numel = min(length, torch.Size(shape_of(parameter)).numel() - start)
            if numel > 0:
                yield Fragment(name, start, numel)

    def local(self, fragment: Fragment, kind: str) -> torch.Tensor:
        flat, start = self._place(fragment)
        value = flat.data if kind == MASTER else self._base.state[flat][self._held(kind)]
        return value.narrow(0, start, fragment.numel)

    def _place(self, fragment: Fragment) -> tuple[torch.Tensor, int]:
        optimizer = self.engine.optimizer
        group, start, _ = optimizer.grad_position[optimizer.get_param_id(self.parameters[fragment.name])]
        return optimizer.fp32_partitioned_groups_flat[group], start

    @torch.no_grad()
    def write(self, parameter: torch.nn.Parameter, part: torch.Tensor) -> None:
        """Copy ``part`` into a parameter (collective: all data ranks write, the first's values count)."""
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if self.mesh.data_rank == 0:
                parameter.data.copy_(part.to(parameter.device, parameter.dtype))

    @property
    def steps(self) -> list[int]:
        with self._shown():
            return super().steps

    @torch.no_grad()
    def prepare(self, steps: list[int]) -> None:
        with self._shown():
            super().prepare(steps)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Inside, the optimizer's parameter groups hold their flat groups."""
        self.engine.optimizer._set_fp32_optimizer_param_groups()
        try:
            yield
        finally:
            self.engine.optimizer._clear_fp32_optimizer_param_groups()

    def _flat_parameters(self) -> Iterator[torch.Tensor]:
        yield from self.engine.optimizer.fp32_partitioned_groups_flat

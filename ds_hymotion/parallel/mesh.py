"""The mesh of ranks: every process group of a run belongs to this object."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ds_hymotion.config.mesh_shape import AXES, MeshShape
from ds_hymotion.errors import UserError
from ds_hymotion.model.precision import accumulate_in_fp32
from ds_hymotion.parallel.same_settings import require_same_settings

T = TypeVar("T")


def quiet_cpu_setup() -> None:
    """Make DeepSpeed start on a machine without a GPU.

    Its shared-memory op compiles at first use, leaves a lock behind when killed and fills ``/dev/shm``; gloo serves.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel("WARNING")
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def runs_on_gpu() -> bool:
    """Whether ranks compute on CUDA devices: there are some, and ``DS_ACCELERATOR`` does not say otherwise."""
    return torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda"


@dataclass(frozen=True)
class Mesh:
    """This rank's place. Batches are divided and gradients averaged over ``data``; tensors are cut over ``model``."""

    rank: int
    world: int
    device: torch.device
    shape: MeshShape
    groups: dict[str, Any]

    @classmethod
    def start(
        cls, model: int = 1, pipe: int = 1, timeout_s: float = 1800.0, settings: Mapping[str, Any] | None = None
    ) -> Mesh:
        """Join the process group that the launcher announced, or make one of this process alone.

        Works under ``deepspeed``, ``torchrun`` and plain ``python``: NCCL with GPUs, gloo without.

        Raises:
            UserError: ``settings``, of which the axes are part, are not those of every rank.
        """
        quiet_cpu_setup()
        import deepspeed

        if "RANK" not in os.environ:
            os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
            os.environ["MASTER_PORT"] = str(free_port())
        backend, device = "gloo", torch.device("cpu")
        if runs_on_gpu():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
            backend = "nccl"
            accumulate_in_fp32()
        timeout = timedelta(seconds=timeout_s)
        deepspeed.init_distributed(dist_backend=backend, timeout=timeout, auto_mpi_discovery=False, verbose=False)
        require_same_settings(settings or {})
        return cls.current(device, model, pipe, timeout)

    @classmethod
    def current(
        cls,
        device: torch.device | None = None,
        model: int = 1,
        pipe: int = 1,
        timeout: timedelta | None = None,
    ) -> Mesh:
        """The mesh over the process group that already runs; every rank must call it."""
        rank, world = dist.get_rank(), dist.get_world_size()
        shape = MeshShape.of(world, model, pipe)
        groups: dict[str, Any] = {"data": dist.group.WORLD}
        if shape.data != world:
            for axis in AXES:
                for line in shape.lines(axis):
                    group = dist.new_group(line, timeout=timeout)
                    if rank in line:
                        groups[axis] = group
        return cls(rank, world, device or torch.device("cpu"), shape, groups)

    @property
    def pipe_rank(self) -> int:
        """Place on the pipe axis: the stage."""
        return self.shape.place(self.rank)[0]

    @property
    def pipe_size(self) -> int:
        """Length of the pipe axis."""
        return self.shape.pipe

    @property
    def pipe_group(self) -> Any:
        """The ranks that a micro-batch passes through; None where there is one stage."""
        return self.groups.get("pipe")

    @property
    def data_rank(self) -> int:
        """Place on the data axis."""
        return self.shape.place(self.rank)[1]

    @property
    def data_size(self) -> int:
        """Length of the data axis."""
        return self.shape.data

    @property
    def model_rank(self) -> int:
        """Place on the model axis: which part of cut tensors this rank holds."""
        return self.shape.place(self.rank)[2]

    @property
    def model_size(self) -> int:
        """Length of the model axis."""
        return self.shape.model

    @property
    def data_group(self) -> Any:
        """The ranks that hold the same part of the network."""
        return self.groups["data"]

    @property
    def model_group(self) -> Any:
        """The ranks that hold the parts of one network; None where there is one part."""
        return self.groups.get("model")

    @property
    def mpu(self) -> ModelParallelUnit | None:
        """What DeepSpeed asks about model parallelism; None for data parallelism alone."""
        return ModelParallelUnit(self) if self.data_size != self.world else None

    def stop(self) -> None:
        """Leave the process group; every rank must call it."""
        dist.barrier()
        dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    def sum_over_data(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` in place over the data axis."""
        if self.data_size > 1:
            dist.all_reduce(values, group=self.data_group)
        return values

    def sum_over_model(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` in place over the model axis."""
        if self.model_size > 1:
            dist.all_reduce(values, group=self.model_group)
        return values

    def sum_over_all(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` in place over all ranks."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def least(self, values: torch.Tensor, group: Any) -> torch.Tensor:
        """The least of each value over a group's ranks, on the values' own device."""
        here = values.to(self.device, copy=True)
        dist.all_reduce(here, dist.ReduceOp.MIN, group=group)
        return here.to(values.device)

    def reduce_to_first(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` in place over the data axis, on its first rank only; undefined elsewhere."""
        if self.data_size > 1:
            dist.reduce(values, dst=dist.get_global_rank(self.data_group, 0), group=self.data_group)
        return values

    def bring_to_first(self, values: torch.Tensor, shape: Sequence[int], stage: int) -> torch.Tensor:
        """The first rank's copy of what the first data and model rank of ``stage`` has; undefined elsewhere."""
        owner = stage * self.data_size * self.model_size
        if owner == 0 or self.rank not in (0, owner):
            return values
        if self.rank == owner:
            dist.send(values.contiguous(), dst=0)
            return values
        received = torch.empty(tuple(shape), device=self.device)
        dist.recv(received, src=owner)
        return received

    def share_over_pipe(self, values: torch.Tensor, stage: int) -> torch.Tensor:
        """``stage``'s ``values`` in place on all stages."""
        if self.pipe_size > 1:
            source = dist.get_global_rank(self.pipe_group, stage)
            dist.broadcast(values, src=source, group=self.pipe_group)
        return values

    def gather_over_model(self, flat: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """Every model rank's ``flat`` tensor, of ``sizes`` elements, on the first model rank; [] elsewhere."""
        padded = torch.nn.functional.pad(flat, (0, max(sizes) - flat.numel()))
        first = self.model_rank == 0
        parts = [torch.empty_like(padded) for _ in sizes] if first else None
        dist.gather(padded, parts, dst=dist.get_global_rank(self.model_group, 0), group=self.model_group)
        return [part[:size] for part, size in zip(parts or [], sizes)]

    def agree(self, message: str) -> str:
        """What the first rank says, on every rank: one outcome for all, whatever happened there."""
        if self.world == 1:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def on_first(self, action: Callable[[], T]) -> T | None:
        """What ``action`` returns on the first rank, None elsewhere (collective).

        Raises:
            UserError: it failed there with an OSError or a UserError; on every rank alike.
        """
        result, problem = None, ""
        if self.is_first:
            try:
                result = action()
            except (OSError, UserError) as error:
                problem = str(error) or type(error).__name__
        if problem := self.agree(problem):
            raise UserError(problem)
        return result

    def gather_over_data(self, value: Any) -> list[Any]:
        """The ``value`` of every rank of this data group, on all of them."""
        if self.data_size == 1:
            return [value]
        values: list[Any] = [None] * self.data_size
        dist.all_gather_object(values, value, group=self.data_group)
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's ``value``, on all ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


class ModelParallelUnit:
    """A :class:`Mesh` with the names that DeepSpeed's engines call, Megatron's ``mpu``."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def get_model_parallel_rank(self) -> int:
        return self._mesh.model_rank

    def get_model_parallel_world_size(self) -> int:
        return self._mesh.model_size

    def get_model_parallel_group(self) -> Any:
        return self._mesh.model_group

    def get_data_parallel_rank(self) -> int:
        return self._mesh.data_rank

    def get_data_parallel_world_size(self) -> int:
        return self._mesh.data_size

    def get_data_parallel_group(self) -> Any:
        return self._mesh.data_group

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self._mesh.data_group)


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

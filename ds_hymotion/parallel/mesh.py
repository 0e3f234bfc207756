"""The mesh of ranks: every process group of a run belongs to this object."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ds_hymotion.model.precision import accumulate_in_fp32


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


@dataclass(frozen=True)
class Mesh:
    """This rank's place. ``data`` is the axis over which batches are divided and gradients averaged."""

    rank: int
    world: int
    device: torch.device
    data_rank: int
    data_size: int
    data_group: Any

    @classmethod
    def start(cls, timeout_s: float = 1800.0) -> Mesh:
        """Join the process group that the launcher announced, or make one of this process alone.

        Works under ``deepspeed``, ``torchrun`` and plain ``python``: NCCL with GPUs, gloo without.
        """
        quiet_cpu_setup()
        import deepspeed

        if "RANK" not in os.environ:
            os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
            os.environ["MASTER_PORT"] = str(free_port())
        backend, device = "gloo", torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
            backend = "nccl"
            accumulate_in_fp32()
        deepspeed.init_distributed(
            dist_backend=backend, timeout=timedelta(seconds=timeout_s), auto_mpi_discovery=False, verbose=False
        )
        return cls.current(device)

    @classmethod
    def current(cls, device: torch.device | None = None) -> Mesh:
        """The mesh over the process group that already runs."""
        rank, world = dist.get_rank(), dist.get_world_size()
        return cls(rank, world, device or torch.device("cpu"), rank, world, dist.group.WORLD)

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

    def reduce_to_first(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` in place over the data axis, on its first rank only; undefined elsewhere."""
        if self.data_size > 1:
            dist.reduce(values, dst=dist.get_global_rank(self.data_group, 0), group=self.data_group)
        return values

    def agree(self, message: str) -> str:
        """What the first rank says, on every rank: one outcome for all, whatever happened there."""
        if self.world == 1:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0)
        return box[0]

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


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

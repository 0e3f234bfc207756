"""Collectives that autograd knows, on three ranks, against the same sums on one."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ds_hymotion.parallel.collectives import copy_to_parts, gather_last, join_parts, sum_of_parts
from ds_hymotion.parallel.cuts import CutPlan, ListCut
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.tensor import replica_difference
from tests.ranks import RankPool

WIDTHS = [3, 1, 2]


def gradient_of(function: object, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A function's value at ``x``, and the gradient of the value's product with ``weight``."""
    x = x.clone().requires_grad_()
    value = function(x, dist.group.WORLD)  # type: ignore[operator]
    (value * weight).sum().backward()
    assert x.grad is not None
    return value.detach(), x.grad


def job() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rank = dist.get_rank()
    own, weight = torch.full((2, WIDTHS[rank]), float(rank + 1)), torch.arange(1.0, 13.0).view(2, 6)
    scaled = weight * (rank + 1)
    empty = torch.zeros(0, WIDTHS[rank])
    assert gather_last(empty, WIDTHS, dist.group.WORLD).shape == (0, 6)
    return {
        "copy": gradient_of(copy_to_parts, weight, scaled),
        "sum": gradient_of(sum_of_parts, scaled, weight),
        "join": gradient_of(lambda x, group: join_parts(x, WIDTHS, group), own, weight),
    }


def test_values_and_gradients(ranks: RankPool) -> None:
    weight = torch.arange(1.0, 13.0).view(2, 6)
    for rank, found in enumerate(ranks.run(3, job)):
        value, gradient = found["copy"]
        assert torch.equal(value, weight) and torch.equal(gradient, 6 * weight)
        value, gradient = found["sum"]
        assert torch.equal(value, 6 * weight) and torch.equal(gradient, weight)
        value, gradient = found["join"]
        assert value.tolist() == [[1, 1, 1, 2, 3, 3]] * 2
        start = sum(WIDTHS[:rank])
        assert torch.equal(gradient, weight[:, start : start + WIDTHS[rank]])


def mesh_job() -> tuple[int, int, list[int], list[int], list[torch.Tensor]]:
    mesh = Mesh.current(model=2)
    mpu = mesh.mpu
    assert mpu is not None
    assert (mpu.get_model_parallel_rank(), mpu.get_data_parallel_rank()) == (mesh.model_rank, mesh.data_rank)
    assert (mpu.get_model_parallel_world_size(), mpu.get_data_parallel_world_size()) == (2, 2)
    number = torch.tensor([float(10**mesh.rank)])
    sums = [int(add(number.clone())) for add in (mesh.sum_over_data, mesh.sum_over_model, mesh.sum_over_all)]
    own = torch.full((mesh.model_rank + 1,), float(mesh.rank))
    return (
        mesh.data_rank,
        mesh.model_rank,
        sums,
        mpu.get_data_parallel_group_ranks(),
        mesh.gather_over_model(own, [1, 2]),
    )


def test_the_mesh_sums_along_its_axes(ranks: RankPool) -> None:
    found = ranks.run(4, mesh_job)
    assert [entry[:2] for entry in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [entry[2] for entry in found] == [[101, 11, 1111], [1010, 11, 1111], [101, 1100, 1111], [1010, 1100, 1111]]
    assert [entry[3] for entry in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    gathered = [[part.tolist() for part in entry[4]] for entry in found]
    assert gathered == [[[0.0], [1.0, 1.0]], [], [[2.0], [3.0, 3.0]], []]


def replica_job() -> tuple[float, float]:
    """What is found of replicas that are equal, and of one that differs on the last rank."""
    plan = CutPlan(3, {"cut": ListCut(0, ((0,), (1,), (2,)))})
    tensors = {"cut": torch.full((1,), float(dist.get_rank())), "whole": torch.arange(4.0)}
    equal = replica_difference(tensors.items(), plan, dist.group.WORLD)
    tensors["whole"][1] += 0.25 * (dist.get_rank() == 2)
    return equal, replica_difference(tensors.items(), plan, dist.group.WORLD)


def test_replicas_that_differ_are_found(ranks: RankPool) -> None:
    assert ranks.run(3, replica_job) == [(0.0, 0.25)] * 3

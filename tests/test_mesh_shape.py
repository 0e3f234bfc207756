"""Which ranks stand along each axis: DeepSpeed's own order, and legal sizes in the message for others."""

from __future__ import annotations

import pytest
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

from ds_hymotion.config.mesh_shape import AXES, MeshShape
from ds_hymotion.errors import UserError


@pytest.mark.parametrize(("pipe", "data", "model"), [(1, 1, 1), (1, 3, 2), (2, 2, 2), (3, 1, 4)])
def test_the_order_is_deepspeeds(pipe: int, data: int, model: int) -> None:
    shape = MeshShape.of(pipe * data * model, model, pipe)
    assert shape == MeshShape(pipe, data, model)
    theirs = PipeModelDataParallelTopology(num_pp=pipe, num_mp=model, num_dp=data)
    for rank in range(pipe * data * model):
        place = theirs.get_coord(rank)
        assert shape.place(rank) == (place.pipe, place.data, place.model)
    for axis in AXES:
        assert sorted(shape.lines(axis)) == (sorted(theirs.get_axis_comm_lists(axis)) or [[0]])


@pytest.mark.parametrize(
    ("world", "model", "pipe", "message"),
    [
        (
            4,
            3,
            1,
            r"hymotion.parallel.model = 3 does not divide 4 process\(es\); .*--num_gpus 3",
        ),
        (12, 4, 2, r"model = 4 x hymotion.parallel.pipeline = 2 does not divide 12 .* a multiple of 8"),
        (3, 1, 2, r"start a multiple of 2, such as"),
        (1, 2, 1, r"does not divide 1 process\(es\); start a multiple of 2"),
    ],
)
def test_ranks_that_cannot_be_divided(world: int, model: int, pipe: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MeshShape.of(world, model, pipe)

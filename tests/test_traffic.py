"""Counting bytes: what travels, once, and only between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from ds_hymotion.parallel.collectives import gather_last
from ds_hymotion.parallel.traffic import Traffic
from tests.ranks import RankPool


def send_this_and_that() -> tuple[dict[str, float], dict[str, float], str]:
    from deepspeed import comm

    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    traffic = Traffic(dist.group.WORLD)
    before = dist.all_reduce, comm.comm.cdb.all_reduce
    with traffic:
        with traffic.region("gradients", {"always": 3, "others": 1}):
            comm.all_reduce(torch.zeros(8))
            dist.all_reduce(torch.zeros(8, dtype=torch.bfloat16))
            dist.all_reduce(torch.zeros(100), group=alone)
            with traffic.paused():
                dist.all_reduce(torch.zeros(50))
            comm.broadcast(torch.zeros(2), src=0)
        with traffic.region("weights", {"always": 1}):
            comm.all_gather_into_tensor(torch.zeros(6 * dist.get_world_size()), torch.zeros(6))
            dist.all_reduce(torch.zeros(1))
        traffic.end_step()
        first = traffic.scalars()
        traffic.end_step()
        traffic.end_step()
        dist.all_reduce(torch.zeros(5))
        second = traffic.scalars()
    assert (dist.all_reduce, comm.comm.cdb.all_reduce) == before
    dist.all_reduce(torch.zeros(5))
    return first, second, traffic.summary(parameters=12)


def test_two_ranks(ranks: RankPool) -> None:
    for first, second, summary in ranks.run(2, send_this_and_that):
        assert first == {
            "comm/allreduce_bytes": 32 + 16,
            "comm/gradients_always_bytes": 36,
            "comm/gradients_others_bytes": 12,
            "comm/weights_always_bytes": 48,
            "comm/control_bytes": 8 + 4,
        }
        assert second == {"comm/allreduce_bytes": 0, "comm/control_bytes": 10}
        assert "0.000 MB per step and rank" in summary and "33.3 % of all in fp32" in summary and "66.7 %" in summary


def send_in_the_model_group() -> dict[str, float]:
    """What tensor ranks send in a backward, with one data rank."""
    size = dist.get_world_size()
    alone = [dist.new_group([rank]) for rank in range(size)][dist.get_rank()]
    with Traffic(alone) as traffic, traffic.region("gradients", {"always": 1}):
        gather_last(torch.zeros(3), [3] * size, dist.group.WORLD)
        dist.all_reduce(torch.zeros(2), group=dist.group.WORLD)
        traffic.end_step()
    return traffic.scalars()


def test_what_tensor_ranks_send_are_no_gradients(ranks: RankPool) -> None:
    for scalars in ranks.run(2, send_in_the_model_group):
        assert scalars == {"comm/allreduce_bytes": 0.0, "comm/control_bytes": 24 + 8}


def test_one_rank_sends_nothing(ranks: RankPool) -> None:
    ((first, _, summary),) = ranks.run(1, send_this_and_that)
    assert first == {"comm/allreduce_bytes": pytest.approx(0)}
    assert summary == "gradients sent: none, there is one data rank"

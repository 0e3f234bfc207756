"""Bytes between stages: what is counted is what the formulas say."""

from __future__ import annotations

import torch.distributed as dist

from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.reports.benchmarks import stage_bytes
from tests.ranks import RankPool


def job(mode: str) -> dict[str, int]:
    return stage_bytes.count_step(Mesh.current(pipe=dist.get_world_size()), mode)


def test_stages_send_the_packed_stream_or_a_state_once_each_way(ranks: RankPool) -> None:
    first, last = ranks.run(2, job, stage_bytes.BY_LAYERS)
    expected = stage_bytes.wire_bytes(stage_bytes.SMALL, 4)
    assert last == {"torch.float32": expected["backward"]}
    assert sum(first.values()) == expected["forward"]
    assert first["torch.float32"] == expected["backward"]
    states = ranks.run(2, job, stage_bytes.BY_TIME)
    assert (
        states
        == [{"torch.float32": 4 * 256 * 4}] * 2
        == [{"torch.float32": stage_bytes.state_bytes(stage_bytes.SMALL, 4)}] * 2
    )
    rows = stage_bytes.table([first, last], states)
    assert [row.unit for row in rows] == ["bytes"] * 8
    assert rows[4].value == 2 * 4 * 2 * 333 * 1280 * 2 + 4 * 2 * 33 * 4 + 1024
    assert rows[4].ratio is not None and rows[4].ratio < 0.02
    assert rows[5].value == 2 * 4 * 256 * 2 and rows[5].against == rows[4].value

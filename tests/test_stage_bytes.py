"""Bytes between stages: what is counted is what the formula says."""

from __future__ import annotations

import torch.distributed as dist

from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.reports.benchmarks import stage_bytes
from tests.ranks import RankPool


def job() -> dict[str, int]:
    return stage_bytes.count_step(Mesh.current(pipe=dist.get_world_size()))


def test_stages_send_the_packed_stream_once_each_way(ranks: RankPool) -> None:
    first, last = ranks.run(2, job)
    expected = stage_bytes.wire_bytes(stage_bytes.SMALL, 4)
    assert last == {"torch.float32": expected["backward"]}
    assert sum(first.values()) == expected["forward"]
    assert first["torch.float32"] == expected["backward"]
    rows = stage_bytes.table([first, last])
    assert [row.unit for row in rows] == ["bytes"] * 4
    assert rows[2].value == 2 * 4 * 2 * 333 * 1280 * 2 + 4 * 2 * 33 * 4 + 1024
    assert rows[2].ratio is not None and rows[2].ratio < 0.02

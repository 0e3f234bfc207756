"""Bytes between stages: what is counted is what the formulas say."""

from __future__ import annotations

import dataclasses

import torch.distributed as dist

from ds_hymotion.model.temporal import build
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
    numel = sum(value.numel() for value in build(dataclasses.replace(stage_bytes.SMALL, chunk_frames=60)).parameters())
    each = {"torch.float32": stage_bytes.state_bytes(stage_bytes.SMALL, 4), stage_bytes.SUMMED: 4 * numel}
    assert each["torch.float32"] == 4 * 256 * 4 and states == [each] * 2
    rows = stage_bytes.table([first, last], states)
    assert [row.unit for row in rows] == ["bytes"] * 11
    assert rows[5].value == 2 * 4 * 2 * 333 * 1280 * 2 + 4 * 2 * 33 * 4 + 1024
    assert rows[5].ratio is not None and rows[5].ratio < 0.02
    assert rows[6].value == 2 * 4 * 256 * 2 and rows[6].against == rows[5].value
    assert rows[7].ratio is not None and rows[7].ratio > 100, "tied stages send more in their sum than by layers"

"""The counted figures of tensor parallelism: what the head sends, what a rank holds."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from ds_hymotion.model.presets import preset
from ds_hymotion.reports.benchmarks import tensor_bytes, tensor_memory
from tests.ranks import RankPool


def heads_job() -> dict[str, dict[str, int]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return {kind: tensor_bytes._pass(kind, rank, ranks) for kind in tensor_bytes.HEADS}


def test_joint_groups_send_no_predictions_and_a_fifth_of_the_bytes(ranks: RankPool) -> None:
    found = ranks.run(2, heads_job)[0]
    frames, width = tensor_bytes.CLIPS * tensor_bytes.FRAMES, preset("hy-motion-1.0").feat_dim
    assert found[tensor_bytes.BASELINE] == {
        "forward all_gather": 2 * frames * 110,
        "backward all_reduce": 2 * frames * width,
    }
    assert found[tensor_bytes.SUMMED] == {"loss all_reduce": 4, "backward all_reduce": 2 * frames * width}
    assert found["joint groups"] == {"loss all_reduce": 4, "backward all_gather": 2 * (frames + width) * 144}
    rows = {row.figure: row for row in tensor_bytes._table(2, found)}
    assert rows["joint groups: predictions gathered"].value == 0
    ratio = rows["joint groups: sum"].ratio
    assert ratio is not None and ratio < 0.22
    share = tensor_bytes._share(list(rows.values()), 2)
    assert 1 < share.value < 2


@pytest.mark.full
def test_the_table_of_bytes() -> None:
    rows = {(row.figure, row.conditions["ranks"]): row for row in tensor_bytes.run()}
    ratio = rows["joint groups: sum", 3].ratio
    assert ratio is not None and ratio < 0.17


def test_parameters_per_rank() -> None:
    rows = [row for row in tensor_memory.run() if row.figure == "parameters per rank"]
    assert [row.conditions["tensor ranks"] for row in rows] == [1, 2, 4, 5]
    for row, most in zip(rows, (1043, 555, 310, 261)):
        assert row.unit == "M" and row.value <= most
    assert rows[2].ratio == pytest.approx(275.497 / 1042.874, rel=1e-4)

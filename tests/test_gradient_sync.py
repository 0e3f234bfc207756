"""Selective gradient sync against hand-computed numbers and two plain optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ds_hymotion.parallel.gradient_sync import OutOfSync, assert_synced
from ds_hymotion.parallel.mesh import Mesh
from tests.ranks import RankPool
from tests.sync_jobs import ALWAYS, DEFERRED, Trace, line_job, perceptron_job, reference, settings

HOT, COLD = 5 * 3 + 3, 6 * 5 + 5


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_four_steps_of_a_line_by_hand(ranks: RankPool, stage: int, factor: float) -> None:
    """AdamW with lr 1/2, decay 1/2 (so a step multiplies by 3/4), beta1 1/2, beta2 0 (so the step is m̂ / |g|).

    The bias sees gradient 1 in every step: m̂ = 1, and b ← 3/4·b − 1/2. The weight sees x, on two ranks: means 2, 2,
    0, 6, so 2 in the first sync and 3 in the second. First: m = 1, m̂ = 2, w = 3/4 − 1/2·2/2. Second: m = 2,
    m̂ = 2/(1 − 1/4) = 8/3, w = 3/4·1/4 − 1/2·(8/3)/3. With half the rate for the weight alone, a step multiplies it by
    7/8: w = 7/8 − 1/4·2/2, then 7/8·5/8 − 1/4·(8/3)/3.
    """
    config = settings(2, zero_optimization={"stage": stage})
    config["hymotion"]["gradient_sync"]["others_lr_factor"] = factor
    config["optimizer"]["params"] = {"lr": 0.5, "betas": [0.5, 0.0], "eps": 0.0, "weight_decay": 0.5}
    inputs = [[1.0, 2.0, -1.0, 6.0], [3.0, 2.0, 1.0, 6.0]]
    weights = [1.0, 0.25, 0.25, 0.1875 - 4 / 9] if factor == 1 else [1.0, 0.625, 0.625, 0.546875 - 2 / 9]
    biases = [0.25, -0.3125, -0.734375, -1.05078125]
    for after in ranks.run(2, line_job, config, inputs):
        assert [weight for weight, _ in after] == pytest.approx(weights, abs=1e-7)
        assert [bias for _, bias in after] == pytest.approx(biases, abs=1e-7)


MODES: list[tuple[dict[str, Any], int]] = [
    ({"zero_optimization": {"stage": 0}}, 1),
    ({"zero_optimization": {"stage": 1}}, 1),
    ({"zero_optimization": {"stage": 2}}, 1),
    ({"zero_optimization": {"stage": 0}, "gradient_clipping": 0.5}, 2),
    ({"zero_optimization": {"stage": 1}, "gradient_clipping": 0.5}, 2),
    ({"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}, 2),
    ({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "communication_data_type": "fp32"}, 1),
    (
        {
            "zero_optimization": {"stage": 1},
            "bf16": {"enabled": True},
            "communication_data_type": "fp32",
            "gradient_clipping": 0.5,
        },
        2,
    ),
]


@pytest.mark.parametrize(("mode", "accumulation"), MODES, ids=[str(mode) for mode in MODES])
def test_equal_to_two_optimizers(ranks: RankPool, mode: dict[str, Any], accumulation: int) -> None:
    every, steps, world = 3, 7, 2
    bf16 = "bf16" in mode
    config = settings(every, gradient_accumulation_steps=accumulation, **mode)
    traces: list[Trace] = ranks.run(world, perceptron_job, config, steps)
    clip = mode.get("gradient_clipping", 0.0)
    expected = reference(every, world, accumulation, clip, steps, torch.bfloat16 if bf16 else torch.float32)
    for trace in traces:
        for step, (got, wanted) in enumerate(zip(trace.weights, expected.weights)):
            for name in wanted:
                assert np.allclose(got[name], wanted[name], rtol=0, atol=1e-6), (step, name)
        if clip:
            assert trace.norms == pytest.approx(expected.norms, rel=1e-5)
        for step in range(1, steps):
            for name in DEFERRED:
                moved = not np.array_equal(trace.weights[step][name], trace.weights[step - 1][name])
                assert moved == (step in (2, 5)), (step, name)
            for name, moment in trace.moments[step].items():
                assert np.array_equal(moment, trace.moments[step - 1][name]) == (step not in (2, 5)), (step, name)
            assert all(not np.array_equal(trace.weights[step][n], trace.weights[step - 1][n]) for n in ALWAYS)
        sent_often = accumulation if mode["zero_optimization"]["stage"] == 2 else 1
        padding = 4 * 4 * 2 if bf16 else 0
        for step, sent in enumerate(trace.traffic):
            hot, cold = 4 * HOT * sent_often, 4 * COLD if step in (2, 5) else 0
            assert hot + cold <= sent["comm/allreduce_bytes"] <= hot + cold + padding, (step, sent)


def report_difference(rank_that_differs: int, model: int = 1) -> str:
    mesh = Mesh.current(model=model)
    weights = {"a": torch.ones(3), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    assert_synced(mesh, weights)
    weights["b"][1, 1] += 2.0**-7 if mesh.rank == rank_that_differs else 0.0
    with pytest.raises(OutOfSync) as caught:
        assert_synced(mesh, weights, "step 7")
    return str(caught.value)


def test_a_single_bit_is_found_on_all_ranks(ranks: RankPool) -> None:
    messages = ranks.run(2, report_difference, 1)
    assert messages[0] == messages[1]
    of_four = ranks.run(4, report_difference, 2, 2)
    assert set(of_four) == {messages[0]}, "ranks of the other data group must not wait"
    assert messages[0].startswith("step 7: b on data rank 1 is not that of data rank 0 (1 of 2 tensors differ)")

"""Experts against a dense network: what is compared, and that a frozen trunk is cheaper."""

from __future__ import annotations

import pytest

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.reports.benchmarks import experts


def test_both_networks_see_the_same_batches() -> None:
    """Undivided experts are not drawn by cell, so that frames, noise and times are the dense network's."""
    dense, spread = (RunConfig(experts.settings(name, 9), "test", ranks=1) for name in (experts.DENSE, experts.EXPERTS))
    assert dense.hymotion.data == spread.hymotion.data and dense.hymotion.flow == spread.hymotion.flow
    assert (
        spread.hymotion.experts.size == 1 and not spread.hymotion.experts.phases and dense.hymotion.experts.number == 0
    )


@pytest.mark.full
def test_the_benchmark_runs() -> None:
    rows = {row.figure: row for row in experts.run(steps=4, clips=36, timed_steps=6)}
    assert rows["parameters in all, experts against dense"].ratio > 1.5  # type: ignore[operator]
    assert rows["step with a frozen trunk"].ratio < 1  # type: ignore[operator]
    assert rows["held-out loss, all types"].value > 0

"""Figures of pipelines by time: shares, saved activations, measured bubbles."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.presets import preset
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.reports.benchmarks.chunk_quality import compute_ratio, jumps
from ds_hymotion.reports.benchmarks.saved_activations import saved_bytes
from ds_hymotion.reports.benchmarks.stage_share import share
from ds_hymotion.reports.measuring.stage_schedules import Costs
from ds_hymotion.reports.measuring.stage_times import Load, Span, measure, measured_bubble, measured_costs
from tests.ranks import RankPool

THIN = ModelConfig(16, 3, 2, input_dim=219, ctxt_input_dim=8, vtxt_input_dim=8, mlp_ratio=1.0, refiner_layers=1)
SLEEPS = Costs(0.15, 0.3, 0.15, 0.003)


def test_shares_by_hand() -> None:
    """Clips of 300, 90 and 60 frames have 5 + 2 + 1 chunks of 60."""
    assert share([[300, 90, 60]], 4, tied=True) == 450 / (4 * 2 * 60)
    assert share([[300, 90, 60]], 5, tied=False) == 450 / (5 * 3 * 60)


def test_a_chunk_keeps_its_share_of_the_activations() -> None:
    whole, half = saved_bytes(THIN, 1), saved_bytes(THIN, 2)
    assert 0.3 < half / whole < 0.7


def test_jumps_at_seams_by_hand() -> None:
    """One joint moves 1 cm a frame, and 5 cm between frames 3 and 4, where the second chunk begins."""
    x = torch.tensor([0, 1, 2, 3, 8, 9]) / 100
    positions = torch.stack([x, torch.zeros(6), torch.zeros(6)], -1)[:, None]
    assert jumps(positions, 4) == pytest.approx((5.0, 1.0))


def test_chunks_compute_their_text_and_halo_again() -> None:
    lite = preset("hy-motion-1.0-lite")
    plain, halo = (compute_ratio(lite, 300, 32, 60, frames) for frames in (0, 8))
    assert 1 < plain < halo < 2 and compute_ratio(lite, 60, 32, 60, 0) == 1


def test_a_bubble_by_hand() -> None:
    first: list[Span] = [("state", 0.0, 1.0), ("forward", 1.0, 2.0), ("backward", 2.0, 4.0)]
    second: list[Span] = [("forward", 2.0, 3.0), ("backward", 3.0, 5.0)]
    assert measured_bubble([first, second]) == 1 - 6 / 8
    assert measured_costs([[first, second]]) == Costs(1.0, 2.0, 1.0, 1.0)


def job(by_time: bool) -> list[list[list[Span]]]:
    config = dataclasses.replace(THIN, chunk_frames=20, state_frames=6) if by_time else THIN
    mesh = Mesh.current(pipe=dist.get_world_size())
    return measure(Load(config, 2, 1, 40, 4, SLEEPS), mesh, steps=2)


@pytest.mark.full
def test_two_stages_wait_less_by_time(ranks: RankPool) -> None:
    bubbles = {kind: min(map(measured_bubble, ranks.run(2, job, kind)[0])) for kind in (True, False)}
    assert bubbles[True] < 0.15 and 0.28 < bubbles[False] < 0.45, "1F1B with two micro-batches: 1/3"

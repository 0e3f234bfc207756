from __future__ import annotations

import pytest
import torch

from ds_hymotion.metrics.jitter import jitter


def test_constant_jerk_is_measured_exactly() -> None:
    # x = j t³ / 6 has the third derivative j, and so has its third difference times fps³.
    fps, jerk = 30.0, 24.0
    time = torch.arange(40, dtype=torch.float64) / fps
    positions = torch.zeros(40, 2, 3, dtype=torch.float64)
    positions[:, 0, 1] = jerk * time**3 / 6
    assert jitter(positions, fps) == pytest.approx((24.0 + 0.0) / 2 / 10, rel=1e-9)


def test_jerk_is_a_norm_over_the_three_axes() -> None:
    time = torch.arange(10, dtype=torch.float64)
    positions = (time**3 / 6)[:, None, None] * torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    assert jitter(positions, 1.0) == pytest.approx(0.5, rel=1e-12)


def test_uniform_acceleration_does_not_jitter() -> None:
    time = torch.arange(20, dtype=torch.float64)[:, None, None]
    positions = (1 + 2 * time + 3 * time**2).expand(20, 4, 3)
    assert jitter(positions, 30.0) == pytest.approx(0.0, abs=1e-6)


def test_noise_of_a_tenth_of_a_millimetre() -> None:
    # The third difference of white noise has the variance (1 + 9 + 9 + 1) σ²; published value 1.9 at 30 fps.
    generator = torch.Generator().manual_seed(0)
    noise = 1e-4 * torch.randn(300, 24, 3, generator=generator)
    assert jitter(noise, 30.0) == pytest.approx(1.927, rel=0.03)


def test_rate_counts_with_its_cube() -> None:
    positions = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(1))
    assert jitter(positions, 60.0) == pytest.approx(8 * jitter(positions, 30.0), rel=1e-12)


@pytest.mark.parametrize("shape", [(3, 24, 3), (10, 72), (10, 24, 2)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="positions"):
        jitter(torch.zeros(shape), 30.0)

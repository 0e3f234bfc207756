from __future__ import annotations

import math

import pytest
import torch

from ds_hymotion.flow.times import draw_time
from ds_hymotion.randomness import generator


def test_uniform_covers_the_interval() -> None:
    random = torch.Generator().manual_seed(0)
    times = [draw_time("uniform", random) for _ in range(2000)]
    assert 0 <= min(times) < 0.01 and 0.99 < max(times) < 1
    assert sum(times) / 2000 == pytest.approx(0.5, abs=0.02)


def test_strata_divide_the_interval() -> None:
    for stratum in range(8):
        time = draw_time("stratified", generator(0, stratum), stratum, 8)
        uniform = draw_time("uniform", generator(0, stratum))
        assert time == (stratum + uniform) / 8
        assert stratum / 8 <= time < (stratum + 1) / 8


def test_one_stratum_is_uniform() -> None:
    assert draw_time("stratified", generator(1)) == draw_time("uniform", generator(1))


def test_logit_normal_is_the_sigmoid_of_a_normal() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.tensor([draw_time("logit_normal", random) for _ in range(2000)]).logit()
    assert abs(logits.mean()) < 0.06 and abs(logits.std() - 1) < 0.06
    drawn = torch.randn((), generator=generator(2), dtype=torch.float64)
    assert draw_time("logit_normal", generator(2)) == pytest.approx(1 / (1 + math.exp(-float(drawn))), rel=1e-12)


def test_a_draw_takes_the_same_numbers_again() -> None:
    for kind in ("uniform", "stratified", "logit_normal"):
        assert draw_time(kind, generator(3, kind), 1, 4) == draw_time(kind, generator(3, kind), 1, 4)  # type: ignore[arg-type]


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="'cosine' is unknown"):
        draw_time("cosine", generator(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stratum 4 must be in 0..3"):
        draw_time("stratified", generator(0), 4, 4)

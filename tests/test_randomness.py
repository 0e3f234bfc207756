from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.randomness import generator, sample_noise, seed_of

KEYS = st.lists(st.integers() | st.text(), max_size=3)


def test_a_seed_is_the_head_of_a_sha256() -> None:
    # of the bytes [7, "noise", 1]
    assert seed_of(7, "noise", 1) == 0x457D67C403C1D82F


@settings(deadline=None, max_examples=50)
@given(KEYS, KEYS)
def test_keys_are_told_apart(first: list[int | str], second: list[int | str]) -> None:
    same = [(type(part), part) for part in first] == [(type(part), part) for part in second]
    assert (seed_of(0, *first) == seed_of(0, *second)) == same
    generator(0, *first)


def test_kinds_and_splits_of_keys_matter() -> None:
    seeds = {
        seed_of(0, 1),
        seed_of(0, "1"),
        seed_of(1, 0),
        seed_of(0, "a", "b"),
        seed_of(0, "ab"),
        seed_of(0, "b", "a"),
    }
    assert len(seeds) == 6


def test_draws_do_not_depend_on_what_was_drawn_before() -> None:
    first = torch.rand(3, generator=generator(5, "time", 0))
    torch.manual_seed(9)
    generator(5, "drop", 0)
    assert torch.equal(torch.rand(3, generator=generator(5, "time", 0)), first)
    assert not torch.equal(torch.rand(3, generator=generator(5, "time", 1)), first)


def test_every_part_of_a_sample_counts() -> None:
    base = (3, 0, "clip", 0, 0)
    noise = sample_noise(*base, frames=40, channels=5)
    assert noise.shape == (40, 5) and noise.dtype == torch.float32
    assert torch.equal(sample_noise(*base, frames=40, channels=5), noise)
    for other in (
        (4, 0, "clip", 0, 0),
        (3, 1, "clip", 0, 0),
        (3, 0, "Mclip", 0, 0),
        (3, 0, "clip", 1, 0),
        (3, 0, "clip", 0, 1),
    ):
        assert not torch.equal(sample_noise(*other, frames=40, channels=5), noise)


def test_noise_is_standard_normal() -> None:
    noise = sample_noise(0, 0, "clip", 0, 0, 300, 201)
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02

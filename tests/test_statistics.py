from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch3d.transforms import axis_angle_to_matrix, random_rotations
from torch import Tensor

from ds_hymotion.motion.statistics import LEAST_STD, RunningStatistics, denormalise, joint_variance, normalise


def statistics_of(*blocks: Tensor) -> RunningStatistics:
    running = RunningStatistics(blocks[0].shape[1])
    for block in blocks:
        running.update(block)
    return running


def test_small_exact_numbers() -> None:
    running = statistics_of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[5.0, 5.0], [7.0, 5.0]]))
    assert running.frames == 4
    assert running.mean.tolist() == [4.0, 5.0]
    assert running.std.tolist() == [math.sqrt(5.0), 0.0]
    assert running.mean.dtype == torch.float64


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**31 - 1), cuts=st.lists(st.integers(0, 60), max_size=6), halves=st.integers(0, 7))
def test_any_split_gives_the_same_result(seed: int, cuts: list[int], halves: int) -> None:
    torch.manual_seed(seed)
    features = torch.randn(60, 3) * torch.tensor([1.0, 0.01, 100.0]) + torch.tensor([0.0, 10.0, -50.0])
    whole = statistics_of(features)
    edges = [0, *sorted(cuts), 60]
    blocks = [features[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    merged = statistics_of(*blocks[:halves]) if blocks[:halves] else RunningStatistics(3)
    merged.merge(statistics_of(*blocks[halves:]) if blocks[halves:] else RunningStatistics(3))
    assert merged.frames == 60
    for split in (statistics_of(*blocks), merged):
        torch.testing.assert_close(split.mean, whole.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(split.std, whole.std, rtol=1e-12, atol=1e-12)
    expected = features.double()
    torch.testing.assert_close(whole.mean, expected.mean(dim=0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole.std, expected.std(dim=0, correction=0), rtol=1e-12, atol=1e-12)


def test_a_large_offset_does_not_cancel() -> None:
    features = torch.tensor([[1e8], [1e8 + 8], [1e8 + 16]])
    assert statistics_of(features[:1], features[1:]).std.item() == pytest.approx(math.sqrt(128 / 3), rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_is_refused_and_changes_nothing(bad: float) -> None:
    running = statistics_of(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    with pytest.raises(ValueError, match="1 values are NaN or infinite"):
        running.update(torch.tensor([[1.0, bad]]))
    assert running.frames == 2 and running.mean.tolist() == [2.0, 3.0]


def test_wrong_shapes_and_no_frames_are_refused() -> None:
    running = RunningStatistics(2)
    with pytest.raises(ValueError, match="expected"):
        running.update(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="3 channels"):
        running.merge(RunningStatistics(3))
    for read in (lambda: running.mean, lambda: running.std):
        with pytest.raises(ValueError, match="no frames"):
            read()


def test_joint_variance_of_known_angles() -> None:
    vectors = torch.zeros(4, 3, 3, dtype=torch.float64)
    vectors[:, 0, 0] = torch.tensor([0.3, -0.3, 0.3, -0.3], dtype=torch.float64)
    vectors[:, 1] = torch.tensor([0.2, 1.1, -0.4])  # turned, but still
    vectors[:, 2, 2] = math.pi + torch.tensor([0.1, -0.1, 0.2, -0.2], dtype=torch.float64)
    clips = list(axis_angle_to_matrix(vectors).split([1, 3]))
    expected = torch.tensor([0.09, 0.0, 0.025], dtype=torch.float64)
    torch.testing.assert_close(joint_variance(clips), expected, rtol=1e-9, atol=1e-12)


def test_joint_variance_reads_lazily_and_twice() -> None:
    torch.manual_seed(0)
    rotations = random_rotations(40).view(10, 4, 3, 3)

    class Clips:
        visits = 0

        def __iter__(self) -> Iterator[Tensor]:
            self.visits += 1
            yield rotations[:3]
            yield rotations[3:]

    clips = Clips()
    torch.testing.assert_close(joint_variance(clips), joint_variance([rotations]), rtol=1e-12, atol=0)
    assert clips.visits == 2
    with pytest.raises(ValueError, match="twice"):
        joint_variance(iter([rotations]))
    with pytest.raises(ValueError, match="no frames"):
        joint_variance([])
    with pytest.raises(ValueError, match="NaN"):
        joint_variance([rotations * math.nan])


def test_constant_channels_normalise_to_zero_and_decode_to_their_mean() -> None:
    mean = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    std = torch.tensor([2.0, 0.0, 0.9 * LEAST_STD], dtype=torch.float64)
    features = torch.tensor([[5.0, 2.5, 3.1]])
    normalised = normalise(features, mean, std)
    assert normalised.tolist() == [[2.0, 0.0, 0.0]] and normalised.dtype == torch.float32
    assert denormalise(torch.tensor([[2.0, 9.0, -9.0]]), mean, std).tolist() == [[5.0, 2.0, 3.0]]


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31 - 1))
def test_denormalise_inverts_normalise(seed: int) -> None:
    torch.manual_seed(seed)
    features = torch.randn(2, 5, 4, dtype=torch.float64)
    mean, std = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 2 * LEAST_STD
    back = denormalise(normalise(features, mean, std), mean, std)
    torch.testing.assert_close(back, features, rtol=0, atol=1e-12)

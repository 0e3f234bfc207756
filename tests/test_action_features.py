"""What the action network sees, and the measures that it learns: exact, and blind to place, heading and layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from ds_hymotion.data.actions.clusters import cluster, nearest
from ds_hymotion.data.actions.features import CHANNELS, action_features, joint_track, mirrored
from ds_hymotion.data.actions.measures import MEASURES, measures_of
from ds_hymotion.data.actions.network import ActionNetwork, at_network_length, stretches_of
from ds_hymotion.data.actions.training import Scale, train_network
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.motion.rotation import axis_angle_to_matrix, compose
from ds_hymotion.motion.skeleton import JOINTS_24, smpl24
from ds_hymotion.motion.transforms import mirror, resample
from tests.corpora import wavy_motion

ROTMAT = representation("smpl24-rotmat")


def features_of(motion: Motion, layout: Representation = ROTMAT) -> torch.Tensor:
    return action_features(layout.encode(motion), layout, motion.fps, smpl24())


def moving(speed: float, frames: int = 61, lifted: float = 0.0) -> Motion:
    """The rest pose, upright, gliding ahead; the left knee bent by ``lifted`` radians, so that the foot is up."""
    rotations = torch.eye(3).expand(frames, 24, 3, 3).clone()
    bend = axis_angle_to_matrix(torch.tensor([[-lifted, 0.0, 0.0], [2 * lifted, 0.0, 0.0]]))
    for joint, turn in zip(("left_hip", "left_knee"), bend):
        rotations[:, JOINTS_24.index(joint)] = turn
    translation = torch.zeros(frames, 3)
    translation[:, 1] = 1.13
    translation[:, 2] = speed * torch.arange(frames) / 30
    return Motion(rotations, translation, 30.0)


def test_positions_velocities_and_turning_rate() -> None:
    found = features_of(moving(0.6))
    assert found.shape == (31, CHANNELS) and found.dtype == torch.float32
    place, velocity = (found[:, part : part + 66].view(31, 22, 3) for part in (0, 66))
    torch.testing.assert_close(velocity, torch.tensor([0.0, 0.0, 0.6]).expand(31, 22, 3), atol=5e-3, rtol=0)
    torch.testing.assert_close(place[:, 0], torch.tensor([0.0, 1.13 - 0.1908, 0.0]).expand(31, 3))
    assert float(found[:, -1].abs().max()) < 1e-4
    turns = axis_angle_to_matrix(torch.tensor([0.0, 1.0, 0.0]) * (torch.arange(30) / 30)[:, None])
    spinning = moving(0.0, frames=30)
    spinning.rotations[:, 0] = turns
    torch.testing.assert_close(features_of(spinning)[:, -1], torch.ones(15), atol=1e-4, rtol=0)


def test_place_heading_layout_and_frame_rate_do_not_matter() -> None:
    motion = wavy_motion(61, 1)
    wanted = features_of(motion)
    turn = axis_angle_to_matrix(torch.tensor([0.0, 2.0, 0.0]))
    rest = smpl24().offsets[0]
    turned = motion.rotations.clone()
    turned[:, 0] = compose(turn, motion.rotations[:, 0])
    there = (motion.translation + rest) @ turn.T - rest + torch.tensor([3.0, 0.0, -2.0])
    torch.testing.assert_close(features_of(Motion(turned, there, 30.0)), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(features_of(motion, representation("hymotion-201")), wanted, atol=1e-4, rtol=1e-4)
    other = features_of(resample(motion, 45.0))
    assert len(other) == len(wanted)
    torch.testing.assert_close(other[:, :66], wanted[:, :66], atol=5e-3, rtol=0)


def test_mirrored_features_are_those_of_the_mirrored_motion() -> None:
    motion = wavy_motion(40, 2)
    found = features_of(mirror(motion))
    assert torch.equal(mirrored(mirrored(found)), found)
    wanted = mirrored(features_of(motion))
    assert float((found - wanted).abs().mean()) < 0.02  # the rest body is not quite symmetric
    assert float((found - features_of(motion)).abs().mean()) > 0.05


@pytest.mark.parametrize("frames", [1, 2, 3, 7])
def test_shortest_clips(frames: int) -> None:
    found = features_of(wavy_motion(frames, 0))
    assert len(found) == (frames - 1) // 2 + 1 and bool(found.isfinite().all())
    assert bool(measures_of(found).isfinite().all())
    assert at_network_length(found).shape == (1, CHANNELS, 64)


def test_a_body_on_its_side_keeps_the_last_heading() -> None:
    motion = moving(0.0)
    motion.rotations[30:, 0] = axis_angle_to_matrix(torch.tensor([0.0, 0.0, math.pi / 2]))
    assert float(features_of(motion)[20:, -1].abs().max()) < 1e-3
    motion.rotations[:, 0] = axis_angle_to_matrix(torch.tensor([0.0, 0.0, math.pi / 2]))
    assert bool(features_of(motion).isfinite().all())


def test_times_between_frames_are_interpolated() -> None:
    layout, motion = ROTMAT, moving(1.0, frames=50)
    track = joint_track(layout.encode(motion), layout, 50.0, smpl24())
    assert len(track) == 15
    torch.testing.assert_close(track[:, 0, 2], torch.arange(15) * (50 / 15 / 30) + 0.0282, atol=1e-4, rtol=1e-4)


def test_measures() -> None:
    def named(motion: Motion) -> dict[str, float]:
        return dict(zip(MEASURES, measures_of(features_of(motion)).tolist(), strict=True))

    still, going, lifted = named(moving(0.0)), named(moving(0.6)), named(moving(0.0, lifted=0.8))
    assert going["travel"] == pytest.approx(math.tanh(2), abs=1e-4) and still["travel"] == pytest.approx(0, abs=1e-6)
    assert lifted["balance"] == pytest.approx(1) and still["balance"] < 0.1
    assert still["activity"] == pytest.approx(0, abs=1e-5) and still["lasting change"] == pytest.approx(0, abs=1e-5)
    names = smpl24()
    arm = ("collar", "shoulder", "elbow", "wrist")
    across = sum(float(names.offsets[names.index(f"{side}_{part}"), 0]) * sign
                 for side, sign in (("left", 1), ("right", -1)) for part in arm)  # fmt: skip
    assert still["hands apart"] == pytest.approx(across, abs=1e-4)
    half = moving(0.0)
    half.rotations[30:, JOINTS_24.index("left_hip")] = axis_angle_to_matrix(torch.tensor([-1.5, 0.0, 0.0]))
    assert named(half)["lasting change"] > 0.3


def test_long_clips_are_cut_evenly() -> None:
    assert [len(part) for part in stretches_of(torch.zeros(150, 1))] == [150]
    assert [len(part) for part in stretches_of(torch.zeros(301, 1))] == [101, 100, 100]


def test_the_network_keeps_the_limit_and_refuses_to_pass_it() -> None:
    assert sum(parameter.numel() for parameter in ActionNetwork(70).parameters()) < 200_000
    with pytest.raises(AssertionError):
        ActionNetwork(7000)


def test_the_network_learns_what_it_is_asked_and_the_same_in_every_run() -> None:
    stretches = [features_of(moving(0.1 * number % 0.8, frames=40 + number)) for number in range(16)]
    targets = torch.stack([measures_of(stretch) for stretch in stretches])[:, :1]
    targets = (targets - targets.mean()) / targets.std()
    scale = Scale.of(stretches)
    assert bool((scale.std >= 0.02).all())
    torch.testing.assert_close(mirrored(scale.mean), scale.mean, atol=1e-5, rtol=0)
    first, second = (train_network(stretches, targets, torch.ones_like(targets), scale, 5, steps=60) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with torch.no_grad():
        found = torch.cat([first(at_network_length(scale(stretch))) for stretch in stretches])
    assert float((found - targets).square().mean()) < 0.2


def test_clusters_are_kmeans_with_names_in_order() -> None:
    random = np.random.default_rng(0)
    middles = np.array([[0, 0], [10, 0], [0, 10], [10, 10]], dtype=np.float32)
    owner = np.repeat(np.arange(4), [20, 30, 10, 5])
    points = (middles[owner] + random.normal(0, 0.5, (65, 2))).astype(np.float32)
    names = ("A", "B", "C", "D")
    labels = [names[number] if place % 3 == 0 else None for place, number in enumerate(owner)]
    labels[0] = "D"  # one wrong label
    for guided in (True, False):
        made = cluster(points, 4, 0, names, labels, guided)
        assert made.names == names == made.matched
        assert nearest(points, made.centres).tolist() == owner.tolist()
        model = KMeans(4, init=made.centres, n_init=1).fit(points)
        assert model.predict(points).tolist() == owner.tolist()
    unnamed = cluster(points, 4, 0, names, [None] * 65, False)
    assert unnamed.names == ("TYPE_1", "TYPE_2", "TYPE_3", "TYPE_4") and unnamed.matched == ()
    assert np.bincount(nearest(points, unnamed.centres)).tolist() == [30, 20, 10, 5]
    assert cluster(points, 4, 0, names, [None] * 65, False, named=True).names == names
    some = [label if label in ("B", "D") else None for label in labels]
    for guided in (True, False):
        part = cluster(points, 4, 0, (*names[:3], "TYPE_1", "D"), some, guided)
        assert part.names == ("B", "D", "TYPE_2", "TYPE_3") and part.matched == ("B", "D")
    fewer = cluster(points, 2, 0, names, labels, True)
    assert set(fewer.names) <= set(names) and len(fewer.centres) == 2


def test_a_tie_goes_to_the_first_centre() -> None:
    assert nearest(np.zeros((1, 2), np.float32), np.array([[1, 0], [-1, 0]], np.float32)).tolist() == [0]

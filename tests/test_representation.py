from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch3d.transforms import axis_angle_to_matrix, random_rotations

from ds_hymotion.errors import UserError
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import REPRESENTATIONS, HyMotion201, representation
from ds_hymotion.motion.rotation import geodesic_angle
from ds_hymotion.motion.skeleton import JOINTS_24, joints_named, smpl24

BOTH = pytest.mark.parametrize("name", REPRESENTATIONS)


def random_motion(frames: int, joints: int, seed: int = 0, angle: float | None = None) -> Motion:
    """Random local rotations, all of one angle if it is given; hands at rest if there are 22 joints."""
    torch.manual_seed(seed)
    if angle is None:
        turned = random_rotations(frames * joints)
    else:
        axes = torch.nn.functional.normalize(torch.randn(frames * joints, 3, dtype=torch.float64), dim=-1)
        turned = axis_angle_to_matrix(axes * angle).float()
    rotations = torch.eye(3).repeat(frames, 24, 1, 1)
    rotations[:, :joints] = turned.view(frames, joints, 3, 3)
    return Motion(rotations, 3 * torch.randn(frames, 3), 30.0)


@BOTH
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**31 - 1),
    angle=st.sampled_from([None, 0.0, 1e-6, 1.0, math.pi - 1e-4, math.pi - 1e-7, math.pi]),
)
def test_decoding_gives_the_encoded_motion_back(name: str, seed: int, angle: float | None) -> None:
    layout = representation(name)
    motion = random_motion(3, layout.joints, seed, angle)
    features = layout.encode(motion)
    assert features.shape == (3, layout.channels) and features.dtype == torch.float32
    back = layout.to_motion(features, 30.0)
    assert float(geodesic_angle(back.rotations.double(), motion.rotations.double()).max()) < 1e-4
    assert float((back.joints() - motion.joints()).norm(dim=-1).max()) < 1e-4
    assert back.fps == 30.0


@BOTH
def test_any_features_decode_to_rotations_with_finite_gradients(name: str) -> None:
    torch.manual_seed(1)
    layout = representation(name)
    features = torch.randn(2, 4, layout.channels, requires_grad=True)
    rotations, translation = layout.decode(features)
    assert rotations.shape == (2, 4, 24, 3, 3) and translation.shape == (2, 4, 3)
    identity = torch.eye(3).expand_as(rotations)
    torch.testing.assert_close(rotations @ rotations.mT, identity, rtol=0, atol=1e-5)
    assert bool((torch.linalg.det(rotations) > 0).all())
    (gradient,) = torch.autograd.grad((rotations * torch.randn_like(rotations)).sum() + translation.sum(), features)
    assert bool(gradient.isfinite().all()) and float(gradient.abs().max()) > 0


@BOTH
def test_gradients_are_finite_at_the_rest_pose(name: str) -> None:
    layout = representation(name)
    motion = Motion(torch.eye(3).repeat(2, 24, 1, 1), torch.zeros(2, 3), 30.0)
    features = layout.encode(motion).requires_grad_()
    rotations, _ = layout.decode(features)
    (gradient,) = torch.autograd.grad((rotations * torch.randn_like(rotations)).sum(), features)
    assert bool(gradient.isfinite().all()) and float(gradient.abs().max()) < 100


@BOTH
def test_half_precision_decodes_in_float32(name: str) -> None:
    layout = representation(name)
    features = layout.encode(random_motion(2, layout.joints)).bfloat16()
    rotations, translation = layout.decode(features)
    assert rotations.dtype == torch.float32 and translation.dtype == torch.float32


def test_hymotion_channels_stand_in_the_released_order() -> None:
    motion = random_motion(2, 22)
    features = representation("hymotion-201").encode(motion)
    assert torch.equal(features[:, :3], motion.translation)
    for joint in (0, 1, 21):
        block = features[1, 3 + 6 * joint : 9 + 6 * joint]
        matrix = motion.rotations[1, joint]
        expected = [matrix[0, 0], matrix[0, 1], matrix[1, 0], matrix[1, 1], matrix[2, 0], matrix[2, 1]]
        assert torch.equal(block, torch.stack(expected))


def test_hymotion_positions_relative_to_the_pelvis_or_to_the_translated_point() -> None:
    motion = random_motion(3, 22)
    world = motion.joints()[:, :22]
    pelvis = HyMotion201("pelvis").encode(motion)[:, 135:].view(3, 22, 3)
    torch.testing.assert_close(pelvis, world - world[:, :1], rtol=0, atol=1e-5)
    assert torch.equal(pelvis[:, 0], torch.zeros(3, 3))
    rest_root = representation("hymotion-201", "rest_root").encode(motion)[:, 135:].view(3, 22, 3)
    torch.testing.assert_close(rest_root, world - motion.translation[:, None], rtol=0, atol=1e-5)
    assert torch.equal(rest_root[:, 0], smpl24().offsets[0].expand(3, 3))
    assert torch.equal(representation("hymotion-201").encode(motion)[:, 135:].view(3, 22, 3), pelvis)


def test_hymotion_decoding_ignores_positions_and_leaves_hands_at_rest() -> None:
    layout = representation("hymotion-201")
    features = layout.encode(random_motion(2, 22))
    changed = features.clone()
    changed[:, 135:] = 7.0
    assert all(torch.equal(a, b) for a, b in zip(layout.decode(features), layout.decode(changed), strict=True))
    assert torch.equal(layout.decode(features)[0][:, 22:], torch.eye(3).expand(2, 2, 3, 3))


def test_rotation_matrix_channels_are_row_major_with_the_translation_last() -> None:
    motion = random_motion(2, 24)
    features = representation("smpl24-rotmat").encode(motion)
    assert torch.equal(features[:, 216:], motion.translation)
    assert torch.equal(features[1, 9 * 5 : 9 * 6], motion.rotations[1, 5].flatten())


@pytest.mark.parametrize(("name", "expected"), [("smpl24-rotmat", (75, 72, 72)), ("hymotion-201", (75, 72, 54))])
def test_channels_of_joint_groups(name: str, expected: tuple[int, ...]) -> None:
    layout = representation(name)
    names = layout.joint_names
    legs = {j for part in ("hip", "knee", "ankle", "shoulder") for j in joints_named(part, names)}
    arms = {j for part in ("elbow", "wrist", "neck", "spine") for j in joints_named(part, names)}
    others = set(range(layout.joints)) - legs - arms
    counts = tuple(sum(len(layout.joint_channels(j)) for j in group) for group in (legs | {-1}, arms, others))
    assert counts == expected


@BOTH
def test_every_channel_belongs_to_one_joint_and_has_its_own_name(name: str) -> None:
    layout = representation(name)
    owner = layout.channel_joint()
    assert owner.shape == (layout.channels,) and owner.dtype == torch.int64
    channels = torch.cat([layout.joint_channels(joint) for joint in range(-1, layout.joints)])
    assert sorted(channels.tolist()) == list(range(layout.channels))
    names = layout.channel_names()
    assert len(set(names)) == layout.channels
    for channel, joint in enumerate(owner.tolist()):
        assert names[channel].startswith("translation." if joint < 0 else JOINTS_24[joint] + ".")


@BOTH
def test_a_joints_channels_are_those_that_its_rotation_changes(name: str) -> None:
    layout = representation(name)
    motion = random_motion(1, layout.joints)
    moved = Motion(motion.rotations.clone(), motion.translation, motion.fps)
    wrist = JOINTS_24.index("left_wrist")
    moved.rotations[:, wrist] = random_rotations(1)
    changed = (layout.encode(motion) != layout.encode(moved)).nonzero()[:, 1]
    assert len(changed) > 0 and set(changed.tolist()) <= set(layout.joint_channels(wrist).tolist())


def test_channel_names_read_as_what_they_are() -> None:
    names = representation("hymotion-201").channel_names()
    assert [names[i] for i in (1, 3, 4, 5, 9, 135, 200)] == [
        "translation.y",
        "pelvis.rotation[0,0]",
        "pelvis.rotation[0,1]",
        "pelvis.rotation[1,0]",
        "left_hip.rotation[0,0]",
        "pelvis.position.x",
        "right_wrist.position.z",
    ]
    assert representation("smpl24-rotmat").channel_names()[215:217] == ["right_hand.rotation[2,2]", "translation.x"]


def test_user_mistakes_name_the_legal_values() -> None:
    with pytest.raises(UserError, match=r"'smpl'.*hymotion-201, smpl24-rotmat"):
        representation("smpl")
    with pytest.raises(UserError, match=r"'hips'.*pelvis, rest_root"):
        representation("hymotion-201", "hips")
    with pytest.raises(UserError, match="no meaning"):
        representation("smpl24-rotmat", "pelvis")


@BOTH
def test_wrong_number_of_channels_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="200 channels"):
        representation(name).decode(torch.zeros(4, 200))

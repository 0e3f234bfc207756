from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch3d.transforms import axis_angle_to_matrix, random_rotations
from torch import Tensor

from ds_hymotion.motion.kinematics import global_rotations
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import geodesic_angle
from ds_hymotion.motion.skeleton import MIRROR_24, smpl24
from ds_hymotion.motion.transforms import (
    canonical,
    face_forward,
    heading,
    mirror,
    resample,
    to_floor,
    z_up_to_y_up,
)

J0 = smpl24().offsets[0]


def rest(frames: int, translation: Tensor | None = None, root: Tensor | None = None, fps: float = 30.0) -> Motion:
    rotations = torch.eye(3).expand(frames, 24, 3, 3).clone()
    if root is not None:
        rotations[:, 0] = root
    return Motion(rotations, torch.zeros(frames, 3) if translation is None else translation, fps)


def random_motion(frames: int, seed: int = 0, fps: float = 30.0) -> Motion:
    torch.manual_seed(seed)
    return Motion(random_rotations(frames * 24).view(frames, 24, 3, 3), torch.randn(frames, 3), fps)


def turn(x: float = 0, y: float = 0, z: float = 0) -> Tensor:
    return axis_angle_to_matrix(torch.tensor([x, y, z], dtype=torch.float64)).float()


@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.5, math.pi])
def test_a_forward_walk_recorded_z_up_stays_a_forward_walk(yaw: float) -> None:
    # In a z-up world an upright body facing its +Z looks along -y before it is turned by its heading.
    root = turn(z=yaw) @ turn(x=math.pi / 2)
    direction = turn(z=yaw) @ torch.tensor([0.0, -1.0, 0.0])
    along = torch.arange(31.0)[:, None] / 30 * 1.5
    pelvis = torch.tensor([2.0, -1.0, 0.9]) + along * direction
    y_up = z_up_to_y_up(rest(31, pelvis - J0, root))

    height = y_up.joints()[0]
    assert height[smpl24().index("head"), 1] > height[0, 1] > height[smpl24().index("left_foot"), 1]
    assert float(height[0, 1]) == pytest.approx(0.9, abs=1e-6)

    path = face_forward(y_up).joints()[:, 0]
    torch.testing.assert_close(path[0], torch.tensor([0.0, 0.9, 0.0]), rtol=0, atol=1e-6)
    # The rest body's own hips and shoulders are askew by a quarter of a degree: 6 mm over 1.5 m.
    torch.testing.assert_close(path[-1], torch.tensor([0.0, 0.9, 1.5]), rtol=0, atol=7e-3)


def test_z_up_to_y_up_turns_every_joint() -> None:
    motion = random_motion(4)
    x, y, z = motion.joints().unbind(-1)
    torch.testing.assert_close(z_up_to_y_up(motion).joints(), torch.stack([x, z, -y], dim=-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("source", [100.0, 150.0, 250.0, 59.9999885, 120.00004577636719])
def test_resampling_follows_time(source: float) -> None:
    frames = int(source * 2) + 1
    time = torch.arange(frames, dtype=torch.float64) / source
    # Constant speeds: 0.8 m/s, and a turn of 2 rad/s about the vertical.
    translation = torch.stack([0.8 * time, 0 * time, 0.3 * time], dim=1).float()
    vectors = torch.zeros(frames, 3, dtype=torch.float64)
    vectors[:, 1] = 2 * time
    motion = resample(rest(frames, translation, axis_angle_to_matrix(vectors).float(), fps=source), 30.0)
    assert motion.fps == 30.0
    assert motion.frames == math.floor((frames - 1) / source * 30 + 1e-6) + 1
    shown = torch.arange(motion.frames, dtype=torch.float64) / 30
    assert float(shown[-1]) <= (frames - 1) / source + 1e-6
    assert float((motion.translation[:, 0].double() - 0.8 * shown).abs().max()) < 1e-6
    turned = torch.zeros(motion.frames, 3, dtype=torch.float64)
    turned[:, 1] = 2 * shown
    assert float(geodesic_angle(motion.rotations[:, 0].double(), axis_angle_to_matrix(turned)).max()) < 1e-6


@pytest.mark.parametrize(
    ("frames", "source", "target", "expected"),
    [(120, 120.0, 30.0, 30), (121, 120.0, 30.0, 31), (241, 120.00004577636719, 30.0, 60), (2, 20.0, 30.0, 2),
     (1, 120.0, 30.0, 1), (31, 30.0, 30.0, 31), (101, 59.9999885, 30.0, 51), (501, 100.0, 30.0, 151),
     (247, 60.0, 30.0, 124)],
)  # fmt: skip
def test_number_of_resampled_frames(frames: int, source: float, target: float, expected: int) -> None:
    assert resample(rest(frames, fps=source), target).frames == expected


def test_whole_strides_copy_the_source_frames() -> None:
    motion = random_motion(13, fps=120.0)
    halved = resample(motion, 30.0)
    assert torch.equal(halved.rotations, motion.rotations[::4])
    assert torch.equal(halved.translation, motion.translation[::4])


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), source=st.floats(15, 250), target=st.floats(10, 120))
def test_resampled_rotations_lie_between_their_neighbours(seed: int, source: float, target: float) -> None:
    motion = random_motion(6, seed, fps=source)
    result = resample(motion, target)
    for k in range(result.frames):
        position = min(k / target * source, 5.0)
        before = min(int(position), 4)
        ends = motion.rotations[[before, before + 1]].double()
        shown = result.rotations[k].double()
        whole = geodesic_angle(ends[0], ends[1])
        parts = geodesic_angle(ends[0], shown) + geodesic_angle(shown, ends[1])
        assert float((parts - whole).abs().max()) < 5e-6
        assert float((geodesic_angle(ends[0], shown) - (position - before) * whole).abs().max()) < 1e-5


def test_resample_refuses_a_rate_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="fps"):
        resample(rest(3), 0.0)


def test_to_floor_puts_the_lowest_joint_of_the_clip_on_the_ground() -> None:
    motion = rest(3, torch.tensor([[0.0, 5.0, 1.0], [2.0, 4.0, 0.0], [0.0, 6.0, 0.0]]))
    floored = to_floor(motion)
    assert float(floored.joints()[..., 1].min()) == pytest.approx(0.0, abs=1e-6)
    assert int(floored.joints()[..., 1].min(dim=1).values.argmin()) == 1
    moved = floored.translation - motion.translation
    assert torch.equal(moved[:, [0, 2]], torch.zeros(3, 2))
    torch.testing.assert_close(moved[:, 1], moved[:1, 1].expand(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("yaw", [0.0, 1.0, -3.0, math.pi / 2])
def test_heading_is_the_yaw_of_the_body(yaw: float) -> None:
    askew = heading(rest(1))
    assert abs(askew) < 0.005
    turned = heading(rest(1, root=turn(y=yaw)))
    assert math.remainder(turned - askew - yaw, 2 * math.pi) == pytest.approx(0.0, abs=1e-6)
    # A body that leans forward faces the same way.
    assert heading(rest(1, root=turn(y=yaw) @ turn(x=0.6))) == pytest.approx(yaw, abs=0.03)


@pytest.mark.parametrize("yaw", [0.4, -1.9])
def test_a_body_lying_on_its_side_faces_where_its_front_points(yaw: float) -> None:
    on_its_side = turn(y=yaw) @ turn(z=-math.pi / 2)
    facing = face_forward(rest(2, root=on_its_side))
    front = global_rotations(facing.rotations[0], smpl24())[0, :, 2]
    assert float(front[2]) > 0.99


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31 - 1))
def test_canonical_is_on_the_floor_over_the_origin_and_stays_so(seed: int) -> None:
    motion = canonical(random_motion(5, seed))
    joints = motion.joints()
    assert float(joints[..., 1].min()) == pytest.approx(0.0, abs=2e-6)
    assert float(joints[0, 0, [0, 2]].abs().max()) < 2e-6
    assert abs(heading(motion)) < 1e-4
    again = canonical(motion)
    torch.testing.assert_close(again.joints(), joints, rtol=0, atol=5e-4)


def test_face_forward_moves_the_world_rigidly() -> None:
    motion = random_motion(5, seed=7)
    turned = face_forward(motion)
    before, after = (m.joints().flatten(0, 1).double() for m in (motion, turned))
    torch.testing.assert_close(torch.cdist(after, after), torch.cdist(before, before), rtol=0, atol=1e-5)
    torch.testing.assert_close(after[:, 1], before[:, 1], rtol=0, atol=1e-5)
    assert torch.equal(turned.rotations[:, 1:], motion.rotations[:, 1:])


def test_mirror_reflects_the_pelvis_and_swaps_the_sides() -> None:
    motion = random_motion(4, seed=3)
    flip = torch.tensor([-1.0, 1.0, 1.0])
    mirrored = mirror(motion)
    torch.testing.assert_close(mirrored.joints()[:, 0], motion.joints()[:, 0] * flip, rtol=0, atol=1e-6)
    world = global_rotations(motion.rotations, smpl24())[:, list(MIRROR_24)]
    expected = torch.diag(flip) @ world @ torch.diag(flip)
    torch.testing.assert_close(global_rotations(mirrored.rotations, smpl24()), expected, rtol=0, atol=1e-5)
    # The body itself is nearly symmetric: every joint lands near the reflection of its counterpart.
    apart = mirrored.joints() - motion.joints()[:, list(MIRROR_24)] * flip
    assert float(apart.norm(dim=-1).max()) < 0.06


def test_a_raised_left_arm_becomes_a_raised_right_arm() -> None:
    motion = rest(1)
    motion.rotations[0, smpl24().index("left_shoulder")] = turn(z=math.pi / 2)
    left, right = (smpl24().index(f"{side}_wrist") for side in ("left", "right"))
    assert float(motion.joints()[0, left, 1] - motion.joints()[0, right, 1]) > 0.4
    mirrored = mirror(motion).joints()
    assert float(mirrored[0, right, 1] - mirrored[0, left, 1]) > 0.4


def test_mirroring_twice_changes_nothing() -> None:
    motion = random_motion(4, seed=5)
    twice = mirror(mirror(motion))
    assert torch.equal(twice.rotations, motion.rotations)
    torch.testing.assert_close(twice.translation, motion.translation, rtol=0, atol=1e-6)

from __future__ import annotations

import math

import pytest
import torch
from pytorch3d.transforms import axis_angle_to_matrix, random_rotations
from torch import Tensor

from ds_hymotion.motion.kinematics import forward_kinematics, global_rotations
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.skeleton import Skeleton, smpl24, smplh22

CHAIN = Skeleton(("root", "middle", "tip"), (-1, 0, 1), torch.tensor([[0.5, 0, 0], [0, 1.0, 0], [0, 2.0, 0]]))
QUARTER_ABOUT_Z = axis_angle_to_matrix(torch.tensor([0.0, 0.0, math.pi / 2]))


def identity(*shape: int) -> Tensor:
    return torch.eye(3).expand(*shape, 3, 3).clone()


def test_rest_pose_is_the_sum_of_the_offsets() -> None:
    positions = forward_kinematics(identity(24), None, smpl24())
    skeleton = smpl24()
    hand, joint = torch.zeros(3), skeleton.index("left_hand")
    while joint >= 0:
        hand, joint = hand + skeleton.offsets[joint], skeleton.parents[joint]
    torch.testing.assert_close(positions[22], hand, rtol=0, atol=1e-6)
    torch.testing.assert_close(positions[0], skeleton.offsets[0], rtol=0, atol=0)


def test_rest_body_stands_upright_with_its_left_at_plus_x() -> None:
    positions = forward_kinematics(identity(24), None, smpl24())
    assert positions[smpl24().index("head"), 1] > positions[0, 1] > positions[smpl24().index("left_foot"), 1]
    assert positions[smpl24().index("left_wrist"), 0] > 0.5 and positions[smpl24().index("right_wrist"), 0] < -0.5
    assert positions[smpl24().index("left_foot"), 2] > positions[smpl24().index("left_ankle"), 2]


def test_a_joint_turns_what_hangs_below_it() -> None:
    rotations = identity(3)
    rotations[1] = QUARTER_ABOUT_Z
    positions = forward_kinematics(rotations, torch.tensor([0.0, 0.0, 3.0]), CHAIN)
    expected = torch.tensor([[0.5, 0, 3], [0.5, 1, 3], [-1.5, 1, 3]])
    torch.testing.assert_close(positions, expected, rtol=0, atol=1e-6)


def test_rotations_accumulate_from_the_root() -> None:
    rotations = QUARTER_ABOUT_Z.expand(3, 3, 3)
    turns = global_rotations(rotations, CHAIN)
    half = torch.diag(torch.tensor([-1.0, -1.0, 1.0]))
    torch.testing.assert_close(turns[1], half, rtol=0, atol=1e-6)
    torch.testing.assert_close(turns[2], half @ QUARTER_ABOUT_Z, rtol=0, atol=1e-6)
    positions = forward_kinematics(rotations, None, CHAIN)
    torch.testing.assert_close(positions, torch.tensor([[0.5, 0, 0], [-0.5, 0, 0], [-0.5, -2, 0]]), rtol=0, atol=1e-6)


def test_whole_tree_against_a_joint_by_joint_walk() -> None:
    torch.manual_seed(0)
    skeleton = smpl24()
    rotations, translation = random_rotations(24, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    turns: list[Tensor] = []
    places: list[Tensor] = []
    for joint, parent in enumerate(skeleton.parents):
        offset = skeleton.offsets[joint].double()
        turns.append(rotations[joint] if parent < 0 else turns[parent] @ rotations[joint])
        places.append(offset + translation if parent < 0 else places[parent] + turns[parent] @ offset)
    torch.testing.assert_close(forward_kinematics(rotations, translation, skeleton), torch.stack(places))
    torch.testing.assert_close(global_rotations(rotations, skeleton), torch.stack(turns))


def test_a_tree_listed_branch_by_branch() -> None:
    offsets = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 1, 0], [5, 0, 0]])
    branches = Skeleton(("root", "a", "a_tip", "b"), (-1, 0, 1, 0), offsets)
    rotations = identity(4)
    rotations[1] = QUARTER_ABOUT_Z
    expected = torch.tensor([[0.0, 0, 0], [0, 1, 0], [-1, 1, 0], [5, 0, 0]])
    torch.testing.assert_close(forward_kinematics(rotations, None, branches), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(global_rotations(rotations, branches)[3], torch.eye(3), rtol=0, atol=0)


def test_leading_dims_are_batched() -> None:
    torch.manual_seed(1)
    rotations, translation = random_rotations(2 * 5 * 22).view(2, 5, 22, 3, 3), torch.randn(2, 5, 3)
    positions = forward_kinematics(rotations, translation, smplh22())
    assert positions.shape == (2, 5, 22, 3)
    torch.testing.assert_close(positions[1, 3], forward_kinematics(rotations[1, 3], translation[1, 3], smplh22()))


def test_gradients_against_finite_differences() -> None:
    torch.manual_seed(2)
    rotations = random_rotations(3, dtype=torch.float64).requires_grad_()
    translation = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r, t: forward_kinematics(r, t, CHAIN), (rotations, translation))


def test_wrong_number_of_joints_is_refused() -> None:
    with pytest.raises(ValueError, match="24"):
        forward_kinematics(identity(22), None, smpl24())


def test_motion_places_the_pelvis_at_translation_plus_j0() -> None:
    motion = Motion(identity(2, 24).double(), torch.tensor([[0.0, 0, 0], [1, 2, 3]]), 30.0)
    assert motion.frames == 2 and motion.rotations.dtype == torch.float32
    torch.testing.assert_close(motion.joints()[1, 0], torch.tensor([1.0, 2, 3]) + smpl24().offsets[0])


def test_motion_crop() -> None:
    motion = Motion(identity(5, 24), torch.arange(15.0).view(5, 3), 30.0)
    assert torch.equal(motion.crop(1, 3).translation, motion.translation[1:3])
    assert motion.crop(1, 3).fps == 30.0
    for start, end in [(2, 2), (-1, 3), (0, 6)]:
        with pytest.raises(ValueError, match="of 5 frames"):
            motion.crop(start, end)


def test_motion_refuses_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="rotations"):
        Motion(identity(5, 22), torch.zeros(5, 3), 30.0)
    with pytest.raises(ValueError, match="rotations"):
        Motion(identity(0, 24), torch.zeros(0, 3), 30.0)
    with pytest.raises(ValueError, match="translation"):
        Motion(identity(5, 24), torch.zeros(4, 3), 30.0)
    for fps in (0.0, -30.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="fps"):
            Motion(identity(5, 24), torch.zeros(5, 3), fps)

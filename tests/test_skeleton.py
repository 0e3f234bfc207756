from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ds_hymotion.errors import UserError
from ds_hymotion.motion.skeleton import JOINTS_24, MIRROR_24, PARENTS_24, Skeleton, joints_named, smpl24, smplh22


def named(name: str) -> list[str]:
    return [JOINTS_24[joint] for joint in joints_named(name, JOINTS_24)]


def test_smpl24_is_the_neutral_body_to_the_millimetre(shared: Path) -> None:
    sample = np.load(shared / "samples/skeleton/smpl24_neutral.npz", allow_pickle=False)
    skeleton = smpl24()
    # Joint 0 is J0 and not an offset between joints: the sample's body puts its origin elsewhere in height.
    assert np.abs(skeleton.offsets.numpy() - sample["offsets"])[1:].max() <= 1e-3
    assert np.abs(skeleton.offsets.numpy() - sample["offsets"])[0, [0, 2]].max() <= 1e-4
    assert skeleton.parents == tuple(sample["parents"].tolist())
    assert [name.lower().replace("palm", "hand") for name in sample["names"]] == list(skeleton.names)


def test_rest_pelvis_is_j0() -> None:
    torch.testing.assert_close(smpl24().offsets[0], torch.tensor([-0.0018, -0.1908, 0.0282]), rtol=0, atol=0)


def test_smplh22_is_the_first_22_joints() -> None:
    assert smplh22().joints == 22
    assert smplh22().names == JOINTS_24[:22]
    assert smplh22().parents == PARENTS_24[:22]
    assert torch.equal(smplh22().offsets, smpl24().offsets[:22])


def test_levels_hold_every_joint_once_below_its_parent() -> None:
    levels = smpl24().levels
    assert sorted(joint for level in levels for joint in level) == list(range(24))
    assert levels[0] == (0,) and levels[1] == (1, 2, 3)
    for above, level in zip(levels, levels[1:], strict=False):
        assert all(PARENTS_24[joint] in above for joint in level)


def test_children_and_index() -> None:
    assert smpl24().children(9) == (12, 13, 14)
    assert smpl24().children(23) == ()
    assert smpl24().index("left_wrist") == 20
    with pytest.raises(ValueError, match="tail"):
        smpl24().index("tail")


def test_mirror_permutation_swaps_sides_and_is_its_own_inverse() -> None:
    assert MIRROR_24[JOINTS_24.index("left_elbow")] == JOINTS_24.index("right_elbow")
    assert MIRROR_24[JOINTS_24.index("spine2")] == JOINTS_24.index("spine2")
    assert tuple(MIRROR_24[joint] for joint in MIRROR_24) == tuple(range(24))
    assert sum(joint != other for joint, other in enumerate(MIRROR_24)) == 18


@pytest.mark.parametrize(
    ("name", "joints"),
    [
        ("hip", ["left_hip", "right_hip"]),
        ("left_hip", ["left_hip"]),
        ("spine", ["spine1", "spine2", "spine3"]),
        ("spine2", ["spine2"]),
        ("neck", ["neck"]),
        ("pelvis", ["pelvis"]),
        ("hand", ["left_hand", "right_hand"]),
    ],
)
def test_joints_named(name: str, joints: list[str]) -> None:
    assert named(name) == joints


@pytest.mark.parametrize("name", ["tail", "left_spine", "left_", "", "Hip", "others"])
def test_unknown_joint_name_lists_the_legal_ones(name: str) -> None:
    with pytest.raises(UserError, match=r"hip.*spine.*left_wrist") as error:
        joints_named(name, JOINTS_24)
    assert repr(name) in str(error.value) and "\n" not in str(error.value)


def test_hands_are_unknown_to_22_joints() -> None:
    with pytest.raises(UserError, match="hand"):
        joints_named("hand", JOINTS_24[:22])


@pytest.mark.parametrize("parents", [(0, 0), (-1, 1), (-1, -1)])
def test_malformed_tree_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="parents"):
        Skeleton(("a", "b"), parents, torch.zeros(2, 3))


def test_wrong_offsets_are_refused() -> None:
    with pytest.raises(ValueError, match="disagree"):
        Skeleton(("a", "b"), (-1, 0), torch.zeros(3, 3))

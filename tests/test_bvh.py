"""BVH in and out: hand-made files, the genuine samples, and an independent reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bvh import Bvh
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import read_amass
from ds_hymotion.formats.bvh import parse_bvh, read_bvh, write_bvh
from ds_hymotion.formats.bvh_writer import continuous_euler
from ds_hymotion.formats.files import FormatError
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import axis_angle_to_matrix, geodesic_angle
from ds_hymotion.motion.skeleton import smpl24, smplh22

SMALL = """HIERARCHY
ROOT Model:Hips
{
\tOFFSET 1.0 2.0 3.0
\tCHANNELS 6 Xposition Yposition Zposition Zrotation Yrotation Xrotation
\tJOINT Model:Chest
\t{
\t\tOFFSET 0 10 0
\t\tCHANNELS 3 Yrotation Xrotation Zrotation
\t\tEnd Site
\t\t{
\t\t\tOFFSET 0 5 0
\t\t}
\t}
\tJOINT Tail
\t{
\t\tOFFSET 0 0 -4
\t\tCHANNELS 1 Xposition
\t}
}
MOTION
Frames:\t2
Frame Time: .0083333
0 90 0 0 0 0 0 0 0 7
5 90 1 90 0 0 0 90 0 7
"""
SAMPLES = {
    "cmu_12_01_walk.bvh": (524, 31, 120.0),
    "neutral_01_000.bvh": (327, 31, 120.0),
    "example.bvh": (278, 31, 120.0),
    "smpl24_25joints.bvh": (250, 25, 24.0),
    "dataset-1_walk_normal_001.bvh": (195, 22, 30.0),
    "dataset-2_wave-right-hand_normal_001.bvh": (187, 22, 30.0),
}


def turn(axis: str, degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array(
        {
            "X": [[1, 0, 0], [0, c, -s], [0, s, c]],
            "Y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
            "Z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
        }[axis]
    )


def joints_by_the_public_reader(text: str, frames: list[int]) -> tuple[list[str], np.ndarray]:
    """Names and positions [len(frames), J, 3]: the public package parses, the kinematics are spelled out here."""
    file = Bvh(text)
    names = file.get_joints_names()
    result = np.zeros((len(frames), len(names), 3))
    for row, frame in enumerate(frames):
        rotations: list[np.ndarray] = []
        for joint, name in enumerate(names):
            place, rotation = np.array(file.joint_offset(name)), np.eye(3)
            for channel, value in zip(
                file.joint_channels(name),
                file.frame_joint_channels(frame, name, file.joint_channels(name)),
                strict=True,
            ):
                if channel.endswith("position"):
                    place["XYZ".index(channel[0])] = value
                else:
                    rotation = rotation @ turn(channel[0], value)
            parent = file.joint_parent_index(name)
            if parent < 0:
                result[row, joint] = place
                rotations.append(rotation)
            else:
                result[row, joint] = result[row, parent] + rotations[parent] @ place
                rotations.append(rotations[parent] @ rotation)
    return names, result


def some_motion(frames: int = 4, fps: float = 30.0, spread: float = 1.5) -> Motion:
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(frames, 24, 3, generator=generator, dtype=torch.float64) * spread
    return Motion(axis_angle_to_matrix(vectors).float(), torch.randn(frames, 3, generator=generator) * 4, fps)


def test_a_small_file_by_hand():
    motion = parse_bvh(SMALL.encode(), "a.bvh")
    assert motion.names == ("Model:Hips", "Model:Chest", "Tail") and motion.short_names == ("Hips", "Chest", "Tail")
    assert motion.parents == (-1, 0, 0) and motion.end_sites == ((1, (0.0, 5.0, 0.0)),)
    assert motion.offsets.tolist() == [[1, 2, 3], [0, 10, 0], [0, 0, -4]]
    assert motion.frame_time == 0.0083333 and motion.fps == 120.0 and motion.frames == 2
    assert motion.positions[1].tolist() == [[5, 90, 1], [0, 10, 0], [7, 0, -4]]
    places = motion.global_positions()
    assert torch.allclose(places[0], torch.tensor([[0.0, 90, 0], [0, 100, 0], [7, 90, -4]]), atol=1e-5)
    assert torch.allclose(places[1], torch.tensor([[5.0, 90, 1], [-5, 90, 1], [5, 97, -3]]), atol=1e-5)
    assert torch.allclose(motion.rotations[1, 1], torch.tensor(turn("X", 90)).float(), atol=1e-6)


@pytest.mark.parametrize("order", ["ZYX", "ZXY", "YXZ", "XYZ", "YZX", "XZY"])
def test_channels_turn_in_the_order_of_the_file(order):
    channels = " ".join(f"{axis}rotation" for axis in order)
    text = SMALL.replace("Yrotation Xrotation Zrotation", channels).replace("0 90 0 7", "20 30 40 7")
    expected = turn(order[0], 20) @ turn(order[1], 30) @ turn(order[2], 40)
    text = text.replace("5 90 1 90 0 0 0 90 0 7", "5 90 1 0 0 0 20 30 40 7")
    assert np.allclose(parse_bvh(text.encode(), "a").rotations[1, 1].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n", "\r\n"),
        ("\n", "\n\n"),
        ("\n", "\r"),
        ("\t", "    "),
        ("\n{", " {"),
        ("Frames:\t2", "Frames: 2"),
        ("Frames:\t2", "FRAMES : 2 "),
        ("End Site", "End site"),
        ("HIERARCHY", "\ufeffHIERARCHY"),
        (".0083333", "8.3333e-3"),
        ("Frame Time:", "Frame Time:\t"),
        ("7\n", "7 \t\n"),
        ("Zrotation", "ZROTATION"),
        ("\t}\n}", "\t} }"),
    ],
)
def test_spellings_in_the_wild(old, new):
    assert old in SMALL
    plain, spelled = parse_bvh(SMALL.encode(), "a"), parse_bvh(SMALL.replace(old, new).encode(), "b")
    assert torch.equal(plain.global_positions(), spelled.global_positions()) and spelled.fps == 120.0
    assert plain.names == spelled.names and plain.end_sites == spelled.end_sites


def test_names_with_spaces_prefixes_and_other_alphabets():
    text = SMALL.replace("Model:Hips", "mixamorig:Left Arm").replace("Tail", "Schwänzchen")
    assert parse_bvh(text.encode(), "a").short_names == ("Left Arm", "Chest", "Schwänzchen")
    assert parse_bvh(text.encode("latin-1"), "a").names[2] == "Schwänzchen"


@pytest.mark.parametrize(
    ("seconds", "fps"),
    [
        ("0.0333333", 30.0),
        ("0.008333", 120.0),
        ("0.041667", 24.0),
        ("0.0166667", 60.0),
        ("0.01", 100.0),
        ("0.0333667", 1 / 0.0333667),
        ("0.04004", 1 / 0.04004),
    ],
)
def test_rates_are_whole_where_rounding_explains_it(seconds, fps):
    assert parse_bvh(SMALL.replace(".0083333", seconds).encode(), "a").fps == fps


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("HIERARCHY\n", "", 1, "not a BVH file"),
        ("ROOT Model:Hips", "ROOT", 2, "damaged hierarchy"),
        ("ROOT Model:Hips", "JOINT Model:Hips", 2, "damaged hierarchy"),
        ("ROOT Model:Hips\n{", "ROOT Model:Hips", 3, "damaged hierarchy"),
        ("OFFSET 1.0 2.0 3.0", "OFFSET 1.0 2.0", 4, "damaged hierarchy"),
        ("OFFSET 1.0 2.0 3.0", "OFFSET 1.0 2.0 nan", 4, "NaN, Inf or absurd number"),
        ("OFFSET 1.0 2.0 3.0", "OFFSET 1.0 2,5 3.0", 4, "not a number"),
        ("OFFSET 1.0 2.0 3.0", "OFFSET 1.0 2.0 1e300", 4, "NaN, Inf or absurd number"),
        ("CHANNELS 3", "CHANNELS 4", 9, "damaged channels"),
        ("CHANNELS 3 Yrotation", "CHANNELS 3 Wrotation", 9, "damaged channels"),
        ("CHANNELS 3 Yrotation", "CHANNELS 3 Xrotation", 9, "damaged channels"),
        ("\t\tOFFSET 0 0 -4\n", "", 18, "damaged hierarchy"),
        ("\t}\n}\nMOTION", "\t}\nMOTION", 20, "damaged hierarchy"),
        ("}\nMOTION", "}\n}\nMOTION", 21, "damaged hierarchy"),
        ("}\nMOTION", "}\nROOT Second\n{", 21, "damaged hierarchy"),
        ("Frames:\t2", "Frames: two", 22, "damaged motion header"),
        ("Frames:\t2", "Frames: 0", 22, "damaged motion header"),
        ("Frame Time: .0083333", "Frame Time:", 23, "damaged motion header"),
        (".0083333", "0", 23, "absurd frame time"),
        (".0083333", "-0.1", 23, "absurd frame time"),
        ("5 90 1 90 0 0 0 90 0 7\n", "", 24, "fewer frames than stated"),
        ("5 90 1 90 0 0 0 90 0 7\n", "5 90 1 90 0 0", 25, "wrong number of values"),
        ("5 90 1", "5 nan 1", 25, "NaN, Inf or absurd number"),
        ("5 90 1", "5 9x 1", 25, "not a number"),
        ("Frames:\t2", "Frames:\t1", 25, "more frames than stated"),
    ],
)
def test_damage_is_refused_with_its_line(old, new, line, reason):
    assert SMALL.count(old) == 1
    with pytest.raises(FormatError) as caught:
        parse_bvh(SMALL.replace(old, new).rstrip("\n").encode(), "a.bvh")
    assert caught.value.reason == reason
    assert f"(line {line})" in str(caught.value) or f"(line {line}:" in str(caught.value)


@pytest.mark.parametrize("keep", [10, 40, 130, 290, 330])
def test_cut_files_are_refused(keep):
    with pytest.raises(FormatError):
        parse_bvh(SMALL.encode()[:keep], "a.bvh")


def test_empty_and_missing_files(tmp_path):
    for data in (b"", b"\n \n"):
        with pytest.raises(FormatError, match="empty file"):
            parse_bvh(data, "a.bvh")
    with pytest.raises(FormatError, match="no such file"):
        read_bvh(tmp_path / "absent.bvh")


@pytest.mark.parametrize("name", SAMPLES)
def test_genuine_files_agree_with_the_public_reader(shared, name):
    path = shared / "samples" / "bvh" / name
    motion = read_bvh(path)
    assert (motion.frames, len(motion.names), motion.fps) == SAMPLES[name]
    frames = [0, motion.frames // 2, motion.frames - 1]
    names, expected = joints_by_the_public_reader(path.read_text(), frames)
    assert list(motion.names) == names
    assert np.abs(motion.global_positions()[frames].numpy() - expected).max() < 1e-3 * np.abs(expected).max() / 10


def test_position_channels_stand_in_place_of_the_offset(shared):
    motion = read_bvh(shared / "samples" / "bvh" / "dataset-1_walk_normal_001.bvh")
    places = motion.global_positions()
    hips, spine, head = (motion.names.index(name) for name in ("Hips", "Spine", "Head"))
    assert places[:, 0].abs().max() == 0 and places[:, hips].std(dim=0).max() > 50
    assert 80 < float(places[:, hips, 1].mean()) < 100
    assert torch.allclose((places[:, spine] - places[:, hips]).norm(dim=-1), torch.tensor(15.7357), atol=1e-2)
    assert 130 < float(places[:, head, 1].mean()) < 180


@pytest.mark.parametrize("units", [100.0, 1.0])
def test_the_public_reader_finds_the_same_joints(tmp_path, units):
    motion = some_motion()
    path = tmp_path / "new" / "a.bvh"
    write_bvh(path, motion, units_per_metre=units)
    names, found = joints_by_the_public_reader(path.read_text(), list(range(motion.frames)))
    order = [names.index(name) for name in smpl24().names]
    assert np.abs(found[:, order] / units - motion.joints().numpy()).max() < 1e-4
    assert len(path.read_text().split("End Site")) == 6 and len(list(path.parent.iterdir())) == 1


def test_layout_for_readers_that_refuse_position_channels_below_the_root(tmp_path):
    write_bvh(tmp_path / "a.bvh", some_motion())
    file = Bvh((tmp_path / "a.bvh").read_text())
    assert file.joint_channels("pelvis") == [
        "Xposition",
        "Yposition",
        "Zposition",
        "Zrotation",
        "Xrotation",
        "Yrotation",
    ]
    assert all(file.joint_channels(name) == ["Zrotation", "Xrotation", "Yrotation"] for name in smpl24().names[1:])
    assert file.joint_offset("pelvis") == (0.0, 0.0, 0.0)
    assert file.joint_offset("left_knee") == pytest.approx((3.4, -37.5, -0.4))
    assert file.nframes == 4 and file.frame_time == pytest.approx(1 / 30, abs=1e-8)


@pytest.mark.parametrize("fps", [20.0, 30.0, 29.97, 120.0])
def test_written_motions_read_back(tmp_path, fps):
    motion = some_motion(fps=fps)
    write_bvh(tmp_path / "a.bvh", motion)
    again = read_bvh(tmp_path / "a.bvh").to_motion()
    assert float(geodesic_angle(motion.rotations, again.rotations).max()) < 1e-5
    assert torch.allclose(motion.translation, again.translation, atol=1e-5)
    assert again.fps == pytest.approx(fps, rel=1e-6)


def test_22_joints(tmp_path):
    motion = some_motion()
    write_bvh(tmp_path / "a.bvh", motion, skeleton=smplh22())
    file = read_bvh(tmp_path / "a.bvh")
    assert sorted(file.names) == sorted(smplh22().names)
    order = [file.names.index(name) for name in smplh22().names]
    assert torch.allclose(file.global_positions()[:, order] / 100, motion.joints()[:, :22], atol=1e-4)
    with pytest.raises(UserError, match="SMPL's 24"):
        file.to_motion()


def test_other_rest_poses_and_units_are_not_taken_for_smpl(tmp_path):
    write_bvh(tmp_path / "a.bvh", some_motion(), units_per_metre=1.0)
    with pytest.raises(UserError, match="rest offsets differ"):
        read_bvh(tmp_path / "a.bvh").to_motion()
    assert read_bvh(tmp_path / "a.bvh").to_motion(metres_per_unit=1.0).frames == 4


def test_angles_run_on_through_half_turns_and_the_pole():
    degrees = np.arange(0, 720, 10.0)
    spinning = np.stack([turn("Y", value) for value in degrees])[:, None]
    bending = np.stack([turn("X", value) for value in np.linspace(0, 170, len(degrees))])[:, None]
    rotations = np.concatenate([spinning, bending], axis=1)
    angles = continuous_euler(rotations)
    assert np.abs(np.diff(angles, axis=0)).max() < 10.001
    assert np.allclose(angles[:, 0, 2], degrees) and np.allclose(angles[:, 1, 1], np.linspace(0, 170, len(degrees)))
    again = Rotation.from_euler("ZXY", angles.reshape(-1, 3), degrees=True).as_matrix()
    assert np.allclose(again, rotations.reshape(-1, 3, 3), atol=1e-9)


def test_a_genuine_recording_through_bvh(shared, tmp_path):
    motion = read_amass(shared / "samples" / "amass" / "dmpl_sample_poses.npz").motion
    path = tmp_path / "a.bvh"
    write_bvh(path, motion)
    file = read_bvh(path)
    order = [file.names.index(name) for name in smpl24().names]
    assert float((file.global_positions()[:, order] / 100 - motion.joints()).abs().max()) < 1e-5
    names, found = joints_by_the_public_reader(path.read_text(), [0, 234])
    order = [names.index(name) for name in smpl24().names]
    assert np.abs(found[:, order] / 100 - motion.joints()[[0, 234]].numpy()).max() < 1e-4


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_bvh(tmp_path / "file" / "a.bvh", some_motion())


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_user_errors(data):
    for content in (data, b"HIERARCHY\nROOT a\n{\nOFFSET 0 0 0\nCHANNELS 1 Xrotation\n" + data):
        with pytest.raises(FormatError):
            parse_bvh(content, "a.bvh")


pieces = st.sampled_from(
    [
        "HIERARCHY",
        "ROOT a",
        "JOINT b",
        "End Site",
        "{",
        "}",
        "OFFSET 0 1 0",
        "OFFSET",
        "CHANNELS",
        "CHANNELS 1 Xrotation",
        "CHANNELS 0",
        "MOTION",
        "Frames: 1",
        "Frames:",
        "Frame Time: 0.1",
        "1",
        "2 3",
        "-inf",
        "\x00",
        "MOTION {",
    ]
)


@settings(deadline=None, max_examples=500)
@given(st.lists(pieces, max_size=14), st.integers(0, len(SMALL)), st.integers(0, 30), st.sampled_from("\n "))
def test_shuffled_pieces_raise_only_user_errors(parts, start, length, glue):
    for text in (glue.join(parts), SMALL[:start] + glue.join(parts) + SMALL[start + length :]):
        try:
            motion = parse_bvh(text.encode(), "a.bvh")
        except UserError:
            continue
        assert motion.rotations.isfinite().all() and motion.global_positions().shape[1] == len(motion.names)


def test_reading_a_folder_is_a_user_error(tmp_path: Path):
    with pytest.raises(FormatError, match="unreadable"):
        read_bvh(tmp_path)

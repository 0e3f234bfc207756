"""AMASS recordings: every layout, every refusal, and the way back."""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.errors import UserError
from ds_hymotion.formats import npz
from ds_hymotion.formats.amass import FormatError, NotAMotion, read_amass, velocity_outliers, write_amass
from ds_hymotion.formats.files import replace_file
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import axis_angle_to_matrix, geodesic_angle
from ds_hymotion.motion.skeleton import JOINTS_24, smpl24

J0 = smpl24().offsets[0].double().numpy()
TO_Y_UP = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
"""(x, y, z) in a z-up world is (x, z, -y) in a y-up world."""


def smplh(frames: int = 3, width: int = 156) -> dict[str, np.ndarray]:
    values = np.random.default_rng(0).uniform(-0.5, 0.5, (frames, width))
    return {
        "poses": values,
        "trans": np.arange(3 * frames, dtype=float).reshape(frames, 3),
        "betas": np.linspace(0, 1, 16),
        "gender": np.array("male"),
        "mocap_framerate": np.array(120.0),
    }


def saved(folder: Path, arrays: dict[str, np.ndarray], name: str = "clip_poses.npz") -> Path:
    path = folder / name
    np.savez(path, **arrays)
    return path


def reason_of(path: Path, **options: float) -> str:
    with pytest.raises(FormatError) as caught:
        read_amass(path, **options)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and caught.value.path == path
    return caught.value.reason


def matrix(vector: np.ndarray) -> torch.Tensor:
    return axis_angle_to_matrix(torch.tensor(vector, dtype=torch.float64)).float()


def random_motion(frames: int = 5, fps: float = 120.0, spread: float = 2.0) -> Motion:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(frames, 24, 3, generator=generator, dtype=torch.float64) * spread
    return Motion(axis_angle_to_matrix(vectors).float(), torch.randn(frames, 3, generator=generator) * 3, fps)


def test_smplh_layout_is_read_joint_by_joint(tmp_path):
    arrays = smplh()
    clip = read_amass(saved(tmp_path, arrays))
    vectors = arrays["poses"].reshape(3, 52, 3)
    for joint in range(1, 22):
        assert torch.allclose(clip.motion.rotations[:, joint], matrix(vectors[:, joint]), atol=1e-6)
    assert torch.allclose(clip.motion.rotations[:, 22], matrix(vectors[:, 22]), atol=1e-6)
    assert torch.allclose(clip.motion.rotations[:, 23], matrix(vectors[:, 37]), atol=1e-6)
    root = torch.tensor(TO_Y_UP, dtype=torch.float32) @ matrix(vectors[:, 0])
    assert torch.allclose(clip.motion.rotations[:, 0], root, atol=1e-6)
    assert clip.gender == "male" and clip.rate == 120.0 and clip.motion.fps == 120.0
    assert torch.equal(clip.betas, torch.linspace(0, 1, 16, dtype=torch.float64).float())


def test_translation_is_turned_about_the_origin_of_the_pelvis(tmp_path):
    clip = read_amass(saved(tmp_path, smplh()))
    trans = smplh()["trans"]
    expected = (trans + J0) @ TO_Y_UP.T - J0
    assert np.allclose(clip.motion.translation.numpy(), expected, atol=1e-6)
    assert not np.allclose(clip.motion.translation.numpy(), trans @ TO_Y_UP.T, atol=1e-2)
    assert np.allclose(clip.motion.joints()[:, 0].numpy(), (trans + J0) @ TO_Y_UP.T, atol=1e-6)


@pytest.mark.parametrize("split", [False, True])
def test_smplx_stageii_has_hands_at_rest(tmp_path, split):
    arrays = smplh(width=165)
    poses = arrays["poses"]
    del arrays["mocap_framerate"]
    arrays["mocap_frame_rate"] = np.array(59.9999885)
    arrays["surface_model_type"] = np.array("smplx")
    if split:
        del arrays["poses"]
        arrays |= {"root_orient": poses[:, :3], "pose_body": poses[:, 3:66], "pose_hand": poses[:, 75:]}
    clip = read_amass(saved(tmp_path, arrays, "walk_stageii.npz"))
    assert clip.rate == 59.9999885
    assert torch.allclose(clip.motion.rotations[:, 21], matrix(poses[:, 63:66]), atol=1e-6)
    assert torch.equal(clip.motion.rotations[:, 22:], torch.eye(3).expand(3, 2, 3, 3))


def test_plain_smpl_has_its_own_hands(tmp_path):
    arrays = smplh(width=72)
    clip = read_amass(saved(tmp_path, arrays))
    assert torch.allclose(clip.motion.rotations[:, 23], matrix(arrays["poses"][:, 69:72]), atol=1e-6)


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (np.array(b"female"), "female"),
        (np.array("Neutral"), "neutral"),
        (np.array([b"male"]), "male"),
    ],
)
def test_gender_is_bytes_or_unicode(tmp_path, stored, read):
    assert read_amass(saved(tmp_path, smplh() | {"gender": stored})).gender == read


def test_float32_fortran_order_compressed_and_missing_extras(tmp_path):
    arrays = smplh()
    path = tmp_path / "a.npz"
    np.savez_compressed(
        path,
        poses=np.asfortranarray(arrays["poses"].astype(">f4")),
        trans=arrays["trans"],
        mocap_framerate=np.array([120]),
    )
    clip = read_amass(path)
    assert torch.allclose(clip.motion.rotations, read_amass(saved(tmp_path, arrays)).motion.rotations, atol=1e-6)
    assert clip.gender == "neutral" and clip.betas.shape == (0,) and clip.rate == 120.0


@pytest.mark.parametrize("rate", [120.00004577636719, 59.9999885, 100.0, 150.0, 250.0])
def test_odd_rates_are_kept(tmp_path, rate):
    assert read_amass(saved(tmp_path, smplh() | {"mocap_framerate": np.array(rate)})).motion.fps == rate


def test_fps_override(tmp_path):
    arrays = smplh() | {"mocap_framerate": np.array(0.0)}
    path = saved(tmp_path, arrays)
    assert read_amass(path, fps=100).rate == 100.0
    del arrays["mocap_framerate"]
    assert read_amass(saved(tmp_path, arrays), fps=60.0).motion.fps == 60.0
    assert reason_of(path, fps=-1.0) == "fps -1.0 is not in 1..1000"


@pytest.mark.parametrize("length", [4.54, math.pi + 1e-9, 2 * math.pi + 0.3])
def test_long_axis_angles_mean_the_same_rotation(tmp_path, length):
    arrays = smplh()
    axis = np.array([1.0, 2.0, 2.0]) / 3.0
    arrays["poses"][:, :3] = axis * length
    root = read_amass(saved(tmp_path, arrays)).motion.rotations[0, 0].double()
    about = torch.tensor(TO_Y_UP) @ torch.tensor(axis)
    cosine, skew = math.cos(length), math.sin(length)
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    rodrigues = cosine * np.eye(3) + skew * cross + (1 - cosine) * np.outer(axis, axis)
    assert torch.allclose(root, torch.tensor(TO_Y_UP @ rodrigues), atol=1e-6)
    assert torch.allclose(root @ torch.tensor(axis), about, atol=1e-6)


def test_files_without_poses_are_not_motions(tmp_path):
    for name, arrays in {
        "shape.npz": {"betas": np.zeros(16), "gender": np.array("male")},
        "neutral_stagei.npz": {"markers_latent": np.zeros((3, 3)), "betas": np.zeros(16)},
        "male_stageii.npz": {"trans": np.zeros((3, 3)), "mocap_frame_rate": np.array(60.0)},
    }.items():
        path = saved(tmp_path, arrays, name)
        with pytest.raises(NotAMotion) as caught:
            read_amass(path)
        assert caught.value.reason == "not a motion"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"poses": np.zeros((3, 157))}, "wrong shape of poses"),
        ({"poses": np.zeros(156)}, "wrong shape of poses"),
        ({"poses": np.zeros((0, 156)), "trans": np.zeros((0, 3))}, "no frames"),
        ({"trans": np.zeros((2, 3))}, "wrong shape of trans"),
        ({"trans": None}, "no trans"),
        ({"poses": np.full((3, 156), np.nan)}, "NaN or Inf in poses"),
        ({"trans": np.array([[0, 0, 0], [0, np.inf, 0], [0, 0, 0]])}, "NaN or Inf in trans"),
        ({"betas": np.array([np.nan])}, "NaN or Inf in betas"),
        ({"poses": np.full((3, 156), 1e9)}, "absurd values in poses"),
        ({"trans": np.full((3, 3), 1e30)}, "absurd values in trans"),
        ({"mocap_framerate": np.array(0.0)}, "fps 0.0 is not in 1..1000"),
        ({"mocap_framerate": np.array(-120.0)}, "fps -120.0 is not in 1..1000"),
        ({"mocap_framerate": np.array(1e6)}, "fps 1000000.0 is not in 1..1000"),
        ({"mocap_framerate": np.array(np.nan)}, "NaN or Inf in mocap_framerate"),
        ({"mocap_framerate": np.array([60.0, 120.0])}, "frame rate is not one number"),
        ({"mocap_framerate": None}, "no frame rate"),
        ({"poses": np.array([["a"] * 156] * 3)}, "poses is not numeric"),
        ({"gender": np.array(3)}, "gender is not a string"),
        ({"poses": None, "pose_body": np.zeros((3, 63))}, "no root_orient"),
        ({"poses": None, "pose_body": np.zeros((3, 63)), "root_orient": np.zeros((2, 3))}, "wrong shape of pose_body"),
    ],
)
def test_refusals(tmp_path, changes, reason):
    arrays = {name: array for name, array in (smplh() | changes).items() if array is not None}
    assert reason_of(saved(tmp_path, arrays)) == reason


def test_one_nan_is_located(tmp_path):
    arrays = smplh()
    arrays["poses"][1, 7] = np.nan
    with pytest.raises(FormatError, match=r"NaN or Inf in poses \(first at \[1, 7\]\)"):
        read_amass(saved(tmp_path, arrays))


class Explodes:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was run",))


def test_pickles_are_refused_and_never_run(tmp_path):
    objects = np.empty(3, dtype=object)
    objects[:] = [Explodes()] * 3
    path = tmp_path / "evil.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (smplh() | {"poses": objects}).items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=True)
            archive.writestr(f"{name}.npy", content.getvalue())
    assert reason_of(path) == "needs pickle"
    path.write_bytes(pickle.dumps(Explodes()))
    assert reason_of(path) == "not an npz archive"


def test_object_arrays_that_nobody_reads_do_no_harm(tmp_path):
    labels = np.empty(2, dtype=object)
    labels[:] = [Explodes(), None]
    path = tmp_path / "labels.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (smplh() | {"labels": labels}).items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=True)
            archive.writestr(f"{name}.npy", content.getvalue())
    assert read_amass(path).motion.frames == 3


def test_truncated_damaged_and_missing_files(tmp_path):
    whole = saved(tmp_path, smplh()).read_bytes()
    path = tmp_path / "bad.npz"
    for share in (0.1, 0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert reason_of(path) == npz.DAMAGED
    middle = bytearray(whole)
    middle[1000] ^= 0xFF
    path.write_bytes(middle)
    assert reason_of(path) == npz.DAMAGED
    path.write_bytes(b"")
    assert reason_of(path) == "empty file"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert reason_of(path) == "not an npz archive"
    assert reason_of(tmp_path / "absent.npz") == "no such file"
    assert reason_of(tmp_path) == "unreadable"


def with_header(path: Path, header: str, content: bytes) -> Path:
    line = header.encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("poses.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + content)
    return path


def test_header_sizes_are_checked_before_anything_is_allocated(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "frombuffer", lambda *_: pytest.fail("allocated"))
    path = tmp_path / "a.npz"
    claim = "{{'descr': '<f8', 'fortran_order': False, 'shape': {}, }}"
    assert (
        reason_of(with_header(path, claim.format("(1000000000, 156)"), bytes(800)))
        == "array size does not match its header"
    )
    assert reason_of(with_header(path, claim.format("(9, 156)"), bytes(800))) == "array size does not match its header"
    assert reason_of(with_header(path, claim.format("(-1, 156)"), b"")) == "damaged array header"
    assert reason_of(with_header(path, "{'descr': '<f8'", b"")) == "damaged array header"
    monkeypatch.setattr(npz, "MAX_BYTES", 1000)
    assert reason_of(with_header(path, claim.format("(126,)"), bytes(1008))) == "array is absurdly large"


def test_errors_survive_a_trip_between_processes(tmp_path):
    error = pickle.loads(pickle.dumps(NotAMotion(tmp_path / "shape.npz", detail="no poses")))
    assert isinstance(error, NotAMotion) and error.reason == "not a motion" and error.detail == "no poses"


@pytest.mark.parametrize("fps", [30.0, 120.00004577636719])
def test_written_motions_read_back(tmp_path, fps):
    motion = random_motion(fps=fps)
    path = tmp_path / "new" / "clip_poses.npz"
    write_amass(path, motion, gender="female")
    clip = read_amass(path)
    assert float((clip.motion.rotations - motion.rotations).abs().max()) < 1e-5
    assert float((clip.motion.translation - motion.translation).abs().max()) < 1e-5
    assert clip.motion.fps == fps and clip.gender == "female"
    with np.load(path) as arrays:
        assert arrays["poses"].shape == (5, 156) and arrays["trans"].shape == (5, 3)
        assert float(arrays["mocap_framerate"]) == fps
        pelvis = motion.joints()[:, 0].double().numpy()
        assert np.allclose(arrays["trans"] + J0, pelvis @ TO_Y_UP, atol=1e-5)
        assert not arrays["poses"].reshape(5, 52, 3)[:, [*range(23, 37), *range(38, 52)]].any()
    assert [child.name for child in path.parent.iterdir()] == ["clip_poses.npz"]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "clip.npz"
    path.write_bytes(b"old")

    def fails(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        replace_file(path, fails)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_velocity_outliers_name_the_jump():
    ankle = JOINTS_24.index("left_ankle")
    vectors = torch.zeros(6, 24, 3, dtype=torch.float64)
    vectors[3, ankle, 0] = math.radians(55)
    vectors[:, 18, 2] = torch.arange(6) * math.radians(20)
    motion = Motion(axis_angle_to_matrix(vectors).float(), torch.zeros(6, 3), 120.0)
    found = velocity_outliers(motion)
    assert [(frame, joint) for frame, joint, _ in found] == [(3, ankle), (4, ankle)]
    assert all(degrees == pytest.approx(55, abs=1e-3) for *_, degrees in found)
    assert len(velocity_outliers(motion, threshold=2000.0)) == 7
    assert velocity_outliers(motion.crop(0, 1)) == []


@pytest.mark.parametrize("threshold", [10.0, 3000.0, 21599.0, 21601.0])
def test_velocity_outliers_are_all_steps_above_the_threshold(threshold):
    """Against the angle of every step, at the threshold itself too, over more frames than are looked at together."""
    vectors = torch.randn(530, 24, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.02
    vectors[512, 3, 0], vectors[511, 4, 1], vectors[520:, 5, 2] = 1.5, 3.1, math.radians(25.0)
    motion = Motion(axis_angle_to_matrix(vectors).float(), torch.zeros(530, 3), 120.0)
    angles = torch.rad2deg(geodesic_angle(motion.rotations[:-1].double(), motion.rotations[1:].double()))
    steps = (angles * 120.0 > threshold).nonzero().tolist()
    assert [(frame, joint) for frame, joint, _ in velocity_outliers(motion, threshold)] == [
        (s + 1, j) for s, j in steps
    ]
    if threshold == 3000.0:
        assert {(511, 4), (512, 3), (512, 4), (513, 3)} <= {(step + 1, joint) for step, joint in steps}


@pytest.mark.parametrize(
    ("name", "frames", "gender", "rate"),
    [
        ("dmpl_sample_poses.npz", 235, "female", 120.00004577636719),
        ("amass_sample_poses.npz", 601, "male", 120.0),
    ],
)
def test_genuine_recordings(shared, name, frames, gender, rate):
    clip = read_amass(shared / "samples" / "amass" / name)
    assert (clip.motion.frames, clip.gender, clip.rate) == (frames, gender, rate)
    joints = clip.motion.joints()
    assert float(joints[:, JOINTS_24.index("head"), 1].min()) > 1.0
    assert float(joints[..., 1].min()) > -0.2
    assert velocity_outliers(clip.motion) == []


def test_a_genuine_recording_written_and_read_is_the_same(shared, tmp_path):
    source = read_amass(shared / "samples" / "amass" / "dmpl_sample_poses.npz").motion
    write_amass(tmp_path / "a.npz", source)
    again = read_amass(tmp_path / "a.npz").motion
    assert float(geodesic_angle(source.rotations, again.rotations).max()) < 1e-5
    assert torch.allclose(source.translation, again.translation, atol=1e-5)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_only_user_errors(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "a.npz"
    for content in (data, b"PK\x03\x04" + data):
        path.write_bytes(content)
        with pytest.raises(FormatError):
            read_amass(path)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damage_anywhere_in_an_archive_raises_only_user_errors(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    content = bytearray(saved(folder, smplh(frames=1, width=72)).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "damaged.npz"
    path.write_bytes(content)
    try:
        clip = read_amass(path)
    except UserError:
        return
    assert clip.motion.rotations.isfinite().all() and clip.motion.translation.isfinite().all()


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=120), st.binary(max_size=60), st.booleans())
def test_arbitrary_array_headers_raise_only_user_errors(tmp_path_factory, header, body, intact):
    path = tmp_path_factory.mktemp("headers") / "a.npz"
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) if intact else b""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("poses.npy", start + header + body)
        archive.writestr("trans.npy", body)
    with pytest.raises(FormatError):
        read_amass(path)

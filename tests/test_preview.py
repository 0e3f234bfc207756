"""Pictures of motions: that they are real files, in real time, and show the whole person."""

from __future__ import annotations

import time

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image

from ds_hymotion.errors import UserError
from ds_hymotion.formats import preview
from ds_hymotion.formats.camera import fit_camera
from ds_hymotion.formats.figure import LEFT, RIGHT, head_points
from ds_hymotion.formats.preview import filmstrip, write_gif, write_mp4
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import axis_angle_to_matrix


def walking_east(frames: int = 60, fps: float = 30.0, metres: float = 3.0) -> Motion:
    """A body at rest that slides to +X, its right arm swinging up."""
    vectors = torch.zeros(frames, 24, 3)
    vectors[:, 17, 2] = torch.linspace(-1.2, 1.2, frames)
    translation = torch.zeros(frames, 3)
    translation[:, 0] = torch.linspace(0, metres, frames)
    translation[:, 1] = 1.15
    return Motion(axis_angle_to_matrix(vectors), translation, fps)


def share_of(picture: Image.Image, colour: tuple[int, int, int]) -> float:
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    return float((np.abs(pixels - colour).sum(-1) < 30).mean())


def columns_of(picture: Image.Image, colour: tuple[int, int, int]) -> np.ndarray:
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    return np.nonzero((np.abs(pixels - colour).sum(-1) < 30).any(0))[0]


def test_the_camera_shows_every_point_and_comes_as_near_as_it_can():
    points = np.random.default_rng(0).normal(size=(200, 3)) * [4, 1, 2] + [10, 3, -7]
    box = (20, 90, 380, 390)
    pixels, depth = fit_camera(points, box, 400, 400).project(points)
    assert depth.min() > 0.05
    assert (pixels[:, 0] > 19.9).all() and (pixels[:, 0] < 380.1).all()
    assert (pixels[:, 1] > 89.9).all() and (pixels[:, 1] < 390.1).all()
    assert np.ptp(pixels[:, 0]) > 355 or np.ptp(pixels[:, 1]) > 295


def test_left_is_on_the_right_hand_of_a_viewer_that_the_person_faces():
    camera = fit_camera(np.array([[0.0, 0, 0], [0.3, 1.8, 0.2]]), (0, 0, 100, 100), 100, 100)
    (left, right, up), _ = camera.project(np.array([[0.5, 1, 0], [-0.5, 1, 0], [0, 2, 0]]))
    assert left[0] > right[0] and up[1] < left[1]


def test_the_nose_points_where_the_head_looks():
    joints = np.zeros((24, 3))
    centre, nose = head_points(joints, np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]))
    assert nose[0] - centre[0] > 0.1 and abs(nose[2] - centre[2]) < 1e-9


def test_gif_runs_in_real_time(tmp_path):
    path = tmp_path / "new" / "a.gif"
    write_gif(path, walking_east(60), "a person slides to the east")
    with Image.open(path) as picture:
        assert picture.size == (480, 480) and picture.n_frames == 30 and picture.info["loop"] == 0
        durations, first, last = [], None, None
        for frame in range(picture.n_frames):
            picture.seek(frame)
            durations.append(picture.info["duration"])
            first = picture.convert("RGB") if frame == 0 else first
            last = picture.convert("RGB")
    assert sum(durations) == 2000 and set(durations) == {60, 70}
    assert first is not None and last is not None
    for colour in (LEFT, RIGHT):
        assert share_of(first, colour) > 0.004 and share_of(last, colour) > 0.004
    assert columns_of(last, LEFT).mean() - columns_of(first, LEFT).mean() > 150
    assert len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize(("source", "wanted", "frames"), [(120.0, None, 15), (10.0, None, 60), (30.0, 20.0, 40)])
def test_gif_rates(tmp_path, source, wanted, frames):
    write_gif(tmp_path / "a.gif", walking_east(120 if source > 60 else 60, source), fps=wanted, size=64)
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames == frames


def test_the_whole_path_is_inside_the_picture(tmp_path):
    for metres in (0.0, 12.0):
        filmed = list(preview._pictures(walking_east(30, 30.0, metres), "caption", 10.0, 240))
        for picture in (filmed[0], filmed[-1]):
            columns = np.concatenate([columns_of(picture, LEFT), columns_of(picture, RIGHT)])
            assert len(columns) and columns.min() > 4 and columns.max() < 235


def test_the_caption_is_drawn_and_long_ones_end_in_an_ellipsis():
    plain, named = (next(preview._pictures(walking_east(2), text, 30.0, 240)) for text in (None, "word " * 200))
    top = np.asarray(named)[:40]
    assert (top.sum(-1) < 250).mean() > 0.02 and (np.asarray(plain)[:20].sum(-1) < 250).sum() == 0
    font = preview._font("", 14)
    lines = preview._wrapped("word " * 200, font, 200)
    assert len(lines) == 2 and lines[1].endswith("…") and all(font.getlength(line) <= 200 for line in lines)
    assert preview._wrapped("two words", font, 200) == ["two words"]
    assert "".join(preview._wrapped("字" * 20, font, 200)).startswith("字字")
    assert preview._wrapped("", font, 200) == []


def test_mp4_is_a_video_in_real_time(tmp_path):
    path = tmp_path / "a.mp4"
    write_mp4(path, walking_east(45), "a person slides", size=240)
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    frames = [np.frombuffer(frame, np.uint8).reshape(240, 240, 3) for frame in reader]
    assert about["size"] == (240, 240) and about["fps"] == 30.0 and about["codec"] == "h264"
    assert len(frames) == 45 and about["duration"] == pytest.approx(1.5, abs=0.05)
    assert np.abs(frames[0].astype(int) - frames[-1]).mean() > 1.0
    assert len(list(tmp_path.iterdir())) == 1


def test_filmstrip_is_one_picture_of_many_poses(tmp_path):
    filmstrip(tmp_path / "a.png", walking_east(60), frames=5, caption="a person slides")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG" and picture.size == (5 * 200, 300 + 28)
        for place in range(5):
            panel = picture.crop((200 * place, 28, 200 * (place + 1), 328))
            assert share_of(panel, LEFT) > 0.01 and share_of(panel, RIGHT) > 0.01
    filmstrip(tmp_path / "b.png", walking_east(1), frames=8)
    with Image.open(tmp_path / "b.png") as picture:
        assert picture.size == (200, 300)


def test_ninety_frames_take_seconds(tmp_path):
    start = time.process_time()
    write_gif(tmp_path / "a.gif", walking_east(90), "a person slides", fps=30)
    assert time.process_time() - start < 6


def test_wrong_arguments(tmp_path):
    motion = walking_east(3)
    broken = Motion(motion.rotations, motion.translation * float("nan"), 30.0)
    for write in (write_gif, write_mp4, filmstrip):
        with pytest.raises(ValueError, match="NaN"):
            write(tmp_path / "a", broken)
    with pytest.raises(ValueError, match="fps 60"):
        write_gif(tmp_path / "a.gif", motion, fps=60)
    with pytest.raises(ValueError, match="even"):
        write_mp4(tmp_path / "a.mp4", motion, size=241)
    with pytest.raises(ValueError, match="at least 1"):
        filmstrip(tmp_path / "a.png", motion, frames=0)
    (tmp_path / "file").write_text("")
    for write in (write_gif, write_mp4, filmstrip):
        with pytest.raises(UserError, match="cannot be written"):
            write(tmp_path / "file" / "a", motion)
    assert [child.name for child in tmp_path.iterdir()] == ["file"]

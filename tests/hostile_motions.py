"""The table of hostile motion files: what is planted, and what a preparation has to make of it."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.damaged_files import claiming, patched, save, save_with_members, smplh, with_size_on_paper


@dataclass(frozen=True)
class Case:
    """One folder ``name`` of the data folder.

    ``dropped`` has a part of the reason and detail by file or clip; ``kept`` the captions by file name without ending.
    """

    name: str
    make: Callable[[Path], object]
    dropped: dict[str, str]
    kept: dict[str, list[str]]
    bad_lines: tuple[str, ...] = ()


CASES: list[Case] = []


def refused(name: str, words: str, make: Callable[[Path], object]) -> None:
    """A file ``x.npz``, with a caption beside it, that is left out for this reason."""

    def with_caption(folder: Path) -> None:
        (folder / "x.txt").write_text("a person walks\n")
        make(folder / "x.npz")

    CASES.append(Case(name, with_caption, {"x.npz": words}, {}))


def accepted(name: str, make: Callable[[Path], object], file: str = "x.npz") -> None:
    """A file, with a caption beside it, that is kept."""

    def with_caption(folder: Path) -> None:
        (folder / file).with_suffix(".txt").write_text("a person walks\n")
        make(folder / file)

    CASES.append(Case(name, with_caption, {}, {file[: -len(".npz")]: ["a person walks"]}))


def captioned(name: str, text: str | bytes, kept: list[str], *bad_lines: str, dropped: str = "") -> None:
    """A healthy recording of one second with this caption file; ``dropped`` is said of the whole file."""

    def make(folder: Path) -> None:
        save(folder / "x.npz")
        (folder / "x.txt").write_bytes(text.encode() if isinstance(text, str) else text)

    CASES.append(Case(name, make, {"x.npz": dropped} if dropped else {}, {"x": kept} if kept else {}, bad_lines))


def with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A healthy file of which the bytes are changed."""
    return lambda path: path.write_bytes(change(save(path).read_bytes()))


def objects() -> np.ndarray:
    array = np.empty(60, dtype=object)
    array[:] = [{"code": 1}] * 60
    return array


def one_bad(value: float, place: tuple[int, int]) -> np.ndarray:
    poses = smplh()["poses"]
    poses[place] = value
    return poses


def jumping_ankle() -> np.ndarray:
    poses = smplh()["poses"]
    poses[30, 21] += np.radians(55) * 2
    return poses


def long_root() -> np.ndarray:
    poses = smplh()["poses"]
    poses[:, :3] = np.array([4.54, 0, 0])
    return poses


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


ZIP, HEADER = "truncated or damaged zip", "damaged array header"
refused("cut_in_half", ZIP, with_bytes(lambda data: data[: len(data) // 2]))
refused("cut_at_the_end", ZIP, with_bytes(lambda data: data[:-3]))
refused("cut_at_the_start", "not an npz archive", with_bytes(lambda data: data[100:]))
refused("flipped_byte", ZIP, with_bytes(lambda data: data[:2000] + bytes([data[2000] ^ 0xFF]) + data[2001:]))
refused("only_the_magic", ZIP, lambda path: path.write_bytes(b"PK"))
refused("empty_file", "empty file", lambda path: path.write_bytes(b""))
refused("text", "not an npz archive", lambda path: path.write_text("these are no motions"))
refused(
    "lfs_pointer", "not an npz archive", lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n")
)
refused("html_page", "not an npz archive", lambda path: path.write_text("<html>404</html>"))
refused("a_pickle", "not an npz archive", lambda path: path.write_bytes(pickle.dumps({"poses": [1]})))
refused("a_bare_array", "not an npz archive", lambda path: path.write_bytes(npy(np.zeros((60, 156)))))
refused("encrypted", ZIP, lambda path: patched(path, flags=1))
refused("unknown_compression", ZIP, lambda path: patched(path, method=99))
refused("object_poses", "needs pickle, poses", lambda path: save(path, poses=objects()))
refused("object_gender", "needs pickle, gender", lambda path: save(path, gender=np.array({"is": "x"}, dtype=object)))
accepted("object_arrays_nobody_reads", lambda path: save(path, marker_labels=objects()))
refused("157_columns", "wrong shape of poses, (60, 157)", lambda path: save(path, poses=np.zeros((60, 157))))
refused("poses_of_one_axis", "wrong shape of poses", lambda path: save(path, poses=np.zeros(156)))
refused("poses_of_three_axes", "wrong shape of poses", lambda path: save(path, poses=np.zeros((60, 52, 3))))
refused("poses_are_a_number", "wrong shape of poses, ()", lambda path: save(path, poses=np.float64(1)))
refused("no_frames", "no frames", lambda path: save(path, poses=np.zeros((0, 156)), trans=np.zeros((0, 3))))
refused("short_trans", "wrong shape of trans, (59, 3)", lambda path: save(path, trans=np.zeros((59, 3))))
refused("flat_trans", "wrong shape of trans, (60, 2)", lambda path: save(path, trans=np.zeros((60, 2))))
refused("no_trans", "no trans", lambda path: save(path, trans=None))
refused("poses_of_words", "poses is not numeric", lambda path: save(path, poses=np.full((60, 156), "a")))
refused("complex_poses", "poses is not numeric", lambda path: save(path, poses=np.zeros((60, 156), complex)))
refused("all_nan", "NaN or Inf in poses", lambda path: save(path, poses=np.full((60, 156), np.nan)))
refused("one_nan", "NaN or Inf in poses, first at [59, 155]", lambda path: save(path, poses=one_bad(np.nan, (59, 155))))
refused("one_inf", "NaN or Inf in poses, first at [3, 0]", lambda path: save(path, poses=one_bad(-np.inf, (3, 0))))
refused("inf_in_trans", "NaN or Inf in trans", lambda path: save(path, trans=np.full((60, 3), np.inf)))
refused("nan_in_betas", "NaN or Inf in betas", lambda path: save(path, betas=np.array([np.nan])))
refused("absurd_poses", "absurd values in poses", lambda path: save(path, poses=np.full((60, 156), 1e9)))
refused("absurd_trans", "absurd values in trans", lambda path: save(path, trans=np.full((60, 3), 1e30)))
refused("five_km_away", "further than 1 km from the origin, 5000", lambda path: save(path, trans=np.full((60, 3), 5e3)))
for label, rate in (("zero", 0.0), ("negative", -120.0), ("absurd", 1e6), ("tiny", 1e-3)):
    refused(f"{label}_fps", f"fps {rate} is not in 1..1000", lambda path, rate=rate: save(path, mocap_framerate=rate))
refused("nan_fps", "NaN or Inf in mocap_framerate", lambda path: save(path, mocap_framerate=np.nan))
refused("two_fps", "frame rate is not one number", lambda path: save(path, mocap_framerate=np.array([60.0, 120.0])))
refused("no_fps", "no frame rate", lambda path: save(path, mocap_framerate=None))
refused("fps_in_words", "mocap_framerate is not numeric", lambda path: save(path, mocap_framerate=np.array("60 fps")))
for rate in (59.9999885, 100.0, 120.00004577636719, 150.0, 250.0):
    accepted(f"fps_{rate}", lambda path, rate=rate: np.savez(path, **smplh(round(rate) + 1, rate=rate)))
accepted("gender_in_bytes", lambda path: save(path, gender=np.array(b"female")))
accepted("no_gender", lambda path: save(path, gender=None))
refused("gender_is_a_number", "gender is not a string", lambda path: save(path, gender=np.array(3)))
refused("header_claims_1e9_frames", "array size does not match its header",
        lambda path: save_with_members(path, {"poses.npy": claiming("(1000000000, 156)", bytes(800))}))  # fmt: skip
refused("header_claims_2_to_the_62", "array size does not match its header",
        lambda path: save_with_members(path, {"poses.npy": claiming(f"({2**62}, 156)", bytes(800))}))  # fmt: skip
refused("header_claims_2_gib", "array is absurdly large", lambda path: with_size_on_paper(path, 2**31))
refused("negative_shape", HEADER, lambda path: save_with_members(path, {"poses.npy": claiming("(-1, 156)")}))
refused("header_is_code", HEADER,
        lambda path: save_with_members(path, {"poses.npy": claiming("__import__('os').getpid()")}))  # fmt: skip
refused("header_of_a_gib", f"{HEADER}, poses: a header of 1073741824 bytes",
        lambda path: save_with_members(path, {"poses.npy": b"\x93NUMPY\2\0" + struct.pack("<I", 2**30)}))  # fmt: skip
refused("member_is_no_array", HEADER, lambda path: save_with_members(path, {"poses.npy": b"no array at all"}))
refused("path_out_of_the_archive", "not a motion",
        lambda path: save_with_members(path, {"../../poses.npy": b"x"}, poses=None))  # fmt: skip
refused("body_without_root", "no root_orient",
        lambda path: save(path, poses=None, pose_body=np.zeros((60, 63))))  # fmt: skip
refused("one_frame", "too short, 1 frames", lambda path: np.savez(path, **smplh(1)))
refused("a_folder", "unreadable, a folder", lambda path: path.mkdir())
refused("link_to_nothing", "unreadable, a link to a file that is not there", lambda path: path.symlink_to("gone.npz"))
refused("link_to_itself", "unreadable", lambda path: path.symlink_to(path.name))
refused("a_pipe", "unreadable, a pipe", lambda path: os.mkfifo(path))
accepted("link_to_a_file", lambda path: path.symlink_to(save(path.with_name("y.npz")).rename(path.with_name("y"))))
accepted("stageii", lambda path: np.savez(path, **{**smplh(width=165), "mocap_frame_rate": np.array(60.0),
         "mocap_framerate": 60.0, "surface_model_type": np.array("smplx")}), "x_stageii.npz")  # fmt: skip
accepted("split_pose", lambda path: save(path, poses=None, root_orient=np.zeros((60, 3)), pose_body=np.zeros((60, 63))))
accepted("big_endian_half", lambda path: save(path, poses=smplh()["poses"].astype(">f2")))
accepted("root_above_pi", lambda path: save(path, poses=long_root()))
accepted("velocity_outlier", lambda path: save(path, poses=jumping_ankle()))
accepted("name_with_spaces", save, "walk to the  door 01_poses.npz")
accepted("name_with_a_newline", save, "two\nlines.npz")
accepted("name_in_chinese", save, "走路 🚶.npz")
accepted("name_with_signs", save, "50%#1 {x} [y].npz")
accepted("name_that_is_no_unicode", save, os.fsdecode(b"caf\xe9.npz"))
accepted("longest_name", save, "n" * 251 + ".npz")
accepted("dots_in_the_name", save, "walk v1.5.npz")
accepted("upper_case_ending", lambda path: save(path.with_name("y.npz")).rename(path), "x.NPZ")
for file in ("female_shape.npz", "neutral_stagei.npz", "male_stageii.npz"):
    CASES.append(
        Case(f"no_motion_{file[:-4]}", lambda folder, file=file: np.savez(folder / file, betas=np.zeros(16)),
             {file: "not a motion"}, {})
    )  # fmt: skip
refused("shape_under_another_name", "not a motion", lambda path: np.savez(path, betas=np.zeros(16)))

captioned("no_captions", b"", [], dropped="no caption")
captioned("blank_captions", "\n \r\n\t\n", [], dropped="no caption")
captioned("crlf", "one#a/X#0.0#0.0\r\n\r\ntwo\r\nthree", ["one", "two", "three"])
captioned("old_mac_lines", "one\rtwo\r", ["one", "two"])
captioned("byte_order_mark", "\ufeffa “quick” walk – it’s slow\n", ["a “quick” walk – it’s slow"])
captioned("utf_16", "a walk\n".encode("utf-16"), [], "x.txt: UTF-16", dropped="no caption")
captioned("latin_1", b"caf\xe9\na walk\n", ["a walk"], "x.txt line 1: not UTF-8")
captioned("zero_bytes", b"a\0b\na walk\n", ["a walk"], "x.txt line 1: a zero byte")
captioned("line_separator", "a\u2028walk\n", ["a walk"])
captioned("stray_signs", "man # walks#man/NOUN #/SYM walk/VERB#0.0#0.0\ntag #1\n", ["man # walks", "tag #1"])
captioned("signs_without_times", "a#b#c#d\na walk\n", ["a walk"], "x.txt line 1: not caption#tokens#start#end")
captioned("nan_times", "one#a/X#nan#nan\ntwo#a/X#NaN#0.0\n", ["one", "two"])
captioned("no_tokens", "one##0.0#0.0", ["one"])
captioned("empty_caption", "#a/X#0.0#0.0\na walk", ["a walk"], "x.txt line 1: the caption is empty")
captioned("backward_times", "one#a/X#0.9#0.2\ntwo", ["two"], "x.txt line 1: times 0.9 to 0.2 s are no span")
captioned("negative_times", "one#a/X#-1#0.5\ntwo", ["two"], "x.txt line 1: times -1 to 0.5 s are no span")
captioned("infinite_times", "one#a/X#0#1e999\ntwo", ["two"], "x.txt line 1: times 0 to inf s are no span")
captioned("the_same_twice", "one\none\n", ["one", "one"])


def times_past_the_end(folder: Path) -> None:
    save(folder / "x.npz")
    lines = ["whole#a/X#0#0", "late#a/X#5.0#6.0", "long#a/X#0.0#9.0", "just#a/X#0.5#1.1", "short#a/X#0.50#0.52"]
    (folder / "x.txt").write_text("\n".join(lines))


def pipe_of_captions(folder: Path) -> None:
    save(folder / "x.npz")
    os.mkfifo(folder / "x.txt")


def folder_of_captions(folder: Path) -> None:
    save(folder / "x.npz")
    (folder / "x.txt").mkdir()


def mac_litter(folder: Path) -> None:
    save(folder / "x.npz")
    (folder / "x.txt").write_text("a walk")
    (folder / "._x.npz").write_bytes(b"\0\5\26\7")


def mirrored_pair(folder: Path) -> None:
    for name, text in (("000001", "raises the left arm"), ("M000001", "raises the right arm")):
        save(folder / f"{name}.npz")
        (folder / f"{name}.txt").write_text(text)


CASES += [
    Case(
        "times_past_the_end",
        times_past_the_end,
        {
            "x_5.0-6.0": "window outside the recording, 5 to 6 s of 1 s",
            "x_0.0-9.0": "window outside the recording, 0 to 9 s of 1 s",
            "x_0.5-0.52": "too short, 1 frames",
        },
        {"x": ["whole"], "x_0.5-1.1": ["just"]},
    ),
    Case("captions_are_a_pipe", pipe_of_captions, {"x.npz": "no caption"}, {}, ("x.txt: unreadable (a pipe",)),
    Case("captions_are_a_folder", folder_of_captions, {"x.npz": "no caption"}, {}, ("x.txt: unreadable (a folder",)),
    Case("mac_litter", mac_litter, {}, {"x": ["a walk"]}),
    Case("mirrored_pair", mirrored_pair, {},
         {"000001": ["raises the left arm"], "M000001": ["raises the right arm"]}),
]  # fmt: skip

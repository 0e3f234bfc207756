"""Which recordings a corpus is made of: motion files joined with their captions."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ds_hymotion.data.drops import Drop
from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import FormatError, read_bytes
from ds_hymotion.formats.humanml3d import Caption, IndexRow, parse_texts, read_index

NO_CAPTION, NOT_FOUND, NOT_A_MOTION = "no caption", "recording not found", "not a motion"
BAD_LINE = "line of captions or index"
# AMASS gave some of its data sets other folder names after HumanML3D's index was made.
_RENAMED = {
    "bmlrub": "biomotionlab_ntroje",
    "dfaust": "dfaust_67",
    "hdm05": "mpi_hdm05",
    "mosh": "mpi_mosh",
    "posepriors": "mpi_limits",
    "poseprior": "mpi_limits",
    "ssm": "ssm_synced",
    "transitions": "transitions_mocap",
}
_BODY_FILE = re.compile(r"shape\.npz$|_stagei\.npz$|^(neutral|male|female)_stageii\.npz$")
_NO_WORDS = (Caption(""),)
_SUFFIX = re.compile(r"[_ ](poses|stageii)$")


@dataclass(frozen=True)
class Clip:
    """A part of a recording with its captions, whose times count from the clip's own start.

    ``row`` is the part's row in a HumanML3D index; None means the whole recording. ``mirrored_captions`` are those
    published for the mirrored clip, None where there are none.
    """

    id: str
    captions: tuple[Caption, ...]
    row: IndexRow | None = None
    mirrored_captions: tuple[Caption, ...] | None = None


@dataclass(frozen=True)
class Recording:
    """A motion file; ``source`` is its name relative to the data folder, without suffix."""

    path: Path
    source: str
    clips: tuple[Clip, ...]


def find_motion_files(data_dir: Path) -> list[Path]:
    """Every .npz below ``data_dir`` in a fixed order; linked folders are entered once.

    Raises:
        UserError: no such folder, or no .npz in it.
    """
    if not data_dir.is_dir():
        raise UserError(f"--data_dir {data_dir} is not a folder: name the folder that holds the motion .npz files")
    found, entered = [], set()
    for folder, subfolders, names in os.walk(data_dir, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            subfolders.clear()
            continue
        entered.add(real)
        subfolders.sort()
        found += [Path(folder) / name for name in names if name.lower().endswith(".npz") and not name.startswith(".")]
    if not found:
        raise UserError(f"--data_dir {data_dir} holds no .npz file: name the folder that holds the AMASS motions")
    return sorted(found, key=lambda path: _source(path, data_dir))


@dataclass(frozen=True)
class Joined:
    """Recordings with captions, what was left out, and lines of caption files or the index that say nothing."""

    recordings: tuple[Recording, ...]
    drops: tuple[Drop, ...]
    bad_lines: tuple[str, ...]


def join_with_texts(files: list[Path], data_dir: Path, texts: Path | None, unconditional: bool) -> Joined:
    """One clip per file. Captions come from ``texts`` (by relative path, else by name) or from beside the file."""
    if texts is not None and not texts.is_dir():
        raise UserError(f"--texts {texts} is not a folder: name the folder that holds the caption .txt files")
    stems = Counter(_bare(path.stem) for path in files)
    recordings: list[Recording] = []
    drops: list[Drop] = []
    bad_lines: list[str] = []
    for path, name in zip(files, _unique_names([_source(path, data_dir) for path in files]), strict=True):
        source = _source(path, data_dir)
        if _BODY_FILE.search(path.name):
            drops.append(Drop(source, None, NOT_A_MOTION, "a body shape"))
            continue
        place, problem = _caption_file(path, source, texts, stems[_bare(path.stem)] > 1)
        captions = read_captions(place, bad_lines) if place else ()
        if captions or (unconditional and not problem):
            recordings.append(Recording(path, source, (Clip(name, captions or _NO_WORDS),)))
        else:
            drops.append(Drop(source, name, NO_CAPTION, problem))
    return Joined(tuple(recordings), tuple(drops), tuple(bad_lines))


def join_with_index(files: list[Path], data_dir: Path, index: Path, texts: Path, unconditional: bool) -> Joined:
    """The clips that a HumanML3D index cuts from the files, grouped by recording in the order of the files.

    Raises:
        UserError: the index cannot be read, or names a clip twice.
    """
    if not texts.is_dir():
        raise UserError(f"--texts {texts} is not a folder: name HumanML3D's folder of NNNNNN.txt files")
    by_path, by_tail = _lookup_tables(files, data_dir)
    clips: dict[Path, list[Clip]] = defaultdict(list)
    rows = read_index(index)
    drops: list[Drop] = []
    bad_lines = list(rows.problems)
    names = Counter(row.name for row in rows)
    for row in rows:
        if names[row.name] > 1:
            raise UserError(f"{index} names {row.name!r} {names[row.name]} times: every new_name must be its own")
        path, problem = _find(row.recording, by_path, by_tail)
        if path is None:
            drops.append(Drop(row.recording, row.name, NOT_FOUND, problem))
            continue
        captions = read_captions(texts / f"{row.name}.txt", bad_lines)
        mirrored = read_captions(texts / f"M{row.name}.txt", bad_lines)
        if captions or unconditional:
            clips[path].append(Clip(row.name, captions or _NO_WORDS, row, mirrored or None))
        else:
            drops.append(Drop(row.recording, row.name, NO_CAPTION, ""))
    recordings = [Recording(path, _source(path, data_dir), tuple(clips[path])) for path in files if path in clips]
    return Joined(tuple(recordings), tuple(drops), tuple(bad_lines))


def read_captions(path: Path, bad_lines: list[str]) -> tuple[Caption, ...]:
    """The captions of a file, none if it is absent: a line HumanML3D's ``caption#tokens#start#end`` or a plain caption.

    What cannot be read is named in ``bad_lines``.
    """
    if not path.is_file():
        return ()
    try:
        data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    except FormatError as error:
        bad_lines.append(str(error))
        return ()
    captions: list[Caption] = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.count(b"#") >= 3:
            found = parse_texts(line, "")
            captions += found
            bad_lines += [f"{path} line {number}: {problem.partition(': ')[2]}" for problem in found.problems]
        elif line.strip():
            try:
                captions.append(Caption(line.decode("utf-8").strip()))
            except UnicodeDecodeError:
                bad_lines.append(f"{path} line {number}: not UTF-8")
    return tuple(captions)


def _source(path: Path, data_dir: Path) -> str:
    return path.relative_to(data_dir).with_suffix("").as_posix()


def _bare(stem: str) -> str:
    return _SUFFIX.sub("", stem)


def _unique_names(sources: list[str]) -> list[str]:
    """A clip name without slashes for every recording: its path joined by "__"."""
    taken: set[str] = set()
    names = []
    for source in sources:
        name = plain = source.replace("/", "__").encode("utf-8", "backslashreplace").decode("utf-8")
        count = 1
        while name in taken:
            count += 1
            name = f"{plain}-{count}"
        taken.add(name)
        names.append(name)
    return names


def _caption_file(path: Path, source: str, texts: Path | None, shared_name: bool) -> tuple[Path | None, str]:
    """Where the captions of a motion file are, and why they cannot be told where they cannot."""
    places = []
    if texts is not None:
        places += _with_and_without_suffix(texts / source)
        by_name = _with_and_without_suffix(texts / path.stem)
        if not shared_name:
            places += by_name
        elif any(place.is_file() for place in by_name) and not any(place.is_file() for place in places):
            return None, f"several motions are called {path.stem}: put the captions into {places[0]}"
    places += _with_and_without_suffix(path.with_suffix(""))
    return next((place for place in places if place.is_file()), None), ""


def _with_and_without_suffix(stem: Path) -> list[Path]:
    return [stem.with_name(f"{name}.txt") for name in dict.fromkeys((stem.name, _bare(stem.name)))]


def _lookup_tables(files: Iterable[Path], data_dir: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    by_path, by_tail = defaultdict(list), defaultdict(list)
    for path in files:
        key = _key(_source(path, data_dir))
        by_path[key].append(path)
        by_tail[_tail(key)].append(path)
    return by_path, by_tail


def _find(source: str, by_path: dict[str, list[Path]], by_tail: dict[str, list[Path]]) -> tuple[Path | None, str]:
    """The file of an index row: the same path below the data folder, else the same data set, subject and name."""
    if source.lower().startswith("humanact12/"):
        return None, "HumanAct12 gives joint positions, not body poses"
    key = _key(source)
    for candidates in (by_path.get(key, []), by_tail.get(_tail(key), [])):
        exact = [path for path in candidates if path.with_suffix("").as_posix().endswith("/" + source)]
        if len(candidates) == 1 or len(exact) == 1:
            return (exact or candidates)[0], ""
        if candidates:
            return None, f"{len(candidates)} files match, {candidates[0]} and {candidates[1]} among them"
    return None, ""


def _key(source: str) -> str:
    """A name without what differs between releases: case, spaces, the suffix, renamed data sets."""
    parts = [part.lower().replace(" ", "_") for part in source.split("/")]
    parts[-1] = _bare(parts[-1])
    return "/".join(_RENAMED.get(part, part) for part in parts)


def _tail(key: str) -> str:
    return "/".join(key.split("/")[-3:])

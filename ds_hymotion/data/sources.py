"""What a corpus is made of: recordings, and the clips that are cut from them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ds_hymotion.data.drops import Drop
from ds_hymotion.errors import UserError
from ds_hymotion.formats.annotations import is_mirrored_id
from ds_hymotion.formats.babel import ActionLabel
from ds_hymotion.formats.files import FormatError, require_file
from ds_hymotion.formats.humanml3d import Caption, IndexRow


@dataclass(frozen=True)
class Clip:
    """A part of a recording with its captions, whose times count from the clip's own start.

    ``row`` is the part's row in a HumanML3D index; None means the whole recording, of which an entry of annotations
    describes the first ``duration`` seconds. ``mirrored_captions`` are those published for the mirrored clip, None
    where there are none.
    """

    id: str
    captions: tuple[Caption, ...]
    row: IndexRow | None = None
    mirrored_captions: tuple[Caption, ...] | None = None
    duration: float | None = None


@dataclass(frozen=True)
class Recording:
    """A motion file.

    Attributes:
        path: where it is.
        file: its name relative to the data folder.
        size: in bytes.
        clips: what is cut from it.
        labels: what happens in it, with times from its start.
    """

    path: Path
    file: str
    size: int
    clips: tuple[Clip, ...]
    labels: tuple[ActionLabel, ...] = ()

    @property
    def source(self) -> str:
        """The file's name relative to the data folder, without ending: what samples of one recording share."""
        return source_of(self.file)


@dataclass(frozen=True)
class Joined:
    """Recordings with captions, what was left out, and lines of caption files or lists that say nothing.

    ``given`` counts what there was: files, clips, captions and, of those, what has a role of its own.
    """

    recordings: tuple[Recording, ...]
    drops: tuple[Drop, ...]
    bad_lines: tuple[str, ...]
    given: Mapping[str, int] = field(default_factory=dict)


class MotionFiles:
    """Every .npz below a folder, in a fixed order; linked folders are entered once.

    Attributes:
        folder: where they lie.
        sizes: the files, each with its size in bytes.
        refused: what is called .npz and cannot be read: a folder, a pipe, a link to nothing.

    Raises:
        UserError: no such folder, or no .npz in it.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(f"--data_dir {folder} is not a folder: name the folder that holds the motion .npz files")
        self.folder = folder
        self.sizes: dict[Path, int] = {}
        self.refused: list[Drop] = []
        found, entered = [], set()
        for place, subfolders, names in os.walk(folder, followlinks=True):
            real = os.path.realpath(place)
            if real in entered:
                subfolders.clear()
                continue
            entered.add(real)
            subfolders.sort()
            found += [Path(place) / name for name in [*subfolders, *names] if _is_motion_name(name)]
        if not found:
            raise UserError(f"--data_dir {folder} holds no .npz file: name the folder that holds the AMASS motions")
        for path in sorted(found, key=lambda path: (source_of(self.file(path)), path.name)):
            try:
                self.sizes[path] = require_file(path).st_size
            except FormatError as error:
                file = self.file(path)
                self.refused.append(Drop(file, source_of(file), None, error.reason, error.detail))

    def file(self, path: Path) -> str:
        """A file's name relative to the folder."""
        return path.relative_to(self.folder).as_posix()

    def recording(self, path: Path, clips: Sequence[Clip]) -> Recording:
        """One of the files with its clips."""
        return Recording(path, self.file(path), self.sizes[path], tuple(clips))


def source_of(file: str) -> str:
    """A motion file's name without its ending."""
    return file[: -len(".npz")] if file.lower().endswith(".npz") else file


def lies_in(source: str, folder: str) -> bool:
    """Whether a recording is below a folder of the data folder, or is called like it."""
    return source == folder or source.startswith(folder + "/")


def mirrored_originals(sources: Sequence[str]) -> dict[str, str]:
    """The originals of recordings that are mirrored copies by their names: ``M000001`` beside ``000001``."""
    by_folder: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        folder, _, name = source.rpartition("/")
        by_folder[folder].add(name)
    copies = {}
    for source in sources:
        folder, slash, name = source.rpartition("/")
        if is_mirrored_id(name) and name[1:] in by_folder[folder]:
            copies[source] = folder + slash + name[1:]
    return copies


def _is_motion_name(name: str) -> bool:
    return name.lower().endswith(".npz") and not name.startswith(".")

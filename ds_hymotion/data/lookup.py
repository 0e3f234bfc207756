"""Which motion file a list of clips means by a path: folders, endings and names differ between releases."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from ds_hymotion.data.sources import MotionFiles, source_of

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
_SUFFIX = re.compile(r"[_ ](poses|stageii)$")
_TAIL = 3
"""Data set, subject and name: what the layouts of all releases end with."""


class Lookup:
    """Motion files by a path that a list gives: the same path below the data folder, else the same last parts."""

    def __init__(self, files: MotionFiles) -> None:
        self._by_path: dict[str, list[Path]] = defaultdict(list)
        self._by_tail: dict[str, list[Path]] = defaultdict(list)
        for path in files.sizes:
            self._by_path[comparable(source_of(files.file(path)))].append(path)
            # The data folder may itself be a data set of the list: its own name counts.
            self._by_tail[_tail(comparable(source_of(path.absolute().as_posix())))].append(path)

    def find(self, source: str) -> tuple[Path | None, str]:
        """The file of a recording (a path without ending), or None and why it cannot be told."""
        if source.lower().startswith("humanact12/"):
            return None, "HumanAct12 gives joint positions, not body poses"
        key = comparable(source)
        for candidates in (self._by_path.get(key, []), self._by_tail.get(_tail(key), [])):
            exact = [path for path in candidates if source_of(path.as_posix()).endswith("/" + source)]
            if len(candidates) == 1 or len(exact) == 1:
                return (exact or candidates)[0], ""
            if candidates:
                return None, f"{len(candidates)} files match, {candidates[0]} and {candidates[1]} among them"
        return None, ""


def bare(name: str) -> str:
    """A recording's name without AMASS's ``_poses`` or ``_stageii``."""
    return _SUFFIX.sub("", name)


def comparable(source: str) -> str:
    """A path without what differs between releases: case, spaces, the suffix, renamed data sets."""
    parts = [part.lower().replace(" ", "_") for part in source.split("/")]
    parts[-1] = bare(parts[-1])
    return "/".join(_RENAMED.get(part, part) for part in parts)


def _tail(key: str) -> str:
    return "/".join(key.split("/")[-_TAIL:])

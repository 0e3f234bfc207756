"""Names that lists of the user give to clips: an id, a recording, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ds_hymotion.data.drops import EXCLUDED, NOT_LISTED, Drop
from ds_hymotion.data.sources import Joined, Recording
from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import FormatError, read_bytes
from ds_hymotion.formats.tensors import read_json

_ENDINGS = (".npz", ".npy", ".txt")
_Keep = Callable[[Recording, str], bool]


class Labels:
    """Labels by name, where a clip may be named by its id, its path below the data folder, or its file name."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)

    def of(self, clip: str, source: str) -> str | None:
        """The clip's label, if it has one."""
        names = (clip, source, source.rpartition("/")[2])
        return next((self.labels[name] for name in names if name in self.labels), None)

    def only(self, joined: Joined) -> Joined:
        """Without the clips that have no label."""
        return _filtered(joined, lambda recording, clip: self.of(clip, recording.source) is not None, NOT_LISTED)


class Exclusions:
    """Clips and recordings that the user does not want, one name a line.

    Attributes:
        lines: the names as given.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(dict.fromkeys(lines))
        self._line = {form: line for line in reversed(self.lines) for form in _forms(line)}

    def __contains__(self, name: str) -> bool:
        return name in self._line

    def without(self, joined: Joined) -> Joined:
        """The recordings less the clips named by id or file."""
        return _filtered(
            joined, lambda recording, clip: not self._naming(clip, recording.source, recording.file), EXCLUDED
        )

    def unmatched(self, drops: Iterable[Drop]) -> list[str]:
        """The lines that name none of what was left out, for this reason or another."""
        used = {line for drop in drops for line in self._naming(drop.id or "", drop.source, drop.file)}
        return [line for line in self.lines if line not in used]

    def _naming(self, clip: str, *paths: str) -> set[str]:
        """The lines that name a clip."""
        names = (clip, *paths, *(path.rpartition("/")[2] for path in paths))
        return {self._line[name] for name in names if name in self._line}


def read_exclusions(path: Path | None) -> Exclusions:
    """The lines of an exclusion list; none without a file.

    Raises:
        UserError: the file is missing, unreadable or not UTF-8.
    """
    return Exclusions([] if path is None else read_names(path))


def read_names(path: Path) -> list[str]:
    """The lines of a text file that are not empty, without surrounding spaces.

    Raises:
        UserError: the file is missing, unreadable or not UTF-8.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(path, "not UTF-8", f"byte {error.start}") from None
    return [line.strip() for line in lines if line.strip()]


def read_actions(path: Path | None) -> Labels:
    """Action types by name; none without a file.

    Raises:
        UserError: the file is missing, or is no JSON object of texts.
    """
    if path is None:
        return Labels({})
    actions = read_json(path, 'give a file of names and action types, such as {"000001": "LOCOMOTION"}')
    if not isinstance(actions, dict) or not all(isinstance(action, str) and action for action in actions.values()):
        raise UserError(f'{path} is not a JSON object of names and action types, such as {{"000001": "LOCOMOTION"}}')
    return Labels(actions)


def _filtered(joined: Joined, keep: _Keep, reason: str) -> Joined:
    kept: list[Recording] = []
    drops = list(joined.drops)
    for recording in joined.recordings:
        clips = []
        for clip in recording.clips:
            if keep(recording, clip.id):
                clips.append(clip)
            else:
                drops.append(Drop(recording.file, recording.source, clip.id, reason, "", len(clip.captions)))
        if clips:
            kept.append(replace(recording, clips=tuple(clips)))
    return replace(joined, recordings=tuple(kept), drops=tuple(drops))


def _forms(line: str) -> set[str]:
    """A line as it is, and as a path without the folder and the ending that lists give it."""
    plain = line.removeprefix("./").removeprefix("pose_data/")
    return {line, plain, *(plain.removesuffix(ending) for ending in _ENDINGS)}

"""Captions of recordings with times in seconds, as KIT-ML and TMR distribute them: one JSON object.

An entry is ``"00001": {"path": "KIT/4/Walk01_poses", "duration": 3.78, "annotations": [{"seg_id": "00001_0", "text":
"A person walks.", "start": 0.0, "end": 3.78}, ...]}``. Other keys are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_hymotion.formats.files import Listing
from ds_hymotion.formats.humanml3d import Caption
from ds_hymotion.formats.json_entries import items_of, object_of, path_of, read_entries, seconds_of, span_of, text_of

_MIRRORED_ID = re.compile(r"M[0-9]{5,6}")


@dataclass(frozen=True)
class Annotation:
    """The captions of one recording.

    Attributes:
        id: the entry's name; "M" before another entry's name means its mirrored copy.
        path: the recording below the data folder, without ending.
        duration: seconds that the entry describes; None where it does not say.
        captions: at least one, with times in seconds of the recording; those without times describe the duration, or
            all of it (0 and 0).
    """

    id: str
    path: str
    duration: float | None
    captions: tuple[Caption, ...]


def is_mirrored_id(name: str) -> bool:
    """Whether a clip's name is that of a mirrored copy in KIT-ML or HumanML3D: ``M`` and five or six digits."""
    return _MIRRORED_ID.fullmatch(name) is not None


def read_annotations(path: str | Path) -> Listing[Annotation]:
    """All usable entries. Other entries and captions are skipped and named in ``problems``.

    Raises:
        FormatError: the file is missing, unreadable or no JSON object.
    """
    entries: list[Annotation] = []
    problems: list[str] = []
    names: set[str] = set()
    for name, value in read_entries(path):
        try:
            if name in names:
                raise ValueError("an earlier entry has this name")
            names.add(name)
            entries.append(_entry(name, value, problems, str(path)))
        except ValueError as error:
            problems.append(f"{path} entry {name!r}: {error}")
    return Listing(entries, problems)


def _entry(name: str, value: Any, problems: list[str], file: str) -> Annotation:
    entry = object_of(value)
    if not name.strip() or "/" in name or not name.isprintable():
        raise ValueError("its name is no name of a clip")
    path, duration = path_of(entry, "path"), seconds_of(entry, "duration") or None
    captions: list[Caption] = []
    for number, segment in enumerate(items_of(entry, "annotations"), 1):
        try:
            captions.append(_caption(segment, duration or 0.0))
        except ValueError as error:
            problems.append(f"{file} entry {name!r} segment {segment.get('seg_id', number)!r}: {error}")
    if not captions:
        raise ValueError("it has no usable caption")
    return Annotation(name, path, duration, tuple(captions))


def _caption(segment: Mapping[str, Any], duration: float) -> Caption:
    text = text_of(segment, "text")
    if not text:
        raise ValueError("the text is empty")
    start, end = span_of(segment, "start", "end") or (0.0, duration)
    return Caption(text, start, end)

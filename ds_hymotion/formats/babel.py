"""Action labels of recordings, as BABEL distributes them: one JSON object.

An entry is ``"7636": {"feat_p": "KIT/KIT/4/Walk01_poses.npz", "seq_ann": {"labels": [...]}, "frame_ann": {"labels":
[...]}}``. A label has ``raw_label``, ``proc_label`` and ``act_cat`` (a list of categories), and in ``frame_ann`` also
``start_t`` and ``end_t`` in seconds. ``frame_ann`` may be null; ``seq_anns`` and ``frame_anns`` hold lists of such
annotations. Other keys are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_hymotion.formats.files import Listing
from ds_hymotion.formats.json_entries import items_of, object_of, path_of, read_entries, span_of, text_of


@dataclass(frozen=True)
class ActionLabel:
    """What happens in a recording, or in a part of it.

    Attributes:
        words: the action categories; where there are none, the processed label, else the raw one.
        start_s, end_s: seconds of the recording; 0 and 0 mean all of it.
    """

    words: tuple[str, ...]
    start_s: float = 0.0
    end_s: float = 0.0

    @property
    def whole(self) -> bool:
        return self.end_s == 0.0


@dataclass(frozen=True)
class LabelledRecording:
    """The labels of one recording; ``path`` is below the data folder, without ending."""

    path: str
    labels: tuple[ActionLabel, ...]


def read_babel(path: str | Path) -> Listing[LabelledRecording]:
    """All usable entries. Other entries and labels are skipped and named in ``problems``.

    Raises:
        FormatError: the file is missing, unreadable or no JSON object.
    """
    entries: list[LabelledRecording] = []
    problems: list[str] = []
    for name, value in read_entries(path):
        try:
            entry = object_of(value)
            labels: list[ActionLabel] = []
            for label, timed in _labels(entry):
                try:
                    labels.append(_label(label, timed))
                except ValueError as error:
                    problems.append(f"{path} entry {name!r} label {label.get('seg_id', '?')!r}: {error}")
            entries.append(LabelledRecording(path_of(entry, "feat_p"), tuple(labels)))
        except ValueError as error:
            problems.append(f"{path} entry {name!r}: {error}")
    return Listing(entries, problems)


def _labels(entry: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Every label, and whether it has times."""
    for key, timed in (("seq_ann", False), ("frame_ann", True)):
        annotations = [object_of(entry[key])] if entry.get(key) is not None else []
        for annotation in [*annotations, *items_of(entry, key + "s")]:
            for label in items_of(annotation, "labels"):
                yield label, timed


def _label(label: Mapping[str, Any], timed: bool) -> ActionLabel:
    categories = label.get("act_cat")
    if categories is not None and not isinstance(categories, list):
        raise ValueError(f"act_cat {categories!r} is not a list of categories")
    words = [text_of({"act_cat": category}, "act_cat") for category in categories or ()]
    words = [word for word in words if word] or [text_of(label, "proc_label") or text_of(label, "raw_label")]
    if not words[0]:
        raise ValueError("it has neither act_cat nor proc_label nor raw_label")
    span = span_of(label, "start_t", "end_t") if timed else None
    if timed and span is None:
        raise ValueError("it has no start_t and end_t")
    return ActionLabel(tuple(dict.fromkeys(words)), *(span or (0.0, 0.0)))

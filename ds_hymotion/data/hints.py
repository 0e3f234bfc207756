"""What action labels of recordings say about samples: a hint for sorting motions by action, not a caption."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ds_hymotion.data.lookup import Lookup
from ds_hymotion.data.sources import Joined, MotionFiles
from ds_hymotion.formats.babel import ActionLabel, read_babel
from ds_hymotion.text.mirror import mirror_caption

_LEAST_SHARE = 0.5
"""A timed label describes a sample if they share this much of the shorter of the two."""


def with_labels(joined: Joined, files: MotionFiles, paths: Iterable[Path]) -> Joined:
    """The recordings with the labels that BABEL files give them.

    Raises:
        UserError: a file of labels cannot be read.
    """
    lookup = Lookup(files)
    labels: dict[Path, list[ActionLabel]] = defaultdict(list)
    bad_lines = list(joined.bad_lines)
    entries = not_found = 0
    for babel in paths:
        rows = read_babel(babel)
        bad_lines += rows.problems
        for row in rows:
            entries += 1
            path, why = lookup.find(row.path)
            if path is not None:
                labels[path] += row.labels
            elif why:
                bad_lines.append(f"{babel} {row.path}: {why}")
            not_found += path is None
    recordings = tuple(
        replace(recording, labels=tuple(dict.fromkeys(labels[recording.path]))) for recording in joined.recordings
    )
    given = {**joined.given, "labelled": entries, "labelled_not_found": not_found}
    return replace(joined, recordings=recordings, bad_lines=tuple(bad_lines), given=given)


def hints_of(labels: Sequence[ActionLabel], start: float, end: float, mirrored: bool) -> tuple[str, ...]:
    """The words for seconds ``start`` to ``end`` of a recording, in the order of their times.

    They come from the labels with times that describe the span; where none does, from the labels of the whole.

    Args:
        mirrored: left and right are exchanged in the words.
    """
    timed = sorted((label for label in labels if not label.whole), key=lambda label: (label.start_s, label.end_s))
    found = [label for label in timed if _describes(label, start, end)]
    words = [word for label in found or labels if label.whole is not bool(found) for word in label.words]
    return tuple(dict.fromkeys(mirror_caption(word) if mirrored else word for word in words))


def _describes(label: ActionLabel, start: float, end: float) -> bool:
    shared = min(label.end_s, end) - max(label.start_s, start)
    return shared > 0 and shared >= _LEAST_SHARE * min(label.end_s - label.start_s, end - start)

"""What a preparation kept and left out: counts for the header, the report and the printed table."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ds_hymotion.data.splits import SPLITS
from ds_hymotion.text.encoding import text_lines

BUCKET_BOUNDS = (60, 120, 180, 240, 300)


class Counts:
    """Samples, recordings, captions, frames and hours; samples per split and per frame bucket; added up row by row."""

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._sums: Counter[str] = Counter()
        self._sources: set[str] = set()
        self._splits: Counter[str] = Counter()
        self._buckets: Counter[int] = Counter()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a line of ``samples.jsonl``."""
        self._sums["samples"] += 1
        self._sums["mirrored"] += bool(row["mirrored"])
        self._sums["captions"] += len(row["captions"])
        self._sums["frames"] += row["frames"]
        self._sums["hinted"] += bool(row["hints"])
        self._sources.add(row["source"])
        self._splits[row["split"]] += 1
        self._buckets[bisect_right(BUCKET_BOUNDS, row["frames"])] += 1

    def values(self) -> dict[str, Any]:
        """The counts as JSON."""
        sums = self._sums
        return {
            "samples": sums["samples"],
            "mirrored": sums["mirrored"],
            "recordings": len(self._sources),
            "captions": sums["captions"],
            "hinted": sums["hinted"],
            "frames": sums["frames"],
            "hours": round(sums["frames"] / self._fps / 3600, 4),
            "splits": {name: self._splits[name] for name in SPLITS},
            "buckets": {_label(place): self._buckets[place] for place in range(len(BUCKET_BOUNDS) + 1)},
        }


def report_of(
    counts: Mapping[str, Any], given: Mapping[str, int], notes: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """``report.json``: the counts, every dropped file or clip with its reason, and everything else worth a look."""
    kinds: dict[str, list[Any]] = {
        kind: [] for kind in ("dropped", "glitch", "cropped", "bad_line", "straddling", "unmatched")
    }
    for note in notes:
        kinds[note["kind"]].append(note["value"])
    return {
        "given": dict(given),
        "counts": dict(counts),
        "dropped_by_reason": dict(Counter(drop["reason"] for drop in kinds["dropped"]).most_common()),
        "dropped": kinds["dropped"],
        "velocity_outliers": kinds["glitch"],
        "cropped": kinds["cropped"],
        "bad_lines": kinds["bad_line"],
        "recordings_in_several_splits": kinds["straddling"],
        "unmatched_exclusions": kinds["unmatched"],
    }


def table(report: Mapping[str, Any]) -> str:
    """The report in a few lines for the terminal."""
    counts = report["counts"]
    dropped = report["dropped_by_reason"]
    splits = ", ".join(f"{name} {count:,}" for name, count in counts["splits"].items())
    lines = [
        ("given", _given(report["given"])),
        ("kept", f"{counts['samples']:,} samples from {counts['recordings']:,} recordings"),
        ("", splits + (f"; {counts['mirrored']:,} of them mirrored" if counts["mirrored"] else "")),
        ("captions", f"{counts['captions']:,}"),
        ("frames", f"{counts['frames']:,} = {counts['hours']:.3g} h"),
        ("buckets", "  ".join(f"{label} {count:,}" for label, count in counts["buckets"].items())),
        ("dropped", f"{sum(dropped.values()):,}"),
        *(("", f"{count:,} {reason}") for reason, count in dropped.items()),
    ]
    lines[6:6] = [("text", line) for line in text_lines(report.get("text", {}))]
    if "labelled" in report["given"]:
        lines.insert(3, ("hints", f"{counts['hinted']:,} samples have action labels"))
    remarks = {
        "cropped": "clips cut to the longest length",
        "velocity_outliers": "clips with a joint that turns faster than bodies do",
        "bad_lines": "lines of captions, lists or annotations that cannot be used",
        "recordings_in_several_splits": "recordings that the lists put into more than one split",
        "unmatched_exclusions": "lines of the exclusion list that name nothing",
    }
    for name, words in remarks.items():
        if report[name]:
            first = f", such as {report[name][0]}" if name == "unmatched_exclusions" else ""
            lines.append(("note", f"{len(report[name]):,} {words}{first}"))
    return "\n".join(f"{title:<9} {text}" for title, text in lines)


def _given(given: Mapping[str, int]) -> str:
    words = [f"{given['files']:,} files, {given['clips']:,} clips with {given['captions']:,} captions"]
    for name, text in (
        ("mirrored_captions", "captions of mirrored copies"),
        ("files_not_named", "files that no clip names"),
        ("labelled", "recordings with action labels"),
        ("labelled_not_found", "of those not found"),
    ):
        if given.get(name):
            words.append(f"{given[name]:,} {text}")
    return "; ".join(words)


def _label(bucket: int) -> str:
    if bucket == 0:
        return f"[<{BUCKET_BOUNDS[0]})"
    if bucket == len(BUCKET_BOUNDS):
        return f"[{BUCKET_BOUNDS[-1]}+)"
    return f"[{BUCKET_BOUNDS[bucket - 1]},{BUCKET_BOUNDS[bucket]})"

"""What a preparation kept and left out: counts for the header, the report and the printed table."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ds_hymotion.data.splits import SPLITS

BUCKET_BOUNDS = (60, 120, 180, 240, 300)


def counts_of(rows: Sequence[Mapping[str, Any]], fps: float) -> dict[str, Any]:
    """Samples, recordings, captions, frames and hours; samples per split and per frame bucket."""
    frames = sum(row["frames"] for row in rows)
    splits = Counter(row["split"] for row in rows)
    buckets = Counter(bisect_right(BUCKET_BOUNDS, row["frames"]) for row in rows)
    return {
        "samples": len(rows),
        "mirrored": sum(bool(row["mirrored"]) for row in rows),
        "recordings": len({row["source"] for row in rows}),
        "captions": sum(len(row["captions"]) for row in rows),
        "frames": frames,
        "hours": round(frames / fps / 3600, 4),
        "splits": {name: splits[name] for name in SPLITS},
        "buckets": {_label(place): buckets[place] for place in range(len(BUCKET_BOUNDS) + 1)},
    }


def report_of(counts: Mapping[str, Any], notes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """``report.json``: the counts, every dropped file or clip with its reason, and everything else worth a look."""
    kinds: dict[str, list[Any]] = {"dropped": [], "glitch": [], "cropped": [], "bad_line": [], "straddling": []}
    for note in notes:
        kinds[note["kind"]].append(note["value"])
    return {
        "counts": dict(counts),
        "dropped_by_reason": dict(Counter(drop["reason"] for drop in kinds["dropped"]).most_common()),
        "dropped": kinds["dropped"],
        "velocity_outliers": kinds["glitch"],
        "cropped": kinds["cropped"],
        "bad_lines": kinds["bad_line"],
        "recordings_in_several_splits": kinds["straddling"],
    }


def table(report: Mapping[str, Any]) -> str:
    """The report in a few lines for the terminal."""
    counts = report["counts"]
    dropped = report["dropped_by_reason"]
    splits = ", ".join(f"{name} {count:,}" for name, count in counts["splits"].items())
    lines = [
        ("kept", f"{counts['samples']:,} samples from {counts['recordings']:,} recordings"),
        ("", splits + (f"; {counts['mirrored']:,} of them mirrored" if counts["mirrored"] else "")),
        ("captions", f"{counts['captions']:,}"),
        ("frames", f"{counts['frames']:,} = {counts['hours']:.3g} h"),
        ("buckets", "  ".join(f"{label} {count:,}" for label, count in counts["buckets"].items())),
        ("dropped", f"{sum(dropped.values()):,}"),
        *(("", f"{count:,} {reason}") for reason, count in dropped.items()),
    ]
    remarks = {
        "cropped": "clips cut to the longest length",
        "velocity_outliers": "clips with a joint that turns faster than bodies do",
        "bad_lines": "lines of caption files or the index that cannot be read",
        "recordings_in_several_splits": "recordings that the lists put into more than one split",
    }
    lines += [("note", f"{len(report[name]):,} {words}") for name, words in remarks.items() if report[name]]
    return "\n".join(f"{title:<9} {text}" for title, text in lines)


def _label(bucket: int) -> str:
    if bucket == 0:
        return f"[<{BUCKET_BOUNDS[0]})"
    if bucket == len(BUCKET_BOUNDS):
        return f"[{BUCKET_BOUNDS[-1]}+)"
    return f"[{BUCKET_BOUNDS[bucket - 1]},{BUCKET_BOUNDS[bucket]})"

"""Frame buckets: clips of similar length share a step, so that no rank waits for a longer motion."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from ds_hymotion.errors import UserError


@dataclass(frozen=True)
class BucketSettings:
    """Which lengths share a bucket, in frames.

    ``bounds`` are the lower ends; the last one is the canvas: longer clips are cropped to it, so the last bucket
    holds clips of exactly that many frames. Clips shorter than ``bounds[0]`` form a bucket of their own
    (``short="keep"``), join the first bucket (``"pad"``) or are left out and counted (``"drop"``).
    """

    bounds: tuple[int, ...] = (60, 120, 180, 240, 300)
    short: str = "keep"

    def __post_init__(self) -> None:
        if not self.bounds or self.bounds[0] < 1 or any(a >= b for a, b in zip(self.bounds, self.bounds[1:])):
            raise UserError(
                f"hymotion.data.bucket_bounds: {list(self.bounds)} must be rising whole numbers from 1, "
                "such as [60, 120, 180, 240, 300]"
            )
        if self.short not in ("keep", "pad", "drop"):
            raise UserError(f"hymotion.data.short: {self.short!r} is not one of keep, pad, drop")

    @property
    def canvas(self) -> int:
        """The longest motion a step holds, in frames."""
        return self.bounds[-1]

    def label(self, bucket: int) -> str:
        """A bucket's range for tables: bucket 0 holds what is shorter than the first bound."""
        if bucket == 0:
            return f"< {self.bounds[0]}"
        if bucket == len(self.bounds):
            return f"{self.canvas}"
        return f"[{self.bounds[bucket - 1]}, {self.bounds[bucket]})"


@dataclass
class Buckets:
    """Clips by bucket: ``members[b]`` are positions in the list of lengths; a step sees ``frames[i]`` of clip i."""

    settings: BucketSettings
    frames: list[int]
    members: list[list[int]]
    dropped: dict[str, list[int]] = field(default_factory=dict)
    cropped: int = 0

    @classmethod
    def build(cls, lengths: Sequence[int], settings: BucketSettings) -> Buckets:
        """Sort clips of ``lengths`` frames into buckets; clips without a frame are dropped and counted."""
        buckets = cls(settings, [], [[] for _ in range(len(settings.bounds) + 1)])
        for clip, length in enumerate(lengths):
            seen = min(length, settings.canvas)
            buckets.frames.append(seen)
            if length < 1:
                buckets.dropped.setdefault("no frames", []).append(clip)
                continue
            bucket = bisect_right(settings.bounds, seen)
            if bucket == 0 and settings.short == "drop":
                buckets.dropped.setdefault(f"shorter than {settings.bounds[0]} frames", []).append(clip)
                continue
            if bucket == 0 and settings.short == "pad":
                bucket = 1
            buckets.cropped += length > settings.canvas
            buckets.members[bucket].append(clip)
        return buckets

    def table(self, steps: Sequence[int]) -> str:
        """The table a run prints at its start; ``steps[b]`` is bucket b's number of steps in an epoch."""
        lines = [f"{'bucket (frames)':>16} {'clips':>8} {'frames':>10} {'steps/epoch':>12}"]
        for bucket, clips in enumerate(self.members):
            if clips:
                total = sum(self.frames[clip] for clip in clips)
                lines.append(f"{self.settings.label(bucket):>16} {len(clips):>8} {total:>10} {steps[bucket]:>12}")
        for reason, clips in self.dropped.items():
            lines.append(f"  dropped: {len(clips)} ({reason})")
        if self.cropped:
            lines.append(f"  cropped to {self.settings.canvas} frames by a seeded window: {self.cropped}")
        return "\n".join(lines)

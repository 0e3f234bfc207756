"""What a corpus is to be made from, and how: the checked flags of ``launch/prepare.py``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds_hymotion.data.clips import ClipSettings
from ds_hymotion.data.splits import check_fractions
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import OUTLIER_SPEED
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.text.encoders import ENCODERS
from ds_hymotion.text.sources import PRECISIONS, EncoderSources


@dataclass(frozen=True)
class Preparation:
    """What to prepare, and how; the flags of ``launch/prepare.py`` say what each means.

    Raises:
        UserError: a value that is not legal.
    """

    data_dir: Path
    out: Path
    texts: Path | None = None
    index: Path | None = None
    annotations: Path | None = None
    babel: tuple[Path, ...] = ()
    exclude: Path | None = None
    representation: str = "smpl24-rotmat"
    positions_relative_to: str | None = None
    fps: float = 30.0
    min_frames: int = 2
    max_frames: int | None = None
    long_clips: str = "crop"
    mirror: bool = False
    unconditional: bool = False
    split: tuple[float, ...] = (0.9, 0.05, 0.05)
    split_lists: Path | None = None
    seed: int = 0
    actions_file: Path | None = None
    rates: tuple[str, ...] = ()
    max_joint_speed: float = OUTLIER_SPEED
    outliers: str = "keep"
    encode_text: str | None = None
    text_dtype: str = "bf16"
    text_sources: EncoderSources = EncoderSources()
    shard_mb: float = 64.0
    workers: int = 1
    strict: bool = False
    overwrite: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        self.layout()
        check_fractions(self.split)
        _require(1 <= self.fps <= 1000, "--fps", self.fps, "frames per second from 1 to 1000, such as 30")
        _require(self.min_frames >= 1, "--min_frames", self.min_frames, "at least 1")
        longest = self.max_frames
        _require(longest is None or longest >= self.min_frames, "--max_frames", longest, "at least --min_frames")
        _require(self.long_clips in ("crop", "split", "drop"), "--long_clips", self.long_clips, "crop, split or drop")
        _require(self.outliers in ("keep", "drop"), "--outliers", self.outliers, "keep or drop")
        _require(self.max_joint_speed > 0, "--max_joint_speed", self.max_joint_speed, "degrees per second above 0")
        _require(self.shard_mb > 0, "--shard_mb", self.shard_mb, "megabytes above 0, such as 256")
        _require(self.workers >= 1, "--workers", self.workers, "at least 1")
        encoders = ", ".join(ENCODERS)
        _require(self.encode_text in (None, *ENCODERS), "--encode_text", self.encode_text, f"one of: {encoders}")
        precisions = ", ".join(PRECISIONS)
        _require(self.text_dtype in PRECISIONS, "--text_dtype", self.text_dtype, f"one of: {precisions}")
        if self.annotations is not None and (self.index is not None or self.texts is not None):
            other = f"--index {self.index}" if self.index is not None else f"--texts {self.texts}"
            raise UserError(f"--annotations {self.annotations} and {other} exclude each other: give one")
        _require(self.index is None or self.texts is not None, "--texts", None, "the folder of the index's captions")

    def layout(self) -> Representation:
        return representation(self.representation, self.positions_relative_to)

    def clip_settings(self) -> ClipSettings:
        return ClipSettings(
            representation=self.layout(),
            fps=self.fps,
            min_frames=self.min_frames,
            max_frames=self.max_frames,
            long_clips=self.long_clips,
            mirror=self.mirror,
            rates=self.folder_rates(),
            max_joint_speed=self.max_joint_speed,
            outliers=self.outliers,
        )

    def folder_rates(self) -> tuple[tuple[str, float], ...]:
        """The folders of ``--rates`` with their frames per second."""
        return tuple(_rate(text) for text in self.rates)

    def bytes_per_second(self) -> int:
        """What a second of motion needs on the disk."""
        return math.ceil(self.fps * self.layout().channels * 4 * (2 if self.mirror else 1))

    def arguments(self) -> dict[str, Any]:
        """What the corpus depends on, as JSON: not where it goes, nor how many processes make it."""
        without = {"out", "workers", "strict", "overwrite", "progress", "encode_text", "text_dtype", "text_sources"}
        return {name: _json(value) for name, value in asdict(self).items() if name not in without}


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _require(legal: bool, flag: str, value: Any, wanted: str) -> None:
    if not legal:
        raise UserError(f"{flag} {value} is not legal: give {wanted}")


def _rate(text: str) -> tuple[str, float]:
    """FOLDER=FPS."""
    folder, _, rate = text.rpartition("=")
    try:
        fps = float(rate)
    except ValueError:
        fps = 0.0
    _require(bool(folder) and 1 <= fps <= 1000, "--rates", text, "FOLDER=FPS, such as CMU=120")
    return folder.strip("/"), fps

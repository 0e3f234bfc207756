"""Whether a corpus will fit on its disk, before the work on it starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ds_hymotion.data.sources import Clip, Recording
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import recorded_seconds
from ds_hymotion.formats.files import FormatError
from ds_hymotion.formats.humanml3d import INDEX_FPS

LOOKED_AT = 32
"""Recordings of which the length is read; that of the others follows from the size of their files."""
RESERVE = 64 * 2**20
"""Bytes kept free for sample lists, reports and everybody else."""
_USUAL = 1400.0 * 60.0
"""Bytes per second of SMPL-H at 60 fps, where no recording can be looked at."""


def corpus_bytes(recordings: Sequence[Recording], bytes_per_second: int) -> int:
    """About how large the features of all clips will be.

    Args:
        bytes_per_second: of one second of motion in the corpus, mirrored copies included.
    """
    per_second = _file_bytes_per_second(recordings)
    seconds = sum(
        _clip_seconds(clip, recording.size / per_second) for recording in recordings for clip in recording.clips
    )
    return round(seconds * bytes_per_second)


def require_disk_space(out: Path, needed: int, present: int = 0) -> None:
    """Refuse to begin what cannot end.

    Args:
        out: the folder to make, which need not exist.
        needed: bytes that it will hold.
        present: bytes of it that are there already.

    Raises:
        UserError: less is free on its disk, with both numbers.
    """
    place = next((folder for folder in (out, *out.absolute().parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    wanted = max(0, needed - present) + RESERVE
    if free < wanted:
        raise UserError(
            f"--out {out} will need about {_size(wanted)}, its disk has {_size(free)} free: free some, choose "
            "another --out, or prepare fewer motions"
        )


def _file_bytes_per_second(recordings: Sequence[Recording]) -> float:
    size, seconds = 0, 0.0
    for recording in recordings[:: max(1, len(recordings) // LOOKED_AT)]:
        try:
            seconds += recorded_seconds(recording.path)
            size += recording.size
        except FormatError:
            continue  # it will be refused with its reason when its turn comes
    return size / seconds if seconds > 0 and size > 0 else _USUAL


def _clip_seconds(clip: Clip, recorded: float) -> float:
    """Seconds of all samples of a clip, each distinct span of its captions being one."""
    whole = recorded
    if clip.row is not None and clip.row.end_frame >= 0:
        whole = (clip.row.end_frame - clip.row.start_frame) / INDEX_FPS
    spans = {(caption.start_s, caption.end_s) for caption in clip.captions}
    return sum(whole if end == 0 else min(end - start, whole) for start, end in spans)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"

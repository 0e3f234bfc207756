"""Writing a motion in the formats a person asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.formats.bvh_writer import write_bvh
from ds_hymotion.formats.preview import filmstrip, write_gif, write_mp4
from ds_hymotion.motion.motion import Motion

FORMATS = ("npz", "bvh", "gif", "mp4", "png")


def write_motion(folder: Path, name: str, motion: Motion, formats: Sequence[str], caption: str = "") -> list[Path]:
    """Write ``folder/name.FORMAT`` for every format of :data:`FORMATS` asked for; return the paths.

    Raises:
        UserError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror}); give a writable folder") from None
    paths = []
    for kind in formats:
        path = folder / f"{name}.{kind}"
        if kind == "npz":
            write_amass(path, motion)
        elif kind == "bvh":
            write_bvh(path, motion)
        elif kind == "gif":
            write_gif(path, motion, caption)
        elif kind == "mp4":
            write_mp4(path, motion, caption)
        elif kind == "png":
            filmstrip(path, motion, caption=caption)
        else:
            raise ValueError(f"format {kind!r} is not one of {FORMATS}")
        paths.append(path)
    return paths

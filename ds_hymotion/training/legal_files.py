"""Licence and notice files of base weights, which go where the weights go."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from ds_hymotion.formats.files import replace_file
from ds_hymotion.model.released import RELEASED

NAMES = ("license", "licence", "notice")  # how such files begin, in capitals or not
PATTERNS = tuple("".join(f"[{letter.upper()}{letter}]" for letter in name) + "*" for name in NAMES)


def copy_legal_files(base: str, out: Path) -> list[str]:
    """Copy licence and notice files that lie beside the base weights, or over the folder of a release that has none
    of its own; returns their names.

    Raises:
        UserError: one cannot be read or written.
    """
    if not base:
        return []
    place = Path(base) if Path(base).is_dir() else Path(base).parent
    if not place.is_dir():
        return []
    found = _legal_files(place)
    if not found and (place / RELEASED).is_file():
        found = _legal_files(place.parent)
    for path in found:
        replace_file(out / path.name, partial(shutil.copyfile, path))
    return [path.name for path in found]


def _legal_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.lower().startswith(NAMES) and path.is_file())

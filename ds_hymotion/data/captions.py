"""Where the captions of a motion file lie, and what they say."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ds_hymotion.data.lookup import bare
from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import FormatError, read_bytes
from ds_hymotion.formats.humanml3d import Caption, parse_texts

# A HumanML3D line that lost its end: words with their parts of speech where a plain caption has none.
_CUT = re.compile(rb"#[^#\s]+/[A-Z]+(?: [^#\s]+/[A-Z]*)*(?:#[\d.nan]*)?$")
_MARKS = (b"\xff\xfe", b"\xfe\xff")


def require_texts_folder(texts: Path | None, wanted: str) -> None:
    """Raise :class:`UserError` unless there is such a folder, or none was named."""
    if texts is not None and not texts.is_dir():
        raise UserError(f"--texts {texts} is not a folder: name {wanted}")


def read_captions(path: Path, bad_lines: list[str], plain: bool = True) -> tuple[Caption, ...]:
    """The captions of a file, none if it is absent: a line HumanML3D's ``caption#tokens#start#end`` or a plain caption.

    What cannot be read is named in ``bad_lines``; without ``plain``, so is a caption with a ``#`` and no times.
    """
    try:
        data = read_bytes(path)
    except FormatError as error:
        if error.reason != "no such file":
            bad_lines.append(str(error))
        return ()
    if data.startswith(_MARKS):
        bad_lines.append(f"{path}: UTF-16, not UTF-8")
        return ()
    captions: list[Caption] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if b"\0" in line:
            bad_lines.append(f"{path} line {number}: a zero byte, so it is no text")
        elif line.count(b"#") >= 3 or (b"#" in line and not plain) or _CUT.search(line):
            found = parse_texts(line, "")
            captions += found
            bad_lines += [f"{path} line {number}: {problem.partition(': ')[2]}" for problem in found.problems]
        elif line.strip():
            try:
                captions.append(Caption(" ".join(line.decode("utf-8").split())))
            except UnicodeDecodeError:
                bad_lines.append(f"{path} line {number}: not UTF-8")
    return tuple(caption for caption in captions if caption.text)


def caption_file(
    path: Path, source: str, texts: Path | None, shared_name: bool, mark: str = ""
) -> tuple[Path | None, str]:
    """The caption file of a motion file, or why it cannot be told which one it is; (None, "") where there is none.

    Args:
        path: the motion file.
        source: its name below the data folder, without ending.
        texts: a folder of captions by source or by name; captions beside the motion come last.
        shared_name: whether another motion file has the same name, so that captions by name could be either's.
        mark: comes before the file's name: ``M`` for captions of the mirrored motion.
    """
    places = []
    if texts is not None:
        places += _with_and_without_suffix(texts / source, mark)
        by_name = _with_and_without_suffix(texts / path.stem, mark)
        if not shared_name:
            places += by_name
        elif any(map(os.path.lexists, by_name)) and not any(map(os.path.lexists, places)):
            return None, f"several motions are called {path.stem}: put the captions into {places[0]}"
    places += _with_and_without_suffix(path.with_suffix(""), mark)
    return next((place for place in places if os.path.lexists(place)), None), ""


def _with_and_without_suffix(stem: Path, mark: str) -> list[Path]:
    return [stem.with_name(f"{mark}{name}.txt") for name in dict.fromkeys((stem.name, bare(stem.name)))]

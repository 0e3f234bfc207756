"""HumanML3D's caption files and its index of source windows."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import FormatError, Listing, read_bytes, replace_file

INDEX_FPS = 20
HEAD_FRAMES = {"Eyes_Japan_Dataset": 60, "MPI_HDM05": 60, "TotalCapture": 20, "MPI_Limits": 20, "Transitions_mocap": 10}
"""Frames at 20 fps that HumanML3D drops at the start of these data sets' recordings, before it counts."""
COLUMNS = ("source_path", "start_frame", "end_frame", "new_name")

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[nN][aA][nN]"
_TIMES = re.compile(rf"#\s*({_NUMBER})\s*#\s*({_NUMBER})\s*#*$")
_TOKEN = re.compile(r"(?:#|[^\s#]+)/[A-Z]+")


@dataclass(frozen=True)
class Caption:
    """What a motion shows.

    Attributes:
        text: one line.
        start_s, end_s: seconds; 0 and 0 mean the whole clip.
        tokens: ``word/TAG`` pairs as HumanML3D stores them; may be empty.
    """

    text: str
    start_s: float = 0.0
    end_s: float = 0.0
    tokens: str = ""

    @property
    def whole(self) -> bool:
        return self.start_s == 0.0 and self.end_s == 0.0


@dataclass(frozen=True)
class IndexRow:
    """One window of a source recording.

    Attributes:
        source: as in the file, such as ``./pose_data/KIT/3/kick_high_left02_poses.npy``.
        start_frame, end_frame: at 20 fps, after the data set's head frames; end -1 is the recording's end.
        name: the clip's new name without ``.npy``.
    """

    source: str
    start_frame: int
    end_frame: int
    name: str

    @property
    def recording(self) -> str:
        """The source below ``pose_data``, without its suffix: what clips of one recording share."""
        parts = [part for part in PurePosixPath(self.source).with_suffix("").parts if part not in (".", "/")]
        return "/".join(parts[1:] if parts[0] == "pose_data" else parts)

    @property
    def head_frames(self) -> int:
        """Frames at 20 fps dropped before counting starts."""
        parts = PurePosixPath(self.source).parts
        return next((frames for name, frames in HEAD_FRAMES.items() if name in parts), 0)


def parse_texts(data: bytes, name: str) -> Listing[Caption]:
    """Captions of the content of one ``texts/NNNNNN.txt``; ``name`` stands in the problems."""
    captions: list[Caption] = []
    problems: list[str] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not raw.strip():
            continue
        try:
            captions.append(_caption(raw.decode("utf-8")))
        except UnicodeDecodeError:
            problems.append(f"{name} line {number}: not UTF-8")
        except ValueError as error:
            problems.append(f"{name} line {number}: {error}")
    return Listing(captions, problems)


def read_texts(path: str | Path) -> Listing[Caption]:
    """Captions of one file, a line ``caption#tokens#start#end`` each, in file order.

    ``nan`` times count as 0; blank lines are skipped; a ``#`` inside the caption stays in the caption. A malformed
    line is skipped and named in the list's ``problems``.

    Raises:
        FormatError: the file is missing or unreadable.
    """
    path = Path(path)
    return parse_texts(read_bytes(path), str(path))


def write_texts(path: str | Path, captions: Iterable[Caption]) -> None:
    """Write a caption file that ``read_texts`` gives back; line breaks within a caption become spaces.

    Raises:
        UserError: the place cannot be written, or a caption is empty.
    """
    lines = []
    for caption in captions:
        text, tokens = " ".join(caption.text.split()), " ".join(caption.tokens.split())
        if not text:
            raise UserError(f"{path}: a caption is empty; give it a text")
        lines.append(f"{text}#{tokens}#{caption.start_s!r}#{caption.end_s!r}\n")
    replace_file(path, lambda temporary: _write(temporary, "".join(lines)))


def parse_index(data: bytes, name: str) -> Listing[IndexRow]:
    """Rows of the content of one ``index.csv``; see ``read_index``."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(name, "not UTF-8", f"byte {error.start}") from None
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[IndexRow] = []
    problems: list[str] = []
    columns: list[int] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                titles = [cell.strip() for cell in cells]
                missing = [column for column in COLUMNS if column not in titles]
                if missing:
                    raise FormatError(name, "not an index", f"no column {', '.join(missing)} in line {reader.line_num}")
                columns = [titles.index(column) for column in COLUMNS]
                continue
            try:
                rows.append(_row([cells[column].strip() if column < len(cells) else "" for column in columns]))
            except ValueError as error:
                problems.append(f"{name} line {reader.line_num}: {error}")
    except csv.Error as error:
        raise FormatError(name, "damaged csv", f"line {reader.line_num}: {error}") from None
    if not columns:
        raise FormatError(name, "not an index", f"no line {','.join(COLUMNS)}")
    return Listing(rows, problems)


def read_index(path: str | Path) -> Listing[IndexRow]:
    """Rows of an ``index.csv`` with the columns source_path, start_frame, end_frame, new_name (others are passed over).

    A row with a missing path or name or an illegal number is skipped and named in the list's ``problems``.

    Raises:
        FormatError: the file is missing, unreadable or not such a table.
    """
    path = Path(path)
    return parse_index(read_bytes(path), str(path))


def write_index(path: str | Path, rows: Iterable[IndexRow]) -> None:
    """Write an index that ``read_index`` gives back.

    Raises:
        UserError: the place cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((row.source, row.start_frame, row.end_frame, f"{row.name}.npy") for row in rows)
    replace_file(path, lambda temporary: _write(temporary, text.getvalue()))


def source_window(row: IndexRow, fps: float, frames: int) -> tuple[int, int]:
    """The window of a row in its source recording, half open: frames ``first <= f < last``.

    HumanML3D keeps every int(fps / 20)-th frame (integer division: 59.9999885 fps gives 2), drops the data set's head
    frames, then takes [start:end]. So the source frame of index frame i is (head + i) · int(fps / 20). The window ends
    one stride after its last kept frame, or with the recording: its duration is that of the (end - start) frames.

    Args:
        fps: the rate that the source file states.
        frames: the source recording's frames.

    Raises:
        UserError: the rate is under 20; the window starts or ends past the recording; it has fewer than two frames at
            20 fps.
    """
    stride = int(fps / INDEX_FPS) if math.isfinite(fps) else 0
    if stride < 1:
        raise UserError(f"{row.name}: {row.source} has {fps:g} fps; the index needs at least {INDEX_FPS}")
    kept = -(-frames // stride) - row.head_frames
    end = kept if row.end_frame == -1 else row.end_frame
    if end > kept:
        raise UserError(
            f"{row.name}: window {row.start_frame}..{row.end_frame} ends past {row.source}, "
            f"which has {max(kept, 0)} frames at {INDEX_FPS} fps after its head"
        )
    if end - row.start_frame < 2:
        raise UserError(
            f"{row.name}: window {row.start_frame}..{row.end_frame} of {row.source} has "
            f"{max(end - row.start_frame, 0)} frames; at least 2"
        )
    return (row.head_frames + row.start_frame) * stride, min((row.head_frames + end) * stride, frames)


def _caption(line: str) -> Caption:
    line = line.strip()
    times = _TIMES.search(line)
    if times is None:
        raise ValueError("not caption#tokens#start#end with times in seconds")
    start, end = (0.0 if value.lower() == "nan" else float(value) for value in times.groups())
    if not (math.isfinite(start) and math.isfinite(end) and start >= 0 and (end > start or start == end == 0)):
        raise ValueError(f"times {start:g} to {end:g} s are no span")
    text, tokens = _split_tokens(line[: times.start()])
    if not text:
        raise ValueError("the caption is empty")
    return Caption(text, start, end, tokens)


def _split_tokens(head: str) -> tuple[str, str]:
    """Split ``caption#tokens`` at the first ``#`` that only ``word/TAG`` pairs follow, else at the last ``#``."""
    places = [place for place, letter in enumerate(head) if letter == "#"]
    for place in places:
        if all(_TOKEN.fullmatch(token) for token in head[place + 1 :].split()):
            return head[:place].strip(), head[place + 1 :].strip()
    if not places:
        raise ValueError("not caption#tokens#start#end: a # is missing")
    return head[: places[-1]].strip(), head[places[-1] + 1 :].strip()


def _row(cells: list[str]) -> IndexRow:
    source, start, end, name = cells
    name = name.removesuffix(".npy")
    path = PurePosixPath(source)
    if not path.name or ".." in path.parts:
        raise ValueError(f"source_path {source!r} is not a path below the recordings' folder")
    if not name or "/" in name or "\\" in name or name in (".", ".."):
        raise ValueError(f"new_name {name!r} is not a file name")
    first, last = _frame("start_frame", start), _frame("end_frame", end)
    if first < 0:
        raise ValueError(f"start_frame {first} is negative")
    if last < -1:
        raise ValueError(f"end_frame {last} is negative; only -1 (the recording's end) may be")
    return IndexRow(source, first, last, name)


def _frame(column: str, cell: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", cell):
        raise ValueError(f"{column} {cell!r} is not a whole number")
    return int(cell)


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))

"""How a motion file is refused, read and replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import write_atomically

Row = TypeVar("Row")


class FormatError(UserError):
    """A file that cannot be used.

    Attributes:
        path: the file.
        reason: a few words without the path or a line number, so that equal faults can be counted.
        detail: where in the file, or what would be legal; may be empty.
    """

    def __init__(self, path: str | Path, reason: str, detail: str = "") -> None:
        self.path = Path(path)
        self.reason = reason
        self.detail = detail
        super().__init__(f"{path}: {reason}" + (f" ({detail})" if detail else ""))

    def __reduce__(self) -> tuple[type[FormatError], tuple[Path, str, str]]:
        return type(self), (self.path, self.reason, self.detail)


class NotAMotion(FormatError):
    """A healthy file that carries no motion (body shapes, first-stage fits): skipped and counted, not damaged."""

    def __init__(self, path: str | Path, reason: str = "not a motion", detail: str = "") -> None:
        super().__init__(path, reason, detail)


class Listing(list[Row]):
    """The rows of a text file, and in ``problems`` one line for every row that had to be skipped."""

    def __init__(self, rows: list[Row], problems: list[str]) -> None:
        super().__init__(rows)
        self.problems = problems


def require_file(path: Path) -> os.stat_result:
    """The state of a file. Nothing else is to be opened: a pipe would wait for ever for someone who writes into it.

    Raises:
        FormatError: the path is missing, a link to nothing, a folder, a pipe, a socket or a device.
    """
    try:
        state = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise FormatError(path, "unreadable", "a link to a file that is not there") from None
        raise FormatError(path, "no such file") from None
    except (OSError, ValueError) as error:
        raise FormatError(path, "unreadable", getattr(error, "strerror", None) or str(error)) from None
    if stat.S_ISREG(state.st_mode):
        return state
    kind = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}.get(stat.S_IFMT(state.st_mode), "a socket or a device")
    raise FormatError(path, "unreadable", f"{kind}, not a file")


def read_bytes(path: Path) -> bytes:
    """The whole file.

    Raises:
        FormatError: the file is missing, no file but a folder or a pipe, or may not be read.
    """
    require_file(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except OSError as error:
        raise FormatError(path, "unreadable", error.strerror or type(error).__name__) from None


def replace_file(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it; missing folders are made.

    Raises:
        UserError: the place cannot be written. The old file, if any, is untouched and nothing is left behind.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); give a path in a folder you can write to"
        ) from None

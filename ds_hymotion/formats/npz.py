"""Arrays of an ``.npz`` archive, checked before anything is allocated and never unpickled."""

from __future__ import annotations

import io
import lzma
import math
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from types import TracebackType
from typing import IO

import numpy as np
from numpy.lib import format as npy

from ds_hymotion.formats.files import FormatError, require_file

MAX_HEADER = 1 << 16
"""Longest array header accepted, in bytes; genuine ones have 128."""
MAX_BYTES = 1 << 29
"""Largest array accepted: an hour of SMPL-H at 100 fps in float64 is 450 MB, genuine recordings are minutes.

A process that reads one needs about five times as much; a zip of 1 MB can claim any size.
"""

_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
)
_HEADER_FAULTS = (
    ValueError,
    TypeError,
    KeyError,
    SyntaxError,
    EOFError,
    TokenError,
    OverflowError,
    RecursionError,
    MemoryError,
    struct.error,
)
DAMAGED = "truncated or damaged zip"


class Archive:
    """An open ``.npz``; use it as a context manager.

    Attributes:
        names: array names without ``.npy``.

    Raises:
        FormatError: on opening or reading; see the reasons in the code.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        require_file(self.path)
        try:
            with self.path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise FormatError(path, "unreadable", error.strerror or type(error).__name__) from None
        if not magic:
            raise FormatError(path, "empty file")
        if magic[:2] != b"PK":
            raise FormatError(path, "not an npz archive")
        try:
            self._zip = zipfile.ZipFile(self.path)
        except _ZIP_FAULTS as error:
            raise FormatError(path, DAMAGED, _words(error)) from None
        self.names = frozenset(name[:-4] for name in self._zip.namelist() if name.endswith(".npy"))

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def array(self, name: str) -> np.ndarray:
        """One array, whatever its type, except Python objects.

        Raises:
            FormatError: the member is damaged, claims another size than it has or more than 512 MiB, or needs pickle.
        """
        try:
            member = self._zip.getinfo(name + ".npy")
            with self._zip.open(member) as stream:
                shape, fortran, dtype, header = self._header(name, stream)
                count = math.prod(shape)
                if count * dtype.itemsize != member.file_size - header:
                    raise FormatError(
                        self.path,
                        "array size does not match its header",
                        f"{name} claims {shape} {dtype}, the archive holds {member.file_size} bytes",
                    )
                if count * dtype.itemsize > MAX_BYTES:
                    raise FormatError(
                        self.path, "array is absurdly large", f"{name} claims {shape}; at most {MAX_BYTES} bytes"
                    )
                data = stream.read()
        except FormatError:
            raise
        except _ZIP_FAULTS as error:
            raise FormatError(self.path, DAMAGED, f"{name}: {_words(error)}") from None
        if len(data) != count * dtype.itemsize:
            raise FormatError(self.path, DAMAGED, f"{name} ends early")
        try:
            flat = np.frombuffer(data, dtype, count) if count else np.zeros(0, dtype)
            return flat.reshape(shape, order="F" if fortran else "C")
        except (ValueError, OverflowError) as error:
            raise FormatError(self.path, "damaged array header", f"{name}: {_words(error)}") from None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that an array's header claims; its content is not read.

        Raises:
            FormatError: the header is damaged or is one of Python objects.
        """
        try:
            with self._zip.open(name + ".npy") as stream:
                return self._header(name, stream)[0]
        except FormatError:
            raise
        except _ZIP_FAULTS as error:
            raise FormatError(self.path, DAMAGED, f"{name}: {_words(error)}") from None

    def numbers(self, name: str) -> np.ndarray:
        """One array as float64; not to be written to.

        Raises:
            FormatError: as ``array``; or it is not numeric, or holds NaN or Inf.
        """
        array = self.array(name)
        if array.dtype.kind not in "fiu":
            raise FormatError(self.path, f"{name} is not numeric", f"type {array.dtype}")
        with np.errstate(all="ignore"):
            numbers = array.astype(np.float64, copy=False)
        if not np.isfinite(numbers).all():
            first = np.argwhere(~np.isfinite(numbers))[0]
            raise FormatError(self.path, f"NaN or Inf in {name}", f"first at {first.tolist()}")
        return numbers

    def text(self, name: str) -> str:
        """One string, stored as unicode or bytes, as a scalar or an array of one.

        Raises:
            FormatError: as ``array``; or it is not one string.
        """
        array = self.array(name)
        if array.dtype.kind not in "SU" or array.size != 1:
            raise FormatError(self.path, f"{name} is not a string", f"type {array.dtype}, shape {array.shape}")
        try:
            value = array.reshape(()).item()
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
        except ValueError as error:
            raise FormatError(self.path, f"{name} is not a string", _words(error)) from None

    def _header(self, name: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype, int]:
        try:
            version = npy.read_magic(stream)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"npy version {version}")
            layout = "<H" if version == (1, 0) else "<I"
            prefix = stream.read(struct.calcsize(layout))
            (length,) = struct.unpack(layout, prefix)
            if length > MAX_HEADER:  # numpy would read it whole, up to 4 GiB, and then refuse it
                raise ValueError(f"a header of {length} bytes")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(io.BytesIO(prefix + stream.read(length)))
            if any(side < 0 for side in shape) or dtype.itemsize == 0:
                raise ValueError(f"shape {shape}, type {dtype}")
        except zipfile.BadZipFile:
            raise
        except _HEADER_FAULTS as error:
            raise FormatError(self.path, "damaged array header", f"{name}: {_words(error)}") from None
        if dtype.hasobject:
            raise FormatError(self.path, "needs pickle", f"{name} is an array of Python objects")
        return shape, fortran, dtype, npy.MAGIC_LEN + len(prefix) + length


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__

"""Files of named tensors (safetensors) and small JSON files, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ds_hymotion.errors import UserError

TEMPORARY = ".tmp"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill ``<path>.tmp``, then rename it: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all; what UTF-8 lacks (as in odd file names) becomes ``\\udc80``."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))

    write_atomically(path, write)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, keys in their order: the same value gives the same bytes. NaN is refused with ValueError."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, fix: str) -> Any:
    """The value of a JSON file.

    Raises:
        UserError: the file is missing or is not JSON; ``fix`` says what to do about it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {fix}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): {fix}") from None


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. The same tensors give the same bytes (but for metadata, whose order is not fixed).

    Raises:
        OSError: the place cannot be written.
    """
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(contiguous, str(temporary), metadata=metadata)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from None
        temporary.chmod(mode)  # safetensors leaves a file that only its owner may read

    write_atomically(path, write)


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, shapes and fp32 values, whatever file or order they came in."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().to("cpu", torch.float32).contiguous()
        total.update(f"{name} {list(value.shape)}\n".encode())
        total.update(value.view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def remove_temporary_files(folder: Path) -> None:
    """Delete what a killed write left behind in ``folder``; safetensors writes to ``.tmp`` and a few letters."""
    for path in [*folder.glob("*" + TEMPORARY), *folder.glob(TEMPORARY + "*")]:
        path.unlink(missing_ok=True)


class TensorFiles:
    """The safetensors files of one folder, memory-mapped on first use.

    Handles belong to the process that opened them: they are opened again after a fork and are not pickled.
    """

    def __init__(self, folder: Path, fix: str) -> None:
        self.folder = folder
        self.fix = fix
        self._handles: dict[str, Any] = {}
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "fix": self.fix}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], state["fix"])  # type: ignore[misc]

    def open(self, name: str) -> Any:
        """The ``safe_open`` handle of one file.

        Raises:
            UserError: the file is missing, cut short or not safetensors.
        """
        if self._process != os.getpid():
            self._handles, self._process = {}, os.getpid()
        if name not in self._handles:
            path = self.folder / name
            try:
                self._handles[name] = safe_open(str(path), framework="pt", device="cpu")
            except FileNotFoundError:
                raise UserError(f"{path} is missing: {self.fix}") from None
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path} is damaged ({error}): {self.fix}") from None
        return self._handles[name]

    def close(self) -> None:
        self._handles = {}

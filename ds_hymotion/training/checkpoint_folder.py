"""A checkpoint as a folder of files: how it is found, proven intact, read, and written so that no half one is left.

The folder ``step-00000400`` has safetensors files per kind of state, ``state.json`` and a ``manifest.json`` with every
file's size and SHA-256. It is written under another name, renamed when complete, and ``latest`` moves last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import read_json, save_tensors

VERSION = 1
CHUNK_BYTES = 1 << 30
RESERVE = 1 << 20  # headers, lists of shapes, the manifest
GONE = "a run keeps its last hymotion.training.keep_last checkpoints; give one of them"
FOLDER = re.compile(r"step-(\d{8})")


def checkpoint_folders(run: Path) -> list[Path]:
    """Complete-looking checkpoint folders of a run, oldest first."""
    root = run / "checkpoints"
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if FOLDER.fullmatch(path.name) and path.is_dir())


def require_outside(out: Path, run: Path) -> None:
    """Check that files written to ``out`` do not mix with a run's own.

    Raises:
        UserError: ``out`` is the run, or its folder of checkpoints or in it.
    """
    place, own = out.resolve(), run.resolve()
    if place == own or (own / "checkpoints") in (place, *place.parents):
        raise UserError(f"--out {out} belongs to the run itself; give another folder, such as {own}-out")


def step_of(folder: Path) -> int:
    """The step that a checkpoint's folder is named by."""
    return int(folder.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Path:
    """The newest intact checkpoint of a run: what ``latest`` names, or, with a warning, one before a damaged one.

    Raises:
        UserError: the run has none.
    """
    if not run.is_dir():
        raise UserError(f"{run}: no such folder; give the folder of a run that has saved a checkpoint")
    problems: list[str] = []
    for folder in reversed(checkpoint_folders(run)):
        problem = damage(folder)
        if problem is None:
            if problems:
                logging.warning("%s; the newest intact checkpoint is %s", "; ".join(problems), folder)
            return folder
        problems.append(problem)
    found = f" ({'; '.join(problems)})" if problems else ""
    raise UserError(f"{run}: no intact checkpoint{found}; give the folder of a run that has saved one")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files: dict[str, Any] = manifest["files"]
        if "state.json" not in files:
            return f"{folder}: its manifest names no state.json"
        for name, entry in files.items():
            path = folder / name
            if path.stat().st_size != entry["bytes"]:
                return f"{path}: {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
            if digest(path) != entry["sha256"]:
                return f"{path}: its SHA-256 is not the manifest's"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder}: {error}"
    return None


def digest(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 22):
            total.update(piece)
    return total.hexdigest()


def read_state(folder: Path) -> dict[str, Any]:
    """``state.json`` of a checkpoint that :func:`newest_checkpoint` found intact.

    Raises:
        UserError: it is gone since, or of another version.
    """
    state = read_json(folder / "state.json", GONE)
    if state.get("version") != VERSION:
        raise UserError(f"{folder}: checkpoint version {state.get('version')!r}; this program reads {VERSION}")
    return state


def read_kind(folder: Path, kind: str, wanted: Container[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """All whole tensors of one kind, or those whose names are ``wanted``, one at a time.

    Raises:
        UserError: a file that the manifest names is gone or damaged.
    """
    files = read_json(folder / "manifest.json", GONE).get("files", {})
    for path in sorted(folder / name for name in files if name.startswith(f"{kind}-")):
        try:
            with safe_open(path, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118
                    if wanted is None or name in wanted:
                        yield name, reader.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None


class FolderWriter:
    """The first rank's part of a save: a failure is kept until all ranks can hear of it.

    Attributes:
        problem: what went wrong; empty if nothing did.
        no_room: the same where the disk is too full to begin.
    """

    def __init__(self, folder: Path, active: bool) -> None:
        self.folder = folder
        self.partial = folder.with_name(".partial-" + folder.name)
        self.active = active
        self.problem = ""
        self.no_room = ""
        self._pending: dict[str, torch.Tensor] = {}
        self._kind = ""
        self._files: dict[str, dict[str, Any]] = {}

    def attempt(self, action: Callable[[], None]) -> None:
        if not self.active or self.problem:
            return
        try:
            action()
        except OSError as error:
            self.problem = str(error)
            shutil.rmtree(self.partial, ignore_errors=True)

    def begin(self, expected: int) -> None:
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        for stale in self.partial.parent.glob(".partial-*"):
            shutil.rmtree(stale, ignore_errors=True)
        free = shutil.disk_usage(self.partial.parent).free
        needed = expected + expected // 50 + RESERVE
        if free < needed:
            self.no_room = f"{needed:,} bytes needed, {free:,} bytes free on its disk"
            raise OSError(self.no_room)
        self.partial.mkdir()

    def add(self, kind: str, name: str, whole: torch.Tensor) -> None:
        if kind != self._kind:
            self.flush()
        self._kind = kind
        self._pending[name] = whole.cpu().clone()
        if sum(value.numel() * 4 for value in self._pending.values()) >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            count = sum(name.startswith(self._kind + "-") for name in self._files)
            path = self.partial / f"{self._kind}-{count:05d}.safetensors"
            save_tensors(path, self._pending)
            self._register(path)
            self._pending = {}

    def finish(self, state: dict[str, Any]) -> None:
        path = self.partial / "state.json"
        path.write_text(json.dumps(state, indent=1), encoding="utf-8")
        self._register(path)
        manifest = self.partial / "manifest.json"
        manifest.write_text(json.dumps({"files": self._files}, indent=1), encoding="utf-8")
        _sync(manifest)
        _sync(self.partial)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        os.rename(self.partial, self.folder)
        pointer = self.folder.parent / ".latest"
        pointer.write_text(self.folder.name + "\n", encoding="utf-8")
        _sync(pointer)
        os.replace(pointer, self.folder.parent / "latest")
        _sync(self.folder.parent)

    def _register(self, path: Path) -> None:
        _sync(path)
        self._files[path.name] = {"bytes": path.stat().st_size, "sha256": digest(path)}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

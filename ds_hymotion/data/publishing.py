"""Where a corpus may be written, and how a finished one takes the place of another without losing anything."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ds_hymotion.data.corpus import (
    ACTION_PICTURE,
    ACTION_REPORT,
    ACTION_TYPES_FILE,
    FORMAT,
    HEADER,
    PREPARE_AGAIN,
    REPORT,
    SAMPLES,
    STATISTICS,
    TEXT,
)
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import TEMPORARY, read_json, remove_temporary_files

PLAN = "plan.json"
_ACTIONS = (ACTION_TYPES_FILE, ACTION_REPORT, ACTION_PICTURE)
_FILES = ("motion-*.safetensors", "chunk-*.json", *_ACTIONS, SAMPLES, STATISTICS, REPORT, PLAN, HEADER)


def partial_folder(out: Path) -> Path:
    """Where a corpus grows before it is published."""
    return out.with_name(out.name + ".partial")


def replaced_folder(out: Path) -> Path:
    """Where a corpus lies for the moment in which another takes its place."""
    return out.with_name(f".{out.name}.replaced")


def already_made(out: Path, fingerprint: str, arguments: Mapping[str, Any], overwrite: bool) -> bool:
    """Whether ``out`` already is the wanted corpus. With ``overwrite`` it never is, but it must be some corpus.

    Raises:
        UserError: ``out`` is in use by something that must not be replaced.
    """
    if not out.exists() and not out.is_symlink():
        return False
    if not out.is_dir() or out.is_symlink():
        raise UserError(f"--out {out} is not a folder: name one that does not exist yet")
    names = sorted(path.name for path in out.iterdir())
    if not names:
        return False
    header = read_json(out / HEADER, PREPARE_AGAIN) if HEADER in names else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError(
            f"--out {out} holds other files ({names[0]}) and no corpus: name a folder that does not exist yet"
        )
    if overwrite:
        return False
    if header.get("fingerprint") != fingerprint:
        raise UserError(
            f"--out {out} holds a corpus made differently ({difference(header, arguments)}): "
            "choose another folder, or give --overwrite to replace it"
        )
    return True


def is_foreign(partial: Path) -> str | None:
    """The name of a file because of which ``partial`` cannot be an unfinished corpus; None if it can be one."""
    names = sorted(path.name for path in partial.iterdir())
    if HEADER in names or PLAN in names:
        return None
    return next((name for name in names if name != PLAN + TEMPORARY), None)


def clear(folder: Path) -> None:
    """Delete an unfinished corpus, its plan and header last, so that it stays recognisable until it is gone."""
    shutil.rmtree(folder / TEXT, ignore_errors=True)
    remove_temporary_files(folder)
    _delete_files(folder)


def publish(out: Path) -> None:
    """Rename the finished partial folder to ``out``; a corpus that lies there goes, its text features stay."""
    partial, replaced = partial_folder(out), replaced_folder(out)
    for path in [*partial.glob("chunk-*.json"), *partial.glob(PLAN)]:
        path.unlink()
    if out.exists() and any(out.iterdir()):
        os.replace(out, replaced)
    os.replace(partial, out)
    finish_replacement(out)


def finish_replacement(out: Path) -> None:
    """Carry an interrupted :func:`publish` to its end, or undo it where the new corpus is not in place.

    Text features of the replaced corpus move over: they are found by caption, so they stay right. Files that are not
    a corpus's own are left where they are.
    """
    replaced = replaced_folder(out)
    if not replaced.is_dir():
        return
    if not out.exists():
        os.replace(replaced, out)
        return
    for cache in sorted((replaced / TEXT).glob("*")):
        target = out / TEXT / cache.name
        if target.exists():
            shutil.rmtree(cache)
        else:
            target.parent.mkdir(exist_ok=True)
            os.replace(cache, target)
    if (replaced / TEXT).is_dir():
        (replaced / TEXT).rmdir()
    _delete_files(replaced)
    if not any(replaced.iterdir()):
        replaced.rmdir()


def fingerprint_of(*values: Any) -> str:
    """SHA-256 over JSON values; an iterator's are taken one by one, so that it may be long."""
    digest = hashlib.sha256()
    for value in values:
        for part in value if isinstance(value, Iterator) else (value,):
            digest.update(json.dumps(part, sort_keys=True).encode("utf-8") + b"\n")
    return digest.hexdigest()


def difference(made: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What tells two preparations apart, in words for a message."""
    before = made.get("arguments") or {}
    changed = [
        f"{name} was {before.get(name)!r}, is {arguments.get(name)!r}"
        for name in sorted({*before, *arguments})
        if before.get(name) != arguments.get(name)
    ]
    return "; ".join(changed) if changed else "its motion or caption files have changed"


def _delete_files(folder: Path) -> None:
    for pattern in _FILES:
        for path in sorted(folder.glob(pattern)):
            path.unlink()

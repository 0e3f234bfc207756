"""Motion files with planted damage, for the tests of what a preparation refuses."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def smplh(frames: int = 60, width: int = 156, rate: float = 60.0) -> dict[str, Any]:
    """The arrays of a healthy SMPL-H recording, slowly moving, of one second by default."""
    time = np.arange(frames)[:, None] / rate
    return {
        "poses": 0.3 * np.sin(time + np.arange(width)),
        "trans": np.concatenate([0.2 * time, 0 * time, 1 + 0 * time], axis=1),
        "betas": np.zeros(16),
        "gender": np.array("male"),
        "mocap_framerate": np.array(rate),
    }


def save(path: Path, **changes: Any) -> Path:
    """A recording of :func:`smplh` with some arrays changed, or left out where they are None."""
    arrays = {name: array for name, array in {**smplh(), **changes}.items() if array is not None}
    np.savez(path, **arrays)
    return path


def save_with_members(path: Path, members: Mapping[str, bytes], **changes: Any) -> Path:
    """A recording in which some members of the archive are given as bytes."""
    arrays = {name: array for name, array in {**smplh(), **changes}.items() if array is not None}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            if f"{name}.npy" not in members:
                content = io.BytesIO()
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=True)
                archive.writestr(f"{name}.npy", content.getvalue())
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def claiming(shape: str, content: bytes = b"", descr: str = "<f8") -> bytes:
    """An array whose header claims a shape, whatever its content."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def with_size_on_paper(path: Path, size: int) -> Path:
    """An archive whose directory says that ``poses`` has ``size`` bytes, which its array header confirms."""
    member = claiming(f"({size // 8},)")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("poses.npy", member)
        archive.filelist[0].file_size = len(member) + size
    return path


def patched(path: Path, **changes: Any) -> Path:
    """A healthy recording of which fields of all entries of the archive's directory were overwritten."""
    offsets = {"flags": (8, "<H"), "method": (10, "<H")}
    data = bytearray(save(path).read_bytes())
    place = data.find(b"PK\x01\x02")
    while place >= 0:
        for name, value in changes.items():
            offset, layout = offsets[name]
            struct.pack_into(layout, data, place + offset, value)
        place = data.find(b"PK\x01\x02", place + 4)
    path.write_bytes(bytes(data))
    return path

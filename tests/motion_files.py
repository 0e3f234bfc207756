"""Small motions and motion files that tests make themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.arguments import parse_flags
from ds_hymotion.data.check_against import Reference
from ds_hymotion.data.flags import PrepareArguments
from ds_hymotion.data.prepare import prepare
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import axis_angle_to_matrix


def swinging(frames: int = 40, fps: float = 60.0, seed: int = 0) -> Motion:
    """A body whose joints all swing slowly while it drifts; no two seeds alike."""
    random = torch.Generator().manual_seed(seed)
    time = torch.arange(frames, dtype=torch.float64)[:, None, None] / fps
    axes = torch.rand(1, 24, 3, generator=random, dtype=torch.float64) - 0.5
    rotations = axis_angle_to_matrix(axes * torch.sin(2 * time + axes.sum(dim=-1, keepdim=True)))
    translation = torch.rand(1, 3, generator=random) + time[:, 0] * torch.rand(1, 3, generator=random)
    return Motion(rotations.float(), translation.float(), fps)


def write_motion(folder: Path, name: str, captions: str | None = None, **motion: float) -> Path:
    """``folder/name.npz``, with ``captions`` as the content of a text file beside it."""
    path = folder / f"{name}.npz"
    write_amass(path, swinging(**motion))  # type: ignore[arg-type]
    if captions is not None:
        path.with_suffix(".txt").write_text(captions, encoding="utf-8")
    return path


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(data: Path, out: Path, *flags: str, workers: int = 1, reference: Reference | None = None) -> list[str]:
    """Prepare with the flags of ``launch/prepare.py``; what was printed."""
    given = ["--data_dir", str(data), "--out", str(out), "--workers", str(workers), *flags]
    said: list[str] = []
    prepare(parse_flags(PrepareArguments, given).preparation(), said.append, reference)
    return said


def report(corpus: Path) -> dict[str, Any]:
    """A corpus's ``report.json``."""
    return json.loads((corpus / "report.json").read_text())

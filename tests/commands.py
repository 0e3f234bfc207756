"""Running the scripts of launch/ in this process and as a person does."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ds_hymotion.errors import command_line
from tests.conftest import ROOT


def run_here(script: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Call a script's ``main`` in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    main = runpy.run_path(str(ROOT / "launch" / script))["main"]
    try:
        command_line(main)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def cpu_environment(folder: Path) -> dict[str, str]:
    """What a CPU run needs, with DeepSpeed's extensions under ``folder``."""
    return {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def run_command(command: list[str], folder: Path, seconds: float = 200) -> subprocess.CompletedProcess[str]:
    """Run a command in the project's root."""
    return subprocess.run(
        command, cwd=ROOT, env=cpu_environment(folder), capture_output=True, text=True, timeout=seconds, check=False
    )

"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks import RankPool

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of sample files and golden numbers beside the project; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no sample files and golden numbers at {folder}")
    return folder


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """The pool of rank processes; see :class:`tests.ranks.RankPool`."""
    pool = RankPool()
    yield pool
    pool.close()

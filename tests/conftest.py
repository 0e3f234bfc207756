"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from ds_hymotion.data.corpus import Corpus  # noqa: E402  the environment comes first
from tests.corpora import random_weights, wavy_corpus  # noqa: E402
from tests.ranks import RankPool  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of sample files and golden numbers beside the project; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no sample files and golden numbers at {folder}")
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Ten clips of different lengths; a file of tests may have a fixture of its own."""
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34, 40, 44, 52, 57, 61, 66])


@pytest.fixture(scope="module")
def weights(corpus: Corpus) -> Path:
    """Weights of the small network for the corpus, random in every tensor."""
    return random_weights(corpus.folder.parent / "weights.safetensors", corpus)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """The pool of rank processes; see :class:`tests.ranks.RankPool`."""
    pool = RankPool()
    yield pool
    pool.close()

"""A folder full of hostile files through the real script: each is named with its reason, and nothing is lost."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from ds_hymotion.data.corpus import Corpus, Sample
from tests.commands import run_command
from tests.hostile_motions import CASES, Case


@dataclass(frozen=True)
class Prepared:
    """What the script made of all cases at once."""

    corpus: Corpus
    report: dict[str, Any]
    output: str
    errors: str
    files: frozenset[str]

    def samples(self, case: str) -> dict[str, Sample]:
        """The samples of a case, by name below its folder."""
        prefix = f"{case}__"
        return {
            sample.id.removeprefix(prefix): sample
            for sample in self.corpus.samples
            if sample.source.startswith(f"{case}/")
        }

    def drops(self, case: str) -> list[dict[str, Any]]:
        return [drop for drop in self.report["dropped"] if drop["file"].startswith(f"{case}/")]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("hostile")
    for case in CASES:
        (folder / "data" / case.name).mkdir(parents=True)
        case.make(folder / "data" / case.name)
    command = [sys.executable, "launch/prepare.py", "--data_dir", str(folder / "data"), "--out", str(folder / "corpus"),
               "--workers", "2", "--split", "0.5", "0.25", "0.25"]  # fmt: skip
    done = run_command(command, folder, seconds=100)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "corpus" / "report.json").read_text(encoding="utf-8"))
    names = [path for path in (folder / "data").rglob("*") if path.suffix.lower() == ".npz" and path.name[0] != "."]
    files = frozenset(path.relative_to(folder / "data").as_posix() for path in names)
    return Prepared(Corpus.open(folder / "corpus"), report, done.stdout, done.stderr, files)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60 and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(prepared: Prepared, case: Case) -> None:
    found = {
        name: [caption.text for caption in sample.captions] for name, sample in prepared.samples(case.name).items()
    }
    readable = {name.encode("utf-8", "backslashreplace").decode(): texts for name, texts in case.kept.items()}
    assert found == readable
    drops = prepared.drops(case.name)
    told = {}
    for drop in drops:
        words = f"{drop['reason']}, {drop['detail']}"
        told[drop["file"].partition("/")[2]] = told[(drop["id"] or "").partition("__")[2]] = words
    for name, words in case.dropped.items():
        assert words in told.get(name, "nothing"), (name, told)
    assert len(drops) == len(case.dropped)
    lines = [line for line in prepared.report["bad_lines"] if f"/{case.name}/" in line]
    assert len(lines) == len(case.bad_lines)
    for line, words in zip(lines, case.bad_lines, strict=True):
        assert words in line


def test_nothing_is_lost(prepared: Prepared) -> None:
    report, samples = prepared.report, prepared.corpus.samples
    recordings = {sample.source for sample in samples}
    refused = {drop["file"] for drop in report["dropped"]}
    assert {file for file in prepared.files if file[:-4] not in recordings and file not in refused} == set()
    assert report["given"]["files"] == report["given"]["clips"] == len(prepared.files) > 100
    captions = sum(len(sample.captions) for sample in samples) + sum(drop["captions"] for drop in report["dropped"])
    assert report["given"]["captions"] == captions > 100
    assert sum(report["dropped_by_reason"].values()) == len(report["dropped"])


def test_people_see_counts_and_no_traceback(prepared: Prepared) -> None:
    assert "Traceback" not in prepared.errors and "Error" not in prepared.errors
    for reason, count in prepared.report["dropped_by_reason"].items():
        assert f"{count:,} {reason}" in prepared.output
    assert bool(prepared.corpus.mean.isfinite().all() and prepared.corpus.std.isfinite().all())


def test_the_outlier_is_reported_by_file(prepared: Prepared) -> None:
    found = {glitch["file"]: glitch["joint"] for glitch in prepared.report["velocity_outliers"]}
    assert found == {"velocity_outlier/x.npz": "left_ankle"}


def test_a_mirrored_pair_shares_its_split(prepared: Prepared) -> None:
    assert len({sample.split for sample in prepared.corpus.samples}) == 3
    assert len({sample.split for sample in prepared.samples("mirrored_pair").values()}) == 1


def test_names_that_are_no_unicode_open_again(prepared: Prepared) -> None:
    (sample,) = prepared.samples("name_that_is_no_unicode").values()
    assert os.fsencode(sample.source) == b"name_that_is_no_unicode/caf\xe9"
    assert prepared.corpus.features(sample).shape == (30, 219)

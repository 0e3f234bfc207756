"""The home of measured claims: rows, their table and JSON, the dispatcher, and the benchmark of preparing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import read_amass
from ds_hymotion.reports.benchmarks import prepare as prepare_benchmark
from ds_hymotion.reports.measuring.dispatcher import names, run_benchmark
from ds_hymotion.reports.measuring.process_tree import measure
from ds_hymotion.reports.measuring.row import Row, as_json, table
from tests.commands import run_here


def test_rows_as_table_and_json() -> None:
    rows = [Row("rate", 1234.5678, "files/s", 617.2839), Row("error", 0.0001234, conditions={"steps": 3})]
    assert rows[0].ratio == pytest.approx(2) and rows[1].ratio is None
    assert Row("x", 1.0, against=4.0, ratio=0.7).ratio == 0.7
    lines = table(rows).splitlines()
    assert [line.split() for line in lines] == [
        ["figure", "value", "unit", "against", "ratio", "conditions"],
        ["rate", "1,235", "files/s", "617.3", "2"],
        ["error", "0.0001234", "steps", "3"],
    ]
    assert len({line.index(word) for line, word in zip(lines[::2], ("conditions", "steps"), strict=True)}) == 1
    found = as_json("x", rows)
    assert found["benchmark"] == "x"
    assert set(found["rows"][0]) == {"figure", "value", "unit", "against", "ratio", "conditions"}
    assert found["rows"][1]["conditions"]["steps"] == 3 and found["rows"][1]["conditions"]["cores"] >= 1


def test_every_benchmark_can_be_run_by_name() -> None:
    assert "prepare" in names()
    for name in names():
        with pytest.raises(SystemExit) as end:
            run_benchmark([name, "--help"])
        assert end.value.code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a benchmark: .*prepare"),
        (["--json", "x.json"], "name a benchmark"),
        (["speed"], "benchmark 'speed' is unknown: legal are .*prepare"),
        (["prepare", "--files", "many"], "argument --files: invalid int value: 'many'"),
        (["prepare", "--frobnicate", "1"], "unrecognized arguments: --frobnicate"),
        (["prepare", "--json", "no/such/folder/x.json"], "is in no folder that exists"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run_benchmark(arguments)


def test_memory_and_time_of_a_command_with_a_child() -> None:
    child = "import time; held = bytearray(60 * 2**20); time.sleep(0.6)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    found = measure([sys.executable, "-c", parent])
    assert found.seconds > 0.6 and found.cpu_seconds > 0
    assert found.memory > found.largest > 60 * 2**20
    with pytest.raises(UserError, match="ended with 1: SystemExit: no|ended with 1: no"):
        measure([sys.executable, "-c", "raise SystemExit('no')"])


def test_generated_recordings_are_read(tmp_path: Path) -> None:
    prepare_benchmark.write_recording(tmp_path / "a.npz", 3, 0.5)
    clip = read_amass(tmp_path / "a.npz")
    assert (clip.motion.frames, clip.rate) == (60, 120.0)


@pytest.mark.timeout(200)
def test_preparing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "figures.json"
    given = ["prepare", "--files", "3", "--seconds", "0.5", "--folder", str(tmp_path), "--json", str(target)]
    assert run_here("benchmark.py", given, monkeypatch) == 0
    rows = {(row["figure"], row["conditions"]["workers"]): row for row in json.loads(target.read_text())["rows"]}
    assert rows["rate", 2]["ratio"] == pytest.approx(rows["rate", 2]["value"] / rows["rate", 1]["value"])
    assert rows["rate", 1]["value"] == pytest.approx(3 / rows["wall clock", 1]["value"])
    assert 50 < rows["peak memory, largest process", 1]["value"] < 2000
    assert "peak memory, all processes" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]

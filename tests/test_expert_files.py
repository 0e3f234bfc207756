"""Weights with experts as files: sampled with one of them, and one of them taken out."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.presets import preset
from ds_hymotion.model.released import load_released
from ds_hymotion.model.temporal import build
from ds_hymotion.training.weights import Provenance, load_model, read_weights, save_weights
from tests.commands import run_here
from tests.corpora import SMALL


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(ModelConfig(**SMALL, input_dim=201), expert_names=("WALK", "SIT"), expert_blocks=1)
    generator = build(config)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.1)
    path = tmp_path_factory.mktemp("experts") / "weights.safetensors"
    save_weights(path, generator.state_dict(), Provenance(asdict(config), "hymotion-201", 30.0, "hashed", "tiny", 7))
    return path


def test_weights_name_their_experts(weights: Path) -> None:
    assert read_weights(weights).experts == ("WALK", "SIT")


def sampled(
    weights: Path, out: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> tuple[int, dict[str, bytes]]:
    common = ["--prompt", "a person sits", "--steps", "2", "--frames", "20", "--formats", "npz", "--guidance", "2"]
    code = run_here("sample.py", ["--model", str(weights), "--out", str(out), *common, *flags], monkeypatch)
    return code, {path.name: path.read_bytes() for path in sorted(out.glob("*.npz"))}


def test_an_expert_samples_what_its_merged_network_does(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--action", "sit", "--format", "safetensors", "--out", str(tmp_path / "sit")]
    assert run_here("export.py", [str(weights), *flags], monkeypatch) == 0
    plain = tmp_path / "sit" / "weights.safetensors"
    assert load_model(plain).provenance.config.expert_names == ()
    one = sampled(weights, tmp_path / "one", monkeypatch, ["--action", "SIT"])
    other = sampled(weights, tmp_path / "other", monkeypatch, ["--action", "WALK"])
    alone = sampled(plain, tmp_path / "alone", monkeypatch, [])
    assert one == alone and one[0] == 0 and len(one[1]) == 1
    assert one != other
    capsys.readouterr()
    for flags, words in ([], "--action, of WALK, SIT"), (["--action", "RUN"], "--action RUN: .* WALK, SIT"):
        assert sampled(weights, tmp_path / "no", monkeypatch, flags) == (2, {})
        assert re.search(words, capsys.readouterr().err)
    assert sampled(plain, tmp_path / "no", monkeypatch, ["--action", "SIT"]) == (2, {})


def test_an_expert_becomes_a_checkpoint_of_the_released_format(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "walk"
    assert run_here("export.py", [str(weights), "--action", "WALK", "--out", str(out)], monkeypatch) == 0
    assert {path.name for path in out.iterdir()} == {"latest.ckpt", "config.yml", "stats", "provenance.json"}
    released = load_released(out / "latest.ckpt")
    expected = build(preset("tiny", input_dim=201)).state_dict()
    assert released.state.keys() == expected.keys() and released.global_step == 7


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--action", "RUN", "--out", "x"], "use one of WALK, SIT"),
        (["--out", "x"], "has experts, which the release does not know; take one by --action, of WALK, SIT"),
        (["--action", "SIT"], "--out is missing"),
        (["--action", "SIT", "--out", "x", "--no_ema"], "is a file: --checkpoint and --no_ema want the folder"),
    ],
)
def test_mistakes(
    weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert run_here("export.py", [str(weights), *flags], monkeypatch) == 2
    assert words in capsys.readouterr().err

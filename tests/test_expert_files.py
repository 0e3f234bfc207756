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
from ds_hymotion.training.weights import Provenance, load_model, save_weights, trained_experts
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
    assert trained_experts(weights) == ("WALK", "SIT")


def sampled(
    weights: Path, out: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> tuple[int, dict[str, bytes]]:
    common = ["--prompt", "a person sits", "--steps", "2", "--frames", "20", "--formats", "npz", "--guidance", "2"]
    code = run_here("sample.py", ["--model", str(weights), "--out", str(out), *common, *flags], monkeypatch)
    return code, {path.name: path.read_bytes() for path in sorted(out.glob("*.npz"))}


def test_an_expert_samples_what_its_merged_network_does(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "sit.safetensors"
    assert (
        run_here("merge_expert.py", ["--model", str(weights), "--action", "sit", "--out", str(plain)], monkeypatch) == 0
    )
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
    out = tmp_path / "walk.ckpt"
    assert (
        run_here("merge_expert.py", ["--model", str(weights), "--action", "WALK", "--out", str(out)], monkeypatch) == 0
    )
    released = load_released(out)
    expected = build(preset("tiny", input_dim=201)).state_dict()
    assert released.state.keys() == expected.keys() and released.global_step == 7


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--action", "RUN", "--out", "x.ckpt"], "use one of WALK, SIT"),
        (["--action", "SIT", "--out", "x.pt"], "ends with .safetensors or .ckpt"),
        (["--action", "SIT"], "--out is missing"),
    ],
)
def test_mistakes(
    weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert run_here("merge_expert.py", ["--model", str(weights), *flags], monkeypatch) == 2
    assert words in capsys.readouterr().err

"""Weights taken away from a run's checkpoints: as the release's tools load them, with what belongs to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.model.adapters import A, B
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import preset
from ds_hymotion.model.release_config import release_config, write_release_config
from ds_hymotion.model.released import load_released, save_released
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.encoding import encode_captions
from ds_hymotion.text.hashed import HashedTextEncoder
from ds_hymotion.training.checkpoint import checkpoint_folders, newest_checkpoint
from ds_hymotion.training.export import Export
from ds_hymotion.training.legal_files import copy_legal_files
from ds_hymotion.training.weights import load_model, load_weights
from tests.commands import run_here
from tests.corpora import SMALL, wavy_corpus
from tests.golden_network import golden_config, golden_generator, golden_numbers
from tests.ranks import RankPool
from tests.runs import final_weights, run_settings, train

BESIDE = {"null_vtxt_feat", "null_ctxt_input", "special_game_vtxt_feat", "special_game_ctxt_feat", "mean", "std"}


@pytest.fixture(scope="module")
def golden_corpus(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Motions in 201 channels, with text features as narrow as the golden network's."""
    corpus = wavy_corpus(tmp_path_factory.mktemp("golden"), [20, 24, 31, 40], representation="hymotion-201")
    config = golden_config(golden_numbers(shared))
    encoder = HashedTextEncoder(config.ctxt_input_dim, config.vtxt_input_dim)
    captions = [caption.text for sample in corpus.samples for caption in sample.captions]
    encode_captions(TextCache(corpus.text_cache_folder("narrow")), captions, encoder, torch.float32)
    return corpus


@pytest.mark.parametrize(
    ("world", "model", "stages", "zero"),
    [(1, 1, 1, 0), *[pytest.param(*case, marks=pytest.mark.full) for case in ((4, 2, 2, 1), (2, 2, 1, 2))]],
)
def test_golden_weights_go_through_a_run_into_a_plain_file(
    shared: Path, ranks: RankPool, golden_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], world: int, model: int, stages: int, zero: int,
) -> None:  # fmt: skip
    """Trained at a rate of zero: the weights come out as they went in, from any layout."""
    base, run, out = tmp_path / "release", tmp_path / "run", tmp_path / "out"
    generator = golden_generator(golden_numbers(shared))
    with torch.no_grad():
        generator.mean.copy_(golden_corpus.mean)
        generator.std.copy_(golden_corpus.std + 1)
        generator.special_game_ctxt_feat.fill_(0.25)
    save_released(base / "latest.ckpt", generator, 7, 9)
    for name in ("License.txt", "NOTICE"):
        (base / name).write_text(f"the base's own {name}\n")
    config = golden_config(golden_numbers(shared))
    sizes = {name: getattr(config, name) for name in ("feat_dim", "num_layers", "num_heads", "ctxt_input_dim")}
    settings = run_settings(
        hymotion__model={"preset": "tiny", **sizes, "vtxt_input_dim": 24, "init_from": str(base / "latest.ckpt")},
        hymotion__text__encoder="narrow",
        hymotion__training__joint_groups=None,
        hymotion__parallel={"model": model, "pipeline": stages},
        hymotion__pipeline={"max_imbalance": 9},
        zero_optimization={"stage": zero},
        optimizer__params={"lr": 0.0},
    )
    ranks.run(world, train, settings, golden_corpus.folder, run)
    assert run_here("export.py", [str(run), "--ema", "--out", str(out)], monkeypatch) == 0
    assert "copied from the base weights: License.txt, NOTICE" in capsys.readouterr().out

    content = torch.load(out / "latest.ckpt", weights_only=True)
    assert set(content) == {"model_state_dict", "epoch", "global_step"} and content["global_step"] == 2
    state, expected = content["model_state_dict"], generator.state_dict()
    names = {"motion_transformer." + name.partition("/")[2] for name in golden_numbers(shared) if "weight/" in name}
    assert set(state) == names | BESIDE
    assert all(torch.equal(state[name], expected[name]) and state[name].dtype == torch.float32 for name in state)

    written = yaml.safe_load((out / "config.yml").read_text())
    assert written == release_config(config, 30.0)
    assert np.load(out / "stats" / "Mean.npy").shape == np.load(out / "stats" / "Std.npy").shape == (201,)
    assert np.array_equal(np.load(out / "stats" / "Std.npy"), expected["std"].numpy())
    assert (out / "License.txt").read_text() == (run / "License.txt").read_text() == "the base's own License.txt\n"
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["base"] == str(base / "latest.ckpt") and provenance["steps"] == 2
    assert provenance["training"]["hymotion"]["model"]["feat_dim"] == 48


def test_the_release_config_names_the_release() -> None:
    """Values of the released file, as the reference has them."""
    content = release_config(preset("hy-motion-1.0"), 30.0)
    assert list(content) == ["train_pipeline", "train_pipeline_args", "network_module", "network_module_args"]
    network = content["network_module_args"]
    sizes = {"feat_dim": 1280, "num_layers": 27, "num_heads": 20, "input_dim": 201, "ctxt_input_dim": 4096}
    fixed = {"mask_mode": "narrowband", "apply_rope_to_single_branch": False, "time_factor": 1000.0, "dropout": 0.0}
    assert {**network, **sizes, **fixed, "vtxt_input_dim": 768, "mlp_ratio": 4.0} == network
    assert content["train_pipeline_args"]["train_frames"] == 360
    other = release_config(preset("tiny", band_frames=45), 30.0)
    assert other["network_module_args"]["narrowband_length"] == 1.5


@pytest.fixture(scope="module")
def run(ranks: RankPool, corpus: Corpus, weights: Path) -> Path:
    """A finished run with two checkpoints."""
    folder = corpus.folder.parent / "run"
    settings = run_settings(weights, hymotion__training__save_steps=1, hymotion__training__max_steps=2)
    ranks.run(1, train, settings, corpus.folder, folder)
    return folder


@pytest.fixture(scope="module")
def adapters(ranks: RankPool, corpus: Corpus, weights: Path) -> Path:
    """A finished run of adapters."""
    folder = corpus.folder.parent / "adapters"
    ranks.run(1, train, run_settings(weights, hymotion__lora={"rank": 3, "alpha": 6}), corpus.folder, folder)
    return folder


def test_average_or_weights_of_any_checkpoint(run: Path, tmp_path: Path) -> None:
    older, newer = checkpoint_folders(run)
    said: list[str] = []
    Export(run, tmp_path / "a", "safetensors").write(said.append)
    Export(run, tmp_path / "b", "safetensors", average=False).write(said.append)
    Export(run, tmp_path / "c", "safetensors", checkpoint=older.name).write(said.append)
    assert [line.split(": ")[1] for line in said if " of step " in line] == [
        "108 tensors, average of step 2",
        "108 tensors, weights of step 2",
        "108 tensors, average of step 1",
    ]
    a, b, c = (load_weights(tmp_path / name / "weights.safetensors")[0] for name in "abc")
    for name, value in final_weights(run, "ema").items():
        assert torch.equal(a[name], value) and torch.equal(b[name], final_weights(run)[name])
    name = "motion_transformer.input_encoder.weight"
    assert not torch.equal(a[name], b[name]) and not torch.equal(a[name], c[name])
    model, finished = load_model(tmp_path / "a" / "weights.safetensors"), load_model(run)
    assert model.provenance == finished.provenance
    assert all(torch.equal(x, y) for x, y in zip(model.generator.parameters(), finished.generator.parameters()))


def test_a_damaged_checkpoint_gives_way_or_is_named(run: Path, tmp_path: Path) -> None:
    older, newer = checkpoint_folders(run)
    state = newer / "state.json"
    content = state.read_text()
    try:
        state.write_text(content + " ")
        said: list[str] = []
        Export(run, tmp_path / "out").write(said.append)
        assert said[0].startswith("note: these are smpl24-rotmat motions") and said[1].endswith("average of step 1")
        assert said[2].startswith("no licence or notice beside")
        with pytest.raises(UserError, match=f"--checkpoint {newer.name}: .*state.json.*give another"):
            Export(run, tmp_path / "out", checkpoint=newer.name).write(print)
    finally:
        state.write_text(content)


def test_adapters_are_exported_merged_or_alone(adapters: Path, weights: Path, tmp_path: Path) -> None:
    Export(adapters, tmp_path / "alone", "safetensors").write(print)
    assert {path.name for path in (tmp_path / "alone").iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "provenance.json",
    }
    Export(adapters, tmp_path / "merged", merge_lora=True).write(print)
    state = torch.load(tmp_path / "merged" / "latest.ckpt", weights_only=True)["model_state_dict"]
    base, average = load_weights(weights)[0], final_weights(adapters, "ema")
    assert state.keys() == base.keys()
    changed = 0
    for name, value in base.items():
        module = name.removesuffix(".weight")
        if module + A in average:
            value = value + 2.0 * average[module + B] @ average[module + A]
            changed += int(not torch.equal(state[name], base[name]))
        assert float((state[name] - value).abs().max()) <= 1e-6, name
    assert changed == len(average) // 2 > 10
    a, b = load_weights(tmp_path / "alone" / "adapter_model.safetensors")[0], state
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_a_file_of_weights_is_exported_like_its_run(run: Path, adapters: Path, tmp_path: Path) -> None:
    for name, source, merge in (("plain", run, False), ("adapted", adapters, True)):
        file = source / ("adapter_model.safetensors" if merge else "weights.safetensors")
        Export(source, tmp_path / name / "run", merge_lora=merge).write(print)
        Export(file, tmp_path / name / "file", merge_lora=merge).write(print)
        a, b = (load_released(tmp_path / name / kind / "latest.ckpt").state for kind in ("run", "file"))
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_released_file_of_other_motions_samples_like_its_run(run: Path, tmp_path: Path) -> None:
    """Its width tells the representation, its config.yml the rest."""
    Export(run, tmp_path / "out").write(print)
    model, finished = load_model(tmp_path / "out" / "latest.ckpt"), load_model(run)
    assert model.representation.name == finished.representation.name == "smpl24-rotmat"
    assert model.provenance.config == finished.provenance.config
    assert (model.provenance.text_encoder, model.provenance.fps) == ("hashed", 30.0)
    assert all(torch.equal(x, y) for x, y in zip(model.generator.parameters(), finished.generator.parameters()))
    config = tmp_path / "out" / "config.yml"
    config.write_text(config.read_text().replace("train_frames: 360", "train_frames: many"))
    with pytest.raises(UserError, match="config.yml: train_frames = 'many' must be a number above 0, such as 360"):
        load_model(tmp_path / "out" / "latest.ckpt")


def test_a_run_without_checkpoints_is_exported_from_its_file(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    Export(tmp_path / "run", tmp_path / "out").write(print)
    assert load_released(tmp_path / "out" / "latest.ckpt").global_step == 2
    with pytest.raises(UserError, match="out holds latest.ckpt of another export; give another folder, or remove it"):
        Export(tmp_path / "run", tmp_path / "out", "safetensors").write(print)


@pytest.mark.parametrize("sizes", [{"band_frames": 0}, {"mlp_ratio": 2.67}, {"text_position": 200}])
def test_exported_sizes_are_read_back(tmp_path: Path, sizes: dict[str, Any]) -> None:
    config = preset("tiny", **SMALL, input_dim=201, **sizes)
    save_released(tmp_path / "latest.ckpt", MotionGenerator(config), 0, 0)
    write_release_config(tmp_path, config, 20.0)
    model = load_model(tmp_path)
    assert (model.provenance.config, model.provenance.fps) == (config, 20.0)


MISTAKES = [
    ({"format": "gguf"}, "--format 'gguf' is not one of latest.ckpt, safetensors"),
    ({"checkpoint": "step-9"}, "--checkpoint step-9: not in .*give one of step-00000001, step-00000002"),
    ({"merge_lora": True}, "--merge_lora: .*trained whole weights, no adapters; leave it out"),
    ({"action": "SIT"}, "--action SIT: .* has no experts; leave it out"),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_mistakes(run: Path, tmp_path: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Export(run, tmp_path / "out", **change).write(print)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_more_mistakes(run: Path, adapters: Path, tmp_path: Path) -> None:
    for inside in (run, run / "checkpoints", run / "checkpoints" / "step-00000002" / "x"):
        with pytest.raises(UserError, match="belongs to the run itself; give another folder"):
            Export(run, inside).write(print)
    with pytest.raises(UserError, match="trained adapters; add --merge_lora, or take --format safetensors"):
        Export(adapters, tmp_path / "out").write(print)
    with pytest.raises(UserError, match="add --merge_lora, or take --format safetensors of the run's folder"):
        Export(adapters / "adapter_model.safetensors", tmp_path / "out", "safetensors").write(print)
    with pytest.raises(UserError, match="nothing.safetensors: no such file; give the weights.safetensors"):
        Export(tmp_path / "nothing.safetensors", tmp_path / "out").write(print)
    with pytest.raises(UserError, match="no intact checkpoint"):
        Export(tmp_path, tmp_path / "out").write(print)
    with pytest.raises(UserError, match="holds adapters of nowhere.ckpt, which cannot be read"):
        Export(adapters, tmp_path / "out", merge_lora=True, base="nowhere.ckpt").write(print)
    assert newest_checkpoint(run).name == "step-00000002"


def test_a_release_takes_the_licence_of_its_repository(tmp_path: Path) -> None:
    release = tmp_path / "hub" / "HY-Motion-1.0"
    release.mkdir(parents=True)
    (tmp_path / "hub" / "License.txt").write_text("of the repository")
    assert copy_legal_files(str(release / "weights.safetensors"), tmp_path / "out") == []
    (release / "latest.ckpt").touch()
    assert copy_legal_files(str(release / "latest.ckpt"), tmp_path / "out") == ["License.txt"]
    (release / "NOTICE").write_text("of the release")
    assert copy_legal_files(str(release / "latest.ckpt"), tmp_path / "out") == ["NOTICE"]

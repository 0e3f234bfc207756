"""Text encoders inside a run: what is frozen costs and changes nothing, what is trained is saved and found again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.live import TextTower
from ds_hymotion.text.qwen_clip import QwenClipEncoder
from ds_hymotion.text.sources import EncoderSources
from ds_hymotion.text.tower_weights import TOWER, TOWER_FILE, read_tower
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.text import fit_encoder, text_source, trained_text
from ds_hymotion.training.weights import load_weights, run_weights
from tests.commands import run_here
from tests.corpora import SMALL, random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import SGD, final_weights, largest_difference, logged, run_settings, train
from tests.tiny_text import CLIP_WIDTH, QWEN_WIDTH, tiny_sources

SIZES = {**SMALL, "ctxt_input_dim": QWEN_WIDTH, "vtxt_input_dim": CLIP_WIDTH}
LAYERS, FROZEN = 4, 3
ROUNDED = "rounded"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> EncoderSources:
    return tiny_sources(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, sources: EncoderSources) -> Corpus:
    corpus = wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34, 40, 44, 52])
    captions = [caption.text for sample in corpus.samples for caption in sample.captions]
    for name, dtype in (("qwen_clip", torch.float32), (ROUNDED, torch.bfloat16)):
        TextCache(corpus.text_cache_folder(name)).write(captions, QwenClipEncoder(sources), dtype=dtype)
    return corpus


@pytest.fixture(scope="module")
def weights(corpus: Corpus) -> Path:
    return random_weights(corpus.folder.parent / "weights.safetensors", corpus, SIZES)


def settings(weights: Path, text: dict[str, Any], **changes: Any) -> dict[str, Any]:
    models = {f"hymotion__model__{name}": size for name, size in SIZES.items()}
    return run_settings(weights, hymotion__text=text, **models, **changes)


def live(sources: EncoderSources, train_upper: bool = False, frozen_layers: int = FROZEN) -> dict[str, Any]:
    return {
        "mode": "live",
        "encoder": "qwen_clip",
        "qwen": sources.qwen,
        "clip": sources.clip,
        "system_prompt_file": sources.system_prompt_file,
        "encoder_dtype": sources.dtype,
        "train_upper_layers": train_upper,
        **({"frozen_layers": frozen_layers} if train_upper else {}),
    }


def watched(settings: dict[str, Any], corpus: Path, output: Path) -> dict[str, Any]:
    """Train on this rank, and report what became of the text encoders and of the optimizer's memory."""
    mesh = Mesh.current()
    output.mkdir(parents=True, exist_ok=True)
    run = TrainingRun(RunConfig(settings, "test", ranks=mesh.data_size), Corpus.open(corpus), output, mesh)
    tower = run.engine.objective.text_tower
    before = {name: value.detach().clone() for name, value in tower.frozen_parameters().items()}
    run.train()
    optimizer = run.engine.engine.basic_optimizer
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    return {
        "moved": [name for name, value in tower.frozen_parameters().items() if not torch.equal(value, before[name])],
        "with gradient": [
            name for name, value in tower.frozen_parameters().items() if value.requires_grad or value.grad is not None
        ],
        "frozen": sum(value.numel() for value in before.values()),
        "trained": {name: value.numel() for name, value in run.engine.parameters.items()},
        "masters": sum(value.numel() for group in optimizer.param_groups for value in group["params"]),
        "moments": sum(value.numel() for value in state if torch.is_tensor(value) and value.dim() > 0),
    }


def refusal(settings: dict[str, Any], corpus: Path, output: Path, resume: bool = False) -> str:
    """What a user reads where a training is refused; empty where it runs."""
    try:
        train(settings, corpus, output, resume)
    except UserError as error:
        return str(error)
    return ""


def test_mixed_corpora_train_alike_on_live_and_cached_text(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path
) -> None:
    """Nine clips beside seven, the captions of two of them in the other corpus's cache alone."""
    other = wavy_corpus(tmp_path / "other", [21, 24, 27, 32, 35, 41, 45, 48, 53])
    captions = [caption.text for sample in other.samples for caption in sample.captions]
    TextCache(other.text_cache_folder("qwen_clip")).write(captions, QwenClipEncoder(sources), dtype=torch.float32)
    changes: dict[str, Any] = {
        "hymotion__data": {"mix": [{"corpus": str(other.folder)}]},
        "hymotion__training__max_steps": 4,
    }
    for name, text in (("live", live(sources)), ("cached", {"encoder": "qwen_clip"})):
        ranks.run(2, train, settings(weights, text, **changes), corpus.folder, tmp_path / name)
    assert logged(tmp_path / "live", "clips") == logged(tmp_path / "cached", "clips")
    assert logged(tmp_path / "live", "epoch") == [0, 0, 0, 0]
    assert logged(tmp_path / "live") == pytest.approx(logged(tmp_path / "cached"), rel=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_frozen_encoders_cost_nothing_and_stay(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path, stage: int
) -> None:
    reports = ranks.run(
        2, watched, settings(weights, live(sources), zero_optimization={"stage": stage}), corpus.folder, tmp_path
    )
    for report in reports:
        assert report["moved"] == [] and report["with gradient"] == []
        assert report["frozen"] > 10_000 and not any(name.startswith(TOWER) for name in report["trained"])
    trained = sum(reports[0]["trained"].values())
    masters, moments = (sum(report[kind] for report in reports) for kind in ("masters", "moments"))
    # Whole on every rank without ZeRO; with it once over all ranks, padded to equal slices.
    copies, padding = (2, 0) if stage == 0 else (1, 64)
    assert copies * trained <= masters <= copies * trained + padding
    assert moments == 2 * masters
    start, end = load_weights(weights)[0], final_weights(tmp_path)
    assert end.keys() == start.keys() - {"mean", "std", "special_game_vtxt_feat", "special_game_ctxt_feat"}
    for name in ("ctxt_encoder.weight", "vtxt_encoder.linears.0.weight", "vtxt_encoder.linears.2.weight"):
        name = f"motion_transformer.{name}"
        assert float((end[name] - start[name]).abs().max()) > 1e-3, name
    assert not (tmp_path / TOWER_FILE).exists()


@pytest.mark.parametrize("world", [1, 2])
def test_cached_and_live_have_equal_losses(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path, world: int
) -> None:
    changes: dict[str, Any] = {
        "hymotion__training__max_steps": 4,
        "hymotion__flow__timesteps_per_sample": 2,
        "hymotion__evaluation": {"eval_steps": 2, "split": "train"},
    }
    runs = {}
    for name, text in (
        ("exact", {"encoder": "qwen_clip"}),
        ("rounded", {"encoder": ROUNDED}),
        ("live", live(sources)),
        ("live upper", live(sources, train_upper=True)),
    ):
        runs[name] = tmp_path / name
        ranks.run(world, train, settings(weights, text, **changes), corpus.folder, runs[name])
    losses = {name: logged(run) for name, run in runs.items()}
    assert losses["live"] == pytest.approx(losses["exact"], rel=1e-5)
    assert losses["rounded"] == pytest.approx(losses["exact"], rel=2e-3)
    assert losses["rounded"] != pytest.approx(losses["exact"], rel=1e-6)
    assert losses["live upper"][0] == pytest.approx(losses["exact"][0], rel=1e-5), (
        "the first step's are not trained yet"
    )
    assert losses["live upper"][1] != pytest.approx(losses["exact"][1], rel=1e-5)
    assert largest_difference(final_weights(runs["live"]), final_weights(runs["exact"])) < 1e-5


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_upper_layers_have_the_gradients_of_one_process(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path, stage: int
) -> None:
    # Seven clips by four: a step with a rank that has none.
    job = settings(
        weights,
        live(sources, train_upper=True),
        optimizer={**SGD, "params": {"lr": 0.05}},
        zero_optimization={"stage": stage},
        train_batch_size=2,
        hymotion__training__max_steps=4,
    )
    ranks.run(1, train, job, corpus.folder, tmp_path / "alone")
    reports = ranks.run(2, watched, job, corpus.folder, tmp_path / "together")
    assert all(report["moved"] == [] and report["with gradient"] == [] for report in reports)
    one, two = final_weights(tmp_path / "alone"), final_weights(tmp_path / "together")
    assert largest_difference(one, two) < 1e-5
    upper = {name for name in one if name.startswith(TOWER)}
    assert upper == {name for name in reports[0]["trained"] if name.startswith(TOWER)} and len(upper) == 12
    start = dict(QwenClipEncoder(sources).models.qwen.named_parameters())
    trained = read_tower(tmp_path / "together" / TOWER_FILE)
    assert {name.split(".")[1] for name in trained if name.startswith("layers.")} == {str(FROZEN)}
    average = final_weights(tmp_path / "together", "ema")
    for name, value in trained.items():
        assert float((value - start[name]).abs().max()) > 1e-5, name
        inside = f"{TOWER}upper.{name.replace(f'layers.{FROZEN}', 'layers.0')}"
        assert torch.equal(value, average[inside])


def test_the_release_sees_nothing_of_the_text_layers(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path
) -> None:
    job = settings(weights, live(sources, train_upper=True, frozen_layers=0))
    ranks.run(1, train, job, corpus.folder, tmp_path)
    exported, provenance = load_weights(tmp_path / "weights.safetensors")
    assert exported.keys() == load_weights(weights)[0].keys()
    assert provenance.text["trained_from_layer"] == 0
    assert provenance.text["system_prompt_sha256"] == sources.system_prompt().sha256
    (tmp_path / "weights.safetensors").unlink()
    assert run_weights(tmp_path)[0].keys() == exported.keys()


@pytest.mark.parametrize("bf16", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path, bf16: bool
) -> None:
    def job(steps: int) -> dict[str, Any]:
        return settings(
            weights,
            live(sources, train_upper=True),
            zero_optimization={"stage": 1},
            bf16={"enabled": bf16},
            hymotion__training__max_steps=steps,
        )

    ranks.run(2, train, job(4), corpus.folder, tmp_path / "whole")
    ranks.run(2, train, job(2), corpus.folder, tmp_path / "parts")
    ranks.run(2, train, job(4), corpus.folder, tmp_path / "parts", True)
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")
    for kind in ("master", "exp_avg", "exp_avg_sq", "ema"):
        a, b = final_weights(tmp_path / "whole", kind), final_weights(tmp_path / "parts", kind)
        assert all(torch.equal(a[name], b[name]) for name in a), kind


def test_a_run_of_another_prompt_is_not_resumed(
    ranks: RankPool, corpus: Corpus, weights: Path, sources: EncoderSources, tmp_path: Path
) -> None:
    text = live(sources)
    assert ranks.run(1, refusal, settings(weights, text), corpus.folder, tmp_path / "run") == [""]
    (tmp_path / "other.txt").write_text("Say something else.")
    text["system_prompt_file"] = str(tmp_path / "other.txt")
    [words] = ranks.run(1, refusal, settings(weights, text), corpus.folder, tmp_path / "run", True)
    assert "was trained on text features made with system_prompt_sha256 = " in words


def test_sampling_finds_the_trained_layers(
    ranks: RankPool,
    corpus: Corpus,
    weights: Path,
    sources: EncoderSources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    job = settings(weights, live(sources, train_upper=True), optimizer={**SGD, "params": {"lr": 0.05}})
    ranks.run(1, train, job, corpus.folder, run)
    provenance = load_weights(run / "weights.safetensors")[1]
    plain, fitted = QwenClipEncoder(sources), QwenClipEncoder(sources)
    fit_encoder(fitted, provenance, run / "weights.safetensors")
    exported = read_tower(run / TOWER_FILE)
    assert all(torch.equal(dict(fitted.models.qwen.named_parameters())[name], exported[name]) for name in exported)
    assert not torch.equal(fitted.encode(["jumps"]).tokens, plain.encode(["jumps"]).tokens)

    # Without an export, from the checkpoint.
    (run / TOWER_FILE).rename(tmp_path / TOWER_FILE)
    with pytest.raises(UserError, match=f"{TOWER_FILE} is not beside it"):
        fit_encoder(QwenClipEncoder(sources), provenance, run / "weights.safetensors")
    (run / "weights.safetensors").rename(tmp_path / "weights.safetensors")
    found = trained_text(run)
    assert found is not None and found.first_layer == FROZEN
    assert all(torch.equal(found.tensors[name], exported[name]) for name in exported)

    flags = ["--model", str(run), "--prompt", "a person jumps", "--frames", "20", "--steps", "2", "--formats", "npz"]
    flags += ["--out", str(tmp_path / "samples"), "--qwen", sources.qwen, "--clip", sources.clip]
    assert run_here("sample.py", flags, monkeypatch) == 2
    assert "neither is given" in capsys.readouterr().err
    flags += ["--system_prompt_file", str(sources.system_prompt_file), "--encoder_dtype", "fp32"]
    assert run_here("sample.py", flags, monkeypatch) == 0
    assert (tmp_path / "samples" / "0000.npz").is_file()
    other = tmp_path / "other.txt"
    other.write_text("Say something else.")
    flags[flags.index("--system_prompt_file") + 1] = str(other)
    assert run_here("sample.py", flags, monkeypatch) == 2
    assert "made with system_prompt_sha256" in capsys.readouterr().err

    # A further run from these weights must train the same layers, and starts from them.
    for text, frozen in ((live(sources), 0), (live(sources, True, 1), 1), ({"encoder": "qwen_clip"}, 0)):
        [words] = ranks.run(1, refusal, settings(run, text), corpus.folder, tmp_path / f"no{frozen}")
        assert f"was trained with Qwen3's layers from {FROZEN} on" in words
    job = settings(run, live(sources, train_upper=True), optimizer={**SGD, "params": {"lr": 0.0}})
    ranks.run(1, train, job, corpus.folder, tmp_path / "next")
    again = read_tower(tmp_path / "next" / TOWER_FILE)
    assert all(torch.allclose(again[name], exported[name], atol=1e-7) for name in exported)


def test_illegal_combinations_are_refused(corpus: Corpus, weights: Path, sources: EncoderSources) -> None:
    with pytest.raises(UserError, match=r"mode = live with hymotion\.text\.encoder = 'hashed'; use qwen_clip"):
        RunConfig(settings(weights, {"mode": "live"}))
    with pytest.raises(UserError, match="train_upper_layers = true needs the encoders in the run"):
        RunConfig(settings(weights, {"train_upper_layers": True}))
    section = RunConfig(settings(weights, live(sources))).hymotion.text
    assert (section.frozen_layers, section.train_upper_layers) == (12, False)
    wide = ModelConfig(**{**SIZES, "ctxt_input_dim": 4096, "vtxt_input_dim": 768}, input_dim=219)
    with pytest.raises(UserError, match="is 16 wide per token and .* 12 pooled, the model wants 4096 and 768"):
        text_source(section, corpus, wide)
    with pytest.raises(UserError, match="are 16 wide per token"):
        text_source(section.model_copy(update={"mode": "cached"}), corpus, wide)
    with pytest.raises(UserError, match=r"hymotion\.text\.qwen .*absent cannot be loaded"):
        text_source(section.model_copy(update={"qwen": "/absent"}), corpus, ModelConfig(**SIZES, input_dim=219))
    with pytest.raises(UserError, match=r"frozen_layers = 4 leaves no layer .*use 0\.\.3"):
        TextTower(QwenClipEncoder(sources).models, frozen_layers=LAYERS, train_upper=True)
    assert dataclasses.replace(sources, prefix="hymotion.text.").prefix == "hymotion.text."

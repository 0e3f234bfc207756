"""Low-rank adapters: what trains, what is saved, and the same numbers on every layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ds_hymotion.config.lora import LoraSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import save_tensors
from ds_hymotion.model.adapters import A, B, LowRank, add_adapters, merge_adapters
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.presets import preset
from ds_hymotion.parallel.stages import network_units
from ds_hymotion.training.adapters import adapted_linears, describe_adapters
from ds_hymotion.training.checkpoint import newest_checkpoint, read_kind
from ds_hymotion.training.checkpoint_folder import digest
from ds_hymotion.training.weights import load_model, load_weights, save_weights
from tests.corpora import SMALL
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, logged, run_settings, train

KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")
EVERYWHERE = ["*.weight"]


def settings(weights: Path, model: int = 1, stages: int = 1, zero: int = 0, **changes: Any) -> dict[str, Any]:
    """Five steps of AdamW on adapters of every linear."""
    return run_settings(
        weights,
        **{
            "hymotion__lora": {"rank": 3, "alpha": 6, "targets": EVERYWHERE},
            "hymotion__training__max_steps": 5,
            "hymotion__training__joint_groups": None,
            "gradient_clipping": 0.05,
            "hymotion__gradient_sync": {"check_steps": 1},
            "hymotion__parallel": {"model": model, "pipeline": stages, "memory_steps": 0},
            "hymotion__pipeline": {"max_imbalance": 9},
            "zero_optimization": {"stage": zero},
            **changes,
        },
    )


class Runs:
    """Runs that go on from one checkpoint whose adapters are random: fresh ones have B = 0, and A no gradient."""

    def __init__(self, ranks: RankPool, corpus: Corpus, weights: Path) -> None:
        self.ranks, self.corpus, self.weights = ranks, corpus, weights
        self.folder = corpus.folder.parent
        self.starts: dict[str, Path] = {}
        self.done: dict[str, Path] = {}

    def start(self, **changes: Any) -> Path:
        key = repr(sorted(changes.items()))
        if key not in self.starts:
            run = self.folder / f"start{len(self.starts)}"
            one = settings(self.weights, **{**changes, "hymotion__training__max_steps": 1})
            self.ranks.run(1, train, one, self.corpus.folder, run)
            random = torch.Generator().manual_seed(3)
            (path,) = newest_checkpoint(run).glob("master-*.safetensors")
            values = {
                name: torch.randn(value.shape, generator=random) / value.shape[1] ** 0.5
                for name, value in load_file(path).items()
            }
            save_tensors(path, values)
            manifest = json.loads((path.parent / "manifest.json").read_text())
            manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": digest(path)}
            (path.parent / "manifest.json").write_text(json.dumps(manifest))
            self.starts[key] = run
        return self.starts[key]

    def run(self, folder: Path, world: int, layout: tuple[int, int, int], **changes: Any) -> Path:
        shutil.copytree(self.start(**changes), folder)
        self.ranks.run(world, train, settings(self.weights, *layout, **changes), self.corpus.folder, folder, True)
        return folder

    def alone(self, **changes: Any) -> Path:
        """On one process; every run is made once."""
        key = repr(sorted(changes.items()))
        if key not in self.done:
            self.done[key] = self.run(self.folder / f"alone{len(self.done)}", 1, (1, 1, 0), **changes)
        return self.done[key]

    def assert_the_same(self, folder: Path, world: int, layout: tuple[int, int, int], **changes: Any) -> None:
        """Weights, moments and average after four steps against one process."""
        one, many = self.alone(**changes), self.run(folder, world, layout, **changes)
        assert largest_difference(final_weights(one), final_weights(self.start(**changes))) > 1e-3
        moments = final_weights(one, "exp_avg")
        assert not [name for name, value in moments.items() if value.abs().max() < 1e-8]
        assert min(logged(one, "grad_norm")) > 0.05, "clipped"
        worst = 0.0
        for kind in KINDS:
            a, b = final_weights(one, kind), final_weights(many, kind)
            assert a.keys() == b.keys()
            for name, value in a.items():
                difference = float((value - b[name]).abs().max()) / max(float(value.abs().max()), 1e-5)
                assert difference <= 1e-5, (kind, name, difference)
                worst = max(worst, difference)
        print(f"{world} ranks, {layout}: adapters, moments and average within {worst:.1e}")
        assert logged(many) == pytest.approx(logged(one), rel=1e-5)
        assert logged(many, "grad_norm") == pytest.approx(logged(one, "grad_norm"), rel=1e-5)


@pytest.fixture(scope="module")
def runs(ranks: RankPool, corpus: Corpus, weights: Path) -> Runs:
    return Runs(ranks, corpus, weights)


@pytest.fixture(scope="module")
def finished(ranks: RankPool, corpus: Corpus, weights: Path) -> Path:
    """A run on one process from fresh adapters."""
    run = corpus.folder.parent / "finished"
    ranks.run(1, train, settings(weights), corpus.folder, run)
    return run


def test_only_adapters_train_and_the_base_is_merged_again(finished: Path, weights: Path) -> None:
    run = finished
    base, adapters, average = load_weights(weights)[0], final_weights(run), final_weights(run, "ema")
    assert adapters.keys() == average.keys() and all(name.endswith((A, B)) for name in adapters)
    moved = [float(value.abs().max()) for name, value in adapters.items() if name.endswith(B)]
    assert min(moved) > 1e-5 and max(moved) > 1e-3, "all moved from zero"
    assert {path.name for path in run.iterdir()} >= {"adapter_model.safetensors", "adapter_config.json"}
    assert not (run / "weights.safetensors").exists()

    merged = load_model(run).generator.state_dict()
    assert merged.keys() == base.keys()
    for name, value in base.items():
        module = name.removesuffix(".weight")
        if module + A in average:
            value = value + 2.0 * average[module + B] @ average[module + A]
            assert float((merged[name] - base[name]).abs().max()) > 1e-5
        assert float((merged[name] - value).abs().max()) <= 1e-6, name


def test_peft_reads_the_adapters(finished: Path, weights: Path) -> None:
    from peft import PeftModel

    model, base = load_model(finished), load_model(weights)
    random = torch.Generator().manual_seed(0)
    inputs = (
        torch.randn(2, 20, 219, generator=random),
        torch.tensor([20, 15]),
        torch.randn(2, 4, 128, generator=random),
        torch.tensor([4, 2]),
        torch.randn(2, 128, generator=random),
        torch.tensor([0.2, 0.7]),
        torch.tensor([False, True]),
    )
    with torch.no_grad():
        before, expected = base.generator(*inputs), model.generator(*inputs)
        adapted = PeftModel.from_pretrained(base.generator, str(finished))
        assert torch.allclose(adapted(*inputs), expected, atol=1e-4)
    assert float((before - expected).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("world", "model", "stages", "zero"),
    [
        (2, 1, 1, 2),
        (2, 2, 1, 1),
        (2, 1, 2, 1),
        *[
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                (2, 1, 1, 0), (2, 1, 1, 1), (2, 2, 1, 0), (2, 2, 1, 2), (2, 1, 2, 0), (4, 2, 2, 0), (4, 2, 2, 1),
                (4, 1, 2, 1), (4, 2, 1, 2), (3, 1, 3, 1),
            )
        ],
    ],
)  # fmt: skip
def test_every_layout_has_the_adapters_of_one_process(
    runs: Runs, tmp_path: Path, world: int, model: int, stages: int, zero: int
) -> None:
    runs.assert_the_same(tmp_path / "run", world, (model, stages, zero))


@pytest.mark.parametrize(
    ("target", "world", "zero"),
    [("motion_head", 2, 1), *[pytest.param(*case, marks=pytest.mark.full) for case in (
        ("motion_head", 2, 0), ("motion_head", 4, 1), ("motion_input", 2, 0), ("motion_input", 2, 1),
        ("motion_input", 3, 1),
    )]],
)  # fmt: skip
def test_a_stage_without_adapters_passes_gradients_on(
    runs: Runs, tmp_path: Path, target: str, world: int, zero: int
) -> None:
    lora = {"hymotion__lora": {"rank": 3, "alpha": 6, "targets": [target]}}
    runs.assert_the_same(tmp_path / "run", world, (1, 3 if world == 3 else 2, zero), **lora)


@pytest.mark.parametrize(
    ("model", "stages", "zero", "bf16"),
    [
        (2, 1, 1, True),
        *[
            pytest.param(*case, marks=pytest.mark.full)
            for case in ((1, 1, 0, False), (1, 1, 2, False), (2, 1, 1, False), (1, 2, 1, True), (1, 2, 0, False))
        ],
    ],
)
def test_a_resumed_run_goes_on_bit_for_bit(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, model: int, stages: int, zero: int, bf16: bool
) -> None:
    def asked(steps: int) -> dict[str, Any]:
        half = {"bf16": {"enabled": bf16}, "hymotion__training__max_steps": steps}
        return settings(weights, model, stages, zero, **half)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ranks.run(2, train, asked(6), corpus.folder, whole)
    ranks.run(2, train, asked(3), corpus.folder, parts)
    ranks.run(2, train, asked(6), corpus.folder, parts, True)
    assert logged(parts) == logged(whole) and len(logged(parts)) == 6
    for kind in KINDS:
        assert largest_difference(final_weights(whole, kind), final_weights(parts, kind)) == 0, kind


def test_a_base_that_is_gone_or_another_is_refused(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    base, run = tmp_path / "base.safetensors", tmp_path / "run"
    shutil.copy(weights, base)
    ranks.run(1, train, settings(base, hymotion__training__max_steps=1), corpus.folder, run)
    kept = sum(value.numel() for value in dict(read_kind(newest_checkpoint(run), "fixed")).values())
    assert kept == 2 * 219 + 2 * 128, "statistics and special features, no copy of the base"
    state, provenance = load_weights(base)
    state["motion_transformer.input_encoder.bias"][0] += 1
    save_weights(base, state, provenance)
    with pytest.raises(UserError, match="holds adapters of base weights with SHA-256"):
        load_model(run)
    longer = settings(base, hymotion__training__max_steps=2)
    with pytest.raises(AssertionError, match="belong to base weights of SHA-256 .* set hymotion.model.init_from"):
        ranks.run(1, train, longer, corpus.folder, run, True)
    base.unlink()
    with pytest.raises(UserError, match="holds adapters of .*base.safetensors, which cannot be read"):
        load_model(run)


def test_a_run_in_the_middle_is_sampled_merged(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "adapter_model.safetensors").unlink()
    a, b = load_model(run).generator.state_dict(), load_model(finished).generator.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_adapters_start_alike_and_change_nothing() -> None:
    config = ModelConfig(**SMALL, input_dim=219)

    def adapted(held: Callable[[str], bool] | None = None) -> MotionGenerator:
        generator = MotionGenerator(config)
        initialise(generator, 0, copy_noise=False)
        torch.rand(7)
        add_adapters(generator, adapted_linears(LoraSection(), config), seed=4, held=held)
        return generator

    one, part = dict(adapted().named_parameters()), dict(adapted(lambda name: "double" in name).named_parameters())
    assert {name for name, value in one.items() if value.requires_grad} == {n for n in one if n.endswith((A, B))}
    for name, value in one.items():
        if name.endswith(B):
            assert not value.any()
        if name.endswith(A):
            assert part[name].is_meta != ("double" in name)
            assert part[name].is_meta or torch.equal(part[name], value)


def test_strange_adapters_are_refused() -> None:
    base = {"x.weight": torch.zeros(4, 3)}
    pair = {"x" + A: torch.zeros(2, 3), "x" + B: torch.zeros(4, 2)}
    chosen = LowRank(2, 2.0, ("x",))
    assert merge_adapters(base, pair, chosen, "f").keys() == base.keys()
    with pytest.raises(UserError, match="f: x.lora_A.default.weight is missing"):
        merge_adapters(base, {"x" + B: pair["x" + B]}, chosen, "f")
    with pytest.raises(UserError, match="y is unknown"):
        merge_adapters(base, {**pair, "y": torch.zeros(1)}, chosen, "f")
    with pytest.raises(UserError, match=r"x wants a base weight of \(4, 3\) and finds \(5, 3\)"):
        merge_adapters({"x.weight": torch.zeros(5, 3)}, pair, chosen, "f")


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"lora": {}}, "hymotion.lora needs weights to adapt; give --init_from"),
    ({"lora": {"rank": 0}, "model": {"init_from": "a"}}, "hymotion.lora.rank = 0"),
    ({"lora": {"dropout": 0.1}, "model": {"init_from": "a"}}, "unknown key hymotion.lora.dropout"),
    ({"lora": {}, "model": {"init_from": "a", "allow_fresh": True}}, "allow_fresh = true does not work"),
    ({"lora": {}, "model": {"init_from": "a"}, "pipeline": {"mode": "temporal"}}, "mode = temporal does not work"),
    ({"lora": {}, "model": {"init_from": "a"}, "gradient_sync": {"others_every": 2}}, "others_every = 2 .* use 1"),
    ({"lora": {}, "model": {"init_from": "a"}, "gradient_sync": {"frozen": ["time"]}}, "by hymotion.lora.targets"),
]


@pytest.mark.parametrize(("section", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_mistakes(section: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        RunConfig({"hymotion": section}, "run.json")
    assert "\n" not in str(caught.value)


def test_a_target_without_a_linear_is_named() -> None:
    with pytest.raises(UserError, match=r"hymotion.lora.targets: 'norms' means no parameter; use attention_output"):
        adapted_linears(LoraSection(targets=["norms"]), ModelConfig(**SMALL))


def test_what_trains_of_the_released_network() -> None:
    text = describe_adapters(adapted_linears(LoraSection(rank=8), preset("hy-motion-1.0")), preset("hy-motion-1.0"))
    print(text)
    width, hidden, rank = 1280, 5120, 8
    double = 2 * rank * (4 * width + 2 * width + 2 * (width + hidden))
    single = rank * ((width + 7 * width) + (5 * width + width))
    refiner = 2 * rank * (4 * width + 2 * width + 2 * (width + hidden))
    expected = 9 * double + 18 * single + refiner
    assert f"on {9 * 8 + 18 * 2 + 2 * 4} linears: {expected / 1e6:.2f} M of 1042.87 M parameters train" in text
    assert f"{12 * expected / 1e6:.1f} MB instead of 12514.5 MB" in text


def test_units_know_their_adapters() -> None:
    config = ModelConfig(**SMALL, input_dim=219)
    generator = MotionGenerator(config)
    add_adapters(generator, adapted_linears(LoraSection(targets=EVERYWHERE), config), seed=0)
    prefixes = [unit.prefix for unit in network_units(config, 30, 8) if unit.prefix]
    plain = {name for name, _ in MotionGenerator(config).named_parameters()}
    for name, _ in generator.named_parameters():
        released = json.loads(json.dumps(name)).replace(".base_layer", "")
        for kind in (A, B):
            released = released.replace(kind, ".weight")
        assert released in plain
        assert [p for p in prefixes if name.startswith(p)] == [p for p in prefixes if released.startswith(p)]

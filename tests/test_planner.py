"""The planner: every tier fits its memory, estimates equal what real steps allocate, and advice is planned too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.reports.benchmarks import plan as benchmark
from ds_hymotion.reports.planner.load import Load, Shape
from ds_hymotion.reports.planner.plan import RUNTIME, Plan, plan_run
from ds_hymotion.reports.planner.request import memory_of, plan_text
from ds_hymotion.reports.planner.states import Held, rank_states
from ds_hymotion.reports.planner.table import describe, verdict
from ds_hymotion.tiers import GIB, TIERS, Tier
from tests.commands import run_here
from tests.corpora import wavy_corpus
from tests.ranks import RankPool

P = 1_000_000
HELD = Held(P, 0, 2, 1000)
SMALL = {"reduce_bucket_size": 1000}


def plan_of(changes: dict[str, Any] | None = None, ranks: int = 1) -> Plan:
    config = RunConfig({}, "tiny", changes or {}, ranks)
    return plan_run(config, Load.of(config))


@pytest.mark.parametrize(
    ("given", "resident"),
    [
        ({}, 4 + 8 + 4 + 4),
        ({"zero_optimization": {"stage": 1, **SMALL}}, 4 + 16 / 2 + 4),
        ({"zero_optimization": {"stage": 2, **SMALL}}, 4 + 16 / 2 + 4 / 2),
        ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1, **SMALL}}, 2 + 16 / 2 + 4 + 2),
        ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, **SMALL}}, 2 + 16 / 2 + 4 / 2),
        ({"fp16": {"enabled": True}, "zero_optimization": {"stage": 1, **SMALL}}, 2 + 16 / 2 + 2),
        ({"optimizer": {"type": "AdamW8bit"}, "zero_optimization": {"stage": 1, **SMALL}}, 4 + 10.03125 / 2 + 4),
        ({"optimizer": {"type": "SGD"}, "hymotion": {"training": {"ema_decay": 0}}}, 4 + 4),
    ],
)
def test_bytes_per_parameter(given: dict[str, Any], resident: float) -> None:
    states = rank_states(RunConfig(given, ranks=2), HELD)
    assert sum(states.device.values()) == pytest.approx(P * resident, abs=8000)
    assert not states.host


def test_offloaded_states_lie_in_host_memory() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, **SMALL}
    states = rank_states(RunConfig({"bf16": {"enabled": True}, "zero_optimization": zero}, ranks=2), HELD)
    assert sum(states.host.values()) == pytest.approx(P * (4 + 8 + 4 + 4 + 2) / 2, abs=8000)
    assert sum(states.device.values()) == pytest.approx(P * (2 + 4 / 2), abs=8000)


@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier.devices], ids=lambda tier: tier.name)
def test_every_tier_fits_its_memory(tier: Tier) -> None:
    config = RunConfig.load(tier.path, ranks=tier.devices)
    plan = plan_run(config, Load.of(config))
    text = describe(plan, int(tier.budget * GIB))
    assert plan.peak <= tier.budget * GIB, text
    peak = plan.peak
    if tier.automatic:  # on GPUs without bf16
        half = RunConfig.load(tier.path, {"bf16.enabled": False, "fp16.enabled": True}, tier.devices)
        peak = max(peak, plan_run(half, Load.of(half)).peak)
    assert tier.peak == round(peak / GIB, 2)
    assert plan.peak > 0.4 * tier.budget * GIB or tier.devices > 2, text
    assert "fits " in text and "largest micro-batch: " in text
    assert len(plan.ranks) * config.shape.data == tier.devices
    if tier.host:
        assert 0.9 * tier.host * GIB < plan.host <= tier.host * GIB


def test_lite_takes_what_arithmetic_says() -> None:
    config = RunConfig.load(TIERS[1].path, ranks=1)
    (rank,) = plan_run(config, Load.of(config)).ranks
    states = rank.states.device
    assert rank.held.trained == 460_846_537
    assert sum(states.values()) / GIB == pytest.approx(10.3, abs=0.01)
    assert (states["weights"] + states["fp32 masters"] + states["moments"]) / rank.held.trained == 14


def test_recomputed_blocks_keep_their_inputs_alone() -> None:
    whole, some, none = (plan_of({"hymotion.model.checkpoint_blocks": every}).ranks[0] for every in (0, 3, 1))
    assert whole.kept == whole.kept_whole == some.kept_whole == none.kept_whole
    assert whole.kept > some.kept > none.kept
    single = whole.kept - some.kept
    assert some.working > whole.working and none.kept < 0.4 * whole.kept and single > 0


def test_micro_batches_of_short_clips_hold_most_text() -> None:
    config = RunConfig({"hymotion": {"data": {"frames_per_gpu": 600}}})
    shapes = Load.of(config).shapes(config)
    assert shapes[-1] == Shape(30, 20, 32) and Shape(2, 300, 32) in shapes
    for short, largest in (("pad", Shape(30, 20, 32)), ("drop", Shape(10, 60, 32))):
        other = RunConfig({"hymotion": {"data": {"frames_per_gpu": 600, "short": short}}})
        assert Load.of(other).shapes(other)[-1] == largest


def test_a_corpus_tells_lengths(corpus: Corpus) -> None:
    config = RunConfig({"train_micro_batch_size_per_gpu": 3})
    load = Load.of(config, corpus)
    assert load.shapes(config) == [Shape(3, 66, load.tokens)] and 3 <= load.tokens <= 8
    assert load.mean_frames(300) == pytest.approx(42.8)


def test_mixed_corpora_tell_lengths_too(corpus: Corpus, tmp_path: Path) -> None:
    base = wavy_corpus(tmp_path, [20, 90])
    config = RunConfig({}, overrides={"hymotion.data.replay": {"corpus": str(base.folder), "share": 0.5}})
    load = Load.of(config, corpus)
    assert load.shapes(config)[0].frames == 90 and load.source.endswith(f" + {base.folder}")
    assert load.mean_frames(300) == pytest.approx(42.8)
    few = RunConfig({}, overrides={"hymotion.data.max_clips": 1})
    assert len(Load.of(few, corpus).frames) == 1


def test_stages_and_tensor_ranks() -> None:
    plan = plan_of(
        {"hymotion.parallel.model": 2, "hymotion.parallel.pipeline": 2, "hymotion.pipeline.max_imbalance": 9}, 8
    )
    first, _, _, last = plan.ranks
    whole = plan_of().ranks[0].held.trained
    held = sum(rank.held.trained for rank in plan.ranks)
    replicated = sum(plan.inventory.replicated(stage) for stage in (0, 1))
    assert held - replicated == whole and replicated > 0
    assert first.sent["stage boundary"] > 0 and first.sent["tensor ranks"] > 0
    assert first.sent["data gradients"] == 4 * first.held.trained
    assert last.held.sharers == 2 and plan.ranks_per_node == 8


MISTAKES = [
    ({"hymotion.pipeline.mode": "temporal"}, "hymotion.pipeline.mode = temporal is not planned; plan with layers"),
    ({"hymotion.parallel.model": 3}, "does not divide the network's 4 heads"),
]


@pytest.mark.parametrize(("changes", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_what_is_not_planned(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_of(changes, changes.get("hymotion.parallel.model", 1))


def test_memory_sizes() -> None:
    assert memory_of("24GB") == memory_of("24") == memory_of("24 gib") == 24 * GIB
    for text in ("much", "0", "24TB"):
        with pytest.raises(UserError, match="24GB"):
            memory_of(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    settings = {"train_micro_batch_size_per_gpu": 64, "zero_optimization": {"stage": 1, **SMALL}}
    path.write_text(json.dumps(settings))
    return path


def test_the_command_and_its_advice(
    file: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig.load(file)
    plan = plan_run(config, Load.of(config))
    tight = (plan.peak - 0.5 * plan.ranks[0].kept) / GIB
    assert run_here("plan.py", [str(file), "--memory", f"{tight:.3f}"], monkeypatch) == 0
    text = capsys.readouterr().out
    assert "does not fit" in text and "mostly activations (backward pass)" in text
    assert "nearest change that fits: hymotion.model.checkpoint_blocks = 1" in text and "then it fits" in text
    assert run_here("plan.py", [str(file), "--memory", "0.76"], monkeypatch) == 0
    assert "no change that was tried fits" in capsys.readouterr().out
    assert run_here("plan.py", [str(file), "--data_dir", str(corpus.folder)], monkeypatch) == 0
    assert "64 row(s) x (66 frames" in capsys.readouterr().out
    for wrong in ([], ["--gpus", "2"], ["none.json"], [str(file), "--gpus", "0"]):
        assert run_here("plan.py", wrong, monkeypatch) == 2


def test_gpus_that_the_axes_do_not_divide(file: Path) -> None:
    settings = json.loads(file.read_text()) | {"hymotion": {"parallel": {"model": 2}}}
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError) as error:
        plan_text(str(file), 3, "10GB", None)
    assert "= 2 does not divide --gpus 3; legal axes: data 3 x model 1 x pipe 1; data 1 x model 1 x pipe 3" in str(
        error.value
    )
    assert "of which data 3 x model 1 x pipe 1 fits 10.0 GiB" in str(error.value)
    assert "data 2 x model 2 x pipe 1 = 4" in plan_text(str(file), 4, None, None)


def test_a_batch_size_in_all_and_groups_of_experts(file: Path) -> None:
    """The number of ranks comes from the axes, before anything is checked for one data rank."""
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}
    file.write_text(json.dumps(sizes))
    assert "batch: 64 clips = micro-batch 8 x accumulation 4 x 2 data" in plan_text(str(file), 2, None, None)
    file.write_text(json.dumps({**sizes, "hymotion": {"parallel": {"model": 2}}}))
    with pytest.raises(UserError, match="does not divide --gpus 3; legal axes: data 3 x model 1 x pipe 1"):
        plan_text(str(file), 3, None, None)
    section = {"experts": {"number": 6, "size": 2}, "parallel": {"model": 2}}
    file.write_text(json.dumps({"zero_optimization": {"stage": 1, **SMALL}, "hymotion": section}))
    assert "ranks: data 2 x model 2 x pipe 1 = 4" in plan_text(str(file), None, None, None)


REFUSED = [
    ({"zero_optimization": {"stage": 1, "reduce_bucket_sze": 5}}, "reduce_bucket_sze = 5"),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"}}, 'reduce_bucket_size = "auto"'),
    ({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": "1000"}}, "use 1000 without"),
    ({"communication_data_type": "int8"}, "Supported data types: ['fp16', 'bf16', 'fp32']"),
    ({"fp16": {"loss_scale": "high"}}, "fp16.loss_scale = 'high'"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_deepspeed_refuses(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: dict[str, Any],
    words: str,
) -> None:
    file.write_text(json.dumps(given))
    assert run_here("plan.py", [str(file)], monkeypatch) == 2
    said = capsys.readouterr()
    assert said.out == "" and words in said.err and said.err.count("\n") == 1


def test_the_verdict_needs_a_memory_size() -> None:
    plan = plan_of()
    assert "give --memory" in verdict(plan, None)
    assert verdict(plan, plan.peak).startswith("fits") and verdict(plan, plan.peak - 1).startswith("does not fit")
    assert plan.peak > RUNTIME


LIMITS = {"states": 0.1, "activations": 0.2, "peak": 0.2}


def measure_here(network: str, case: str) -> benchmark.Measured:
    return benchmark.measure(network, case, Mesh.current())


def test_estimates_equal_what_is_allocated(ranks: RankPool) -> None:
    case = "bf16, ZeRO-1"
    (measured,) = ranks.run(1, measure_here, "tiny", case)
    for row in benchmark.compare("tiny", case, 1, measured):
        assert row.ratio == pytest.approx(1, abs=LIMITS[row.figure]), row


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_all_estimates() -> None:
    rows = benchmark.run()
    assert {row.figure for row in rows} == set(LIMITS) and len(rows) == 3 * 2 * 2 * len(benchmark.CASES)
    for row in rows:
        assert row.ratio == pytest.approx(1, abs=LIMITS[row.figure]), row

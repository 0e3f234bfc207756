"""The first tensor that is not finite is named, and fp16 ends with advice where no loss scale is low enough."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.data.batches import Batch, BatchMaker
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.plan import Row
from ds_hymotion.errors import UserError
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.flow.times import draw_time
from ds_hymotion.model.presets import preset
from ds_hymotion.model.released import load_into
from ds_hymotion.model.temporal import build
from ds_hymotion.parallel.states import Fragment
from ds_hymotion.text.cache import TextCache
from ds_hymotion.training.nonfinite import finite_step, first_nonfinite, lost_at_rest
from ds_hymotion.training.weights import load_weights, save_weights
from tests.corpora import SMALL
from tests.ranks import RankPool
from tests.runs import run_settings
from tests.test_resume import refusal


def made(corpus: Corpus, weights: Path) -> tuple[Batch, FlowObjective]:
    """A batch of two clips and the small network."""
    generator = build(preset("tiny", **SMALL, input_dim=corpus.representation.channels))
    load_into(generator, load_weights(weights)[0])
    flow, statistics = FlowSection(), (corpus.mean, corpus.std)
    text = TextCache(corpus.text_cache_folder("hashed"))
    maker = BatchMaker(corpus, corpus.samples, text, statistics, partial(draw_time, "uniform"), 0.1, 0, 100)
    batch = maker.make(0, [Row(0, 0, 0), Row(1, 0, 0)], 1, 30)
    return batch, FlowObjective(generator, flow, BodyLosses(corpus.representation, *statistics, corpus.fps, flow))


def test_the_first_tensor_is_named(corpus: Corpus, weights: Path) -> None:
    batch, objective = made(corpus, weights)
    assert first_nonfinite(objective, batch, 43) == ""
    block = objective.generator.motion_transformer.single_blocks[1]
    kept = block.linear2.register_forward_hook(lambda _, __, output: output * torch.inf)
    assert first_nonfinite(objective, batch, 43).endswith("of generator.motion_transformer.single_blocks.1.linear2")
    kept.remove()

    def lose_gradient(_: Any, inputs: tuple[torch.Tensor]) -> None:
        inputs[0].register_hook(lambda gradient: gradient * torch.nan)

    kept = block.linear2.register_forward_pre_hook(lose_gradient)
    name = first_nonfinite(objective, batch, 43)
    assert (
        name.startswith("gradient [2, ") and " of the output of generator.motion_transformer.single_blocks.1." in name
    )
    kept.remove()
    broken = dataclasses.replace(batch, noise=batch.noise.clone().index_fill_(1, torch.tensor([3]), torch.nan))
    assert first_nonfinite(objective, broken, 43) == "the batch's noise"
    with torch.no_grad():
        block.linear1.weight[2, 3] = torch.inf
    name = first_nonfinite(objective, batch, 43)
    assert name == "weight generator.motion_transformer.single_blocks.1.linear1.weight"


def overflow_at_the_lowest_scale(corpus: Path, weights: Path) -> str:
    """What a step that overflows twice says, with DeepSpeed's own scaler, which a CPU runs as well."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    scaler = DynamicLossScaler(init_scale=2, scale_window=10, min_scale=1, delayed_shift=1,
                               consecutive_hysteresis=False, raise_error_at_min_scale=True)  # fmt: skip
    whole, objective = made(Corpus.open(corpus), weights)
    mesh = SimpleNamespace(pipe_size=1, device=torch.device("cpu"), gather_objects=lambda value: ["", value])
    states = SimpleNamespace(fragments=lambda: ())
    engine: Any = SimpleNamespace(mesh=mesh, objective=objective, readable=lambda batch: batch, loss_scale=1.0,
                                  network_parameters={}, states=states)  # fmt: skip
    with finite_step(engine, 6, [whole], 43):
        scaler.update_scale(overflow=True)
    with pytest.raises(ZeroDivisionError), finite_step(engine, 6, [whole], 43):
        raise ZeroDivisionError
    objective.generator.motion_transformer.final_layer.linear.register_forward_hook(lambda _, __, y: y / 0)
    with pytest.raises(UserError) as caught, finite_step(engine, 6, [whole], 43):
        scaler.update_scale(overflow=True)
    return str(caught.value)


def test_the_lowest_loss_scale_ends_the_run_with_advice(ranks: RankPool, corpus: Corpus, weights: Path) -> None:
    (said,) = ranks.run(1, overflow_at_the_lowest_scale, corpus.folder, weights)
    assert said.startswith("step 7: gradients overflow at fp16's lowest loss scale, 1; the first tensor that is not ")
    assert "on rank 1: output [2, 30, 219] of generator.motion_transformer.final_layer.linear; use bf16" in said


STAGES = {"hymotion__parallel__pipeline": 2, "zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 2}
TEMPORAL = {"hymotion__parallel__pipeline": 2, "hymotion__pipeline": {"mode": "temporal"}}
HEAD = "motion_transformer.final_layer.linear.weight"
LOST = [
    (2, {}, "rank 0: weight "),
    (2, STAGES, "rank 0: output "),
    (3, {**STAGES, "hymotion__parallel__pipeline": 3}, "rank 1: output "),
    (2, TEMPORAL, "rank 0: weight "),
    (2, {"zero_optimization": {"stage": 3}}, "rank 0: "),
]


@pytest.mark.parametrize(
    ("world", "changes", "words"),
    [*LOST[:2], *(pytest.param(*case, marks=pytest.mark.full) for case in LOST[2:])],
    ids=["data", "stages", "3 stages", "temporal", "ZeRO-3"],
)
def test_a_lost_run_names_its_tensor_on_all_ranks(
    ranks: RankPool, corpus: Corpus, tmp_path: Path, world: int, changes: dict[str, Any], words: str
) -> None:
    sgd = {"type": "SGD", "params": {"lr": 1e30}}
    settings = run_settings(optimizer=sgd, hymotion__training__max_steps=50, **changes)
    said = ranks.run(world, refusal, settings, corpus.folder, tmp_path)
    assert len(set(said)) == 1 and f"the first tensor that is not finite, on {words}" in said[0]


def test_a_stage_that_has_found_its_own_runs_with_the_others(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    state, provenance = load_weights(weights)
    state[HEAD] = state[HEAD].index_fill(0, torch.tensor([0]), torch.inf)
    save_weights(tmp_path / "weights.safetensors", state, provenance)
    settings = run_settings(tmp_path / "weights.safetensors", **STAGES)
    said = ranks.run(2, refusal, settings, corpus.folder, tmp_path / "run")
    assert len(set(said)) == 1 and f"on rank 1: weight {HEAD}" in said[0]


class Engine:
    """What lies at rest on a rank of ZeRO-3, whose weights themselves are empty."""

    def __init__(self, value: float, master: float) -> None:
        weight = torch.nn.Parameter(torch.empty(0))
        weight.ds_tensor = torch.tensor([1.0, value])  # type: ignore[attr-defined]
        elsewhere = torch.nn.Parameter(torch.empty(2, device="meta"))
        self.network_parameters = {"elsewhere": elsewhere, "here": weight}
        self.states = SimpleNamespace(
            fragments=lambda: [Fragment("here", 0, 2)], local=lambda *_: torch.tensor([1.0, master])
        )


def test_what_lies_at_rest_is_looked_at_in_slices(corpus: Corpus, weights: Path) -> None:
    batch, _ = made(corpus, weights)
    broken = dataclasses.replace(batch, noise=batch.noise.clone().index_fill_(1, torch.tensor([3]), torch.nan))
    for engine, batches, said in (
        (Engine(1, 1), [batch], ""),
        (Engine(torch.nan, 1), [batch], "weight here"),
        (Engine(1, torch.inf), [batch], "fp32 weight here"),
        (Engine(1, 1), [batch, broken], "the batch's noise"),
    ):
        assert lost_at_rest(engine, batches) == said  # type: ignore[arg-type]

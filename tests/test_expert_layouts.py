"""Experts over data ranks, beside tensor ranks and pipeline stages, against one process with all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ds_hymotion.data.batches import Batch
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.model.experts import expert_of
from ds_hymotion.parallel.experts import owner_of
from ds_hymotion.training.checkpoint import newest_checkpoint, read_kind, read_state
from tests.corpora import SMALL
from tests.expert_runs import Reference, expert_corpus, expert_settings, plan_of
from tests.ranks import RankPool
from tests.runs import SGD, final_weights, largest_difference, logged, train

NAMES = ["WALK", "REACH", "SIT", "JUMP", "TURN", "STAND"]
KINDS = ("master", "exp_avg", "exp_avg_sq", "ema")


class Layout(NamedTuple):
    """Tensor ranks, stages and data ranks, groups of experts, and ZeRO's stage."""

    tensor: int
    stages: int
    data: int
    size: int
    zero: int
    dispatch: str = "affinity"

    @property
    def world(self) -> int:
        return self.tensor * self.stages * self.data

    @property
    def phases(self) -> list[dict[str, Any]]:
        """All learn, then the trunk, then some experts, two of which are left out."""
        dropped = 2 if self.size < 6 or self.dispatch == "all_to_all" else 0
        return [
            {"until": 2},
            {"until": 3, "train": ["trunk"]},
            {"until": 9, "train": ["experts"], "drop_experts": dropped},
        ]


LAYOUTS = [Layout(2, 1, 2, 2, 1), Layout(1, 2, 2, 2, 1), Layout(1, 1, 2, 2, 1, "all_to_all")]
MORE = [
    *(Layout(2, 1, 1, 1, zero) for zero in (0, 1, 2)),
    *(Layout(2, 1, 2, 2, zero) for zero in (0, 2)),
    *(Layout(1, 2, 1, 1, zero) for zero in (0, 1)),
    Layout(1, 2, 2, 2, 0),
    Layout(1, 2, 2, 1, 1),
    Layout(1, 3, 1, 1, 1),
    Layout(2, 2, 1, 1, 1),
    *(Layout(2, 2, 2, 2, zero) for zero in (0, 1)),
    *(Layout(1, 1, 2, 2, zero, "all_to_all") for zero in (0, 2)),
    *(Layout(1, 1, data, size, zero) for data, size in ((3, 3), (6, 3), (6, 6)) for zero in (0, 1, 2)),
    *(Layout(1, 1, data, size, zero, "all_to_all") for data, size in ((3, 3), (4, 2), (6, 6)) for zero in (0, 1, 2)),
    Layout(2, 1, 2, 2, 1, "all_to_all"),
    Layout(1, 2, 2, 2, 1, "all_to_all"),
    Layout(2, 2, 2, 2, 1, "all_to_all"),
]
CASES = [*LAYOUTS, *(pytest.param(more, marks=pytest.mark.full) for more in MORE)]


def label(layout: Layout) -> str:
    return "-".join(map(str, layout))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    clips = [(20 + 3 * number, NAMES[number % 6 if number < 8 else 0]) for number in range(12)]
    return expert_corpus(tmp_path_factory.mktemp("wavy"), [*clips, (61, "WALK"), (66, "REACH"), (64, "WALK")])


def settings_of(weights: Path, layout: Layout, **changes: Any) -> dict[str, Any]:
    return expert_settings(
        weights,
        NAMES,
        **{
            "train_batch_size": max(4, 2 * layout.data),
            "gradient_accumulation_steps": 2,
            "hymotion__parallel": {"model": layout.tensor, "pipeline": layout.stages},
            "hymotion__pipeline": {"max_imbalance": 9},
            "hymotion__experts__size": layout.size,
            "hymotion__experts__dispatch": layout.dispatch,
            "zero_optimization": {"stage": layout.zero},
            **changes,
        },
    )


@pytest.mark.parametrize("layout", CASES, ids=label)
def test_gradients_are_those_of_one_process(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, layout: Layout
) -> None:
    changes: dict[str, Any] = {"optimizer": SGD, "gradient_clipping": 0.0, "hymotion__training__max_steps": 1}
    settings = settings_of(weights, layout, **changes)
    reference = Reference(settings, corpus, plan_of(settings, corpus, layout.world))
    before = reference.weights
    losses = reference.run(1)
    ranks.run(layout.world, train, settings, corpus.folder, tmp_path / "run")
    after = final_weights(tmp_path / "run")
    assert after.keys() == before.keys()
    sizes: dict[int | None, float] = {}
    for name, start in before.items():
        mine, theirs = start - after[name], start - reference.weights[name]
        largest = float(theirs.abs().max())
        assert float((mine - theirs).abs().max()) <= 1e-6 * max(1.0, largest), name
        sizes[expert_of(name)] = max(largest, sizes.get(expert_of(name), 0.0))
    assert min(sizes[part] for part in (None, *reference.steps[0].experts)) > 1e-3
    assert logged(tmp_path / "run") == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("layout", CASES, ids=label)
def test_phases_move_what_they_should(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, layout: Layout
) -> None:
    changes: dict[str, Any] = {
        "gradient_clipping": 0.0 if layout.size > 1 and not layout.zero else 0.05,
        "hymotion__experts__phases": layout.phases,
        "hymotion__training__max_steps": 5,
        "hymotion__training__save_steps": 1,
        "hymotion__training__keep_last": 9,
        "hymotion__evaluation": {"eval_steps": 5, "split": "train", "times": [0.5]},
    }
    settings = settings_of(weights, layout, **changes)
    reference = Reference(settings, corpus, plan_of(settings, corpus, layout.world))
    losses, run = reference.run(5), tmp_path / "run"
    ranks.run(layout.world, train, settings, corpus.folder, run)
    assert logged(run) == pytest.approx(losses, rel=1e-5)
    assert logged(run, "grad_norm") == pytest.approx(reference.norms, rel=1e-5)
    assert largest_difference(final_weights(run), reference.weights) < 2e-6
    _require_rest(run, reference)
    seen = [0.0] * 5
    for name in NAMES:
        frames = np.diff(logged(run, f"expert/{name}/frames"), prepend=0.0)
        losses_of = logged_or_zero(run, f"expert/{name}/loss")
        seen = [total + loss * count for total, loss, count in zip(seen, losses_of, frames)]
        expected = [norms.get(NAMES.index(name), 0.0) for norms in reference.expert_norms]
        assert logged_or_zero(run, f"expert/{name}/grad_norm") == pytest.approx(expected, rel=1e-4)

    valid = [step.valid_frames for step in reference.steps]
    assert [total / frames for total, frames in zip(seen, valid)] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "other"),
    [
        pytest.param(Layout(2, 2, 2, 2, 1), Layout(1, 1, 1, 1, 1), marks=pytest.mark.full),
        pytest.param(Layout(1, 2, 2, 2, 1), Layout(1, 1, 3, 3, 2), marks=pytest.mark.full),
        pytest.param(Layout(1, 1, 3, 3, 1, "all_to_all"), Layout(2, 1, 2, 2, 1), marks=pytest.mark.full),
    ],
)
def test_a_run_goes_on_at_another_layout(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, layout: Layout, other: Layout
) -> None:
    """Weights, moments, averages and Adam's step counts are the same there, and it does go on."""
    changes: dict[str, Any] = {"gradient_clipping": 0.05, "train_batch_size": 12}
    changes["hymotion__experts__phases"] = layout.phases
    run = tmp_path / "run"
    settings = settings_of(weights, layout, hymotion__training__max_steps=4, **changes)
    ranks.run(layout.world, train, settings, corpus.folder, run)
    saved, steps = {kind: final_weights(run, kind) for kind in KINDS}, expert_steps(run)
    assert len(steps) == len(NAMES) and len(set(steps.values())) > 1
    there = settings_of(weights, other, hymotion__training__max_steps=4, **changes)
    ranks.run(other.world, train, there, corpus.folder, run, True)
    for kind in KINDS:
        assert largest_difference(final_weights(run, kind), saved[kind]) == 0
    assert expert_steps(run) == steps
    there["hymotion"]["training"]["max_steps"] = 5
    ranks.run(other.world, train, there, corpus.folder, run, True)
    assert {after - steps[expert] for expert, after in expert_steps(run).items()} == {0, 1}


def expert_steps(run: Path) -> dict[str, int]:
    return read_state(newest_checkpoint(run))["expert_steps"]


def test_both_dispatches_are_equal(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    """A step that holds every clip is the same one whatever the dispatch, and so are the weights behind it."""
    changes: dict[str, Any] = {"train_batch_size": 64, "hymotion__data__bucket_bounds": [60], "optimizer": SGD}
    changes |= {"gradient_clipping": 0.0, "hymotion__training__max_steps": 1, "hymotion__data__short": "keep"}
    for dispatch in ("affinity", "all_to_all"):
        settings = settings_of(weights, LAYOUTS[-1]._replace(dispatch=dispatch), **changes)
        ranks.run(2, train, settings, corpus.folder, tmp_path / dispatch)
    planned = final_weights(tmp_path / "affinity")
    assert largest_difference(planned, final_weights(tmp_path / "all_to_all")) < 1e-6
    assert largest_difference(planned, Reference(settings, corpus, plan_of(settings, corpus, 2)).weights) > 1e-3


def _require_rest(run: Path, reference: Reference) -> None:
    """What learns in a step has moved in all its states, everything else by no bit."""
    for number, step in list(enumerate(reference.steps))[1:]:
        learns = {*step.experts, *([None] if step.trunk else [])}
        for kind in KINDS:
            before, after = (
                dict(read_kind(run / "checkpoints" / f"step-{at:08d}", kind)) for at in (number, number + 1)
            )
            for name, value in before.items():
                assert torch.equal(after[name], value) == (expert_of(name) not in learns), (number, kind, name)


def logged_or_zero(run: Path, key: str) -> list[float]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [entry.get(key, 0.0) for entry in lines if entry["kind"] == "train"]


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize(
    "layout",
    [Layout(1, 1, 2, 0, 1)]
    + [
        pytest.param(Layout(*case), marks=pytest.mark.full)
        for case in ((1, 1, 2, 0, 2), (2, 1, 2, 0, 1), (1, 2, 2, 0, 1), (2, 2, 2, 0, 1))
    ],
    ids=label,
)
def test_phases_in_bf16(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path, layout: Layout, size: int
) -> None:
    """Masters of what rests do not move by a bit; the others follow fp32 within bf16's rounding."""
    layout = layout._replace(size=size)
    changes: dict[str, Any] = {
        "gradient_clipping": 0.05,
        "hymotion__experts__phases": layout.phases,
        "hymotion__training__max_steps": 4,
        "hymotion__training__save_steps": 1,
        "hymotion__training__keep_last": 9,
    }
    exact = settings_of(weights, layout, **changes)
    settings = {**exact, "bf16": {"enabled": True}}
    reference = Reference(exact, corpus, plan_of(exact, corpus, layout.world))
    losses, run = reference.run(4), tmp_path / "run"
    ranks.run(layout.world, train, settings, corpus.folder, run)
    assert logged(run) == pytest.approx(losses, rel=2e-2)
    assert logged(run, "grad_norm") == pytest.approx(reference.norms, rel=5e-2)
    assert largest_difference(final_weights(run), reference.weights) < 2e-2
    _require_rest(run, reference)


def test_dispatched_bytes(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    """Of every row travel valid frames, valid tokens and one vector there, the frames' velocities back, and as much in
    the backward pass; three integers a row, and one for every rank of the group."""
    layout = LAYOUTS[-1]
    settings = settings_of(weights, layout, hymotion__training__max_steps=2)
    reference = Reference(settings, corpus, plan_of(settings, corpus, layout.world))
    reference.run(2)
    ranks.run(layout.world, train, settings, corpus.folder, tmp_path / "run")
    expected = []
    for step in reference.steps:
        batches = [
            [reference.maker.make(step.epoch, rows, step.strata, padded) for rows in rank]
            for rank, padded in zip(step.micro_batches, step.padded)
        ]
        expected.append(_sent_by_first(batches, SMALL["feat_dim"], corpus.representation.channels))
    assert logged(tmp_path / "run", "comm/dispatch_bytes") == expected
    settings = settings_of(weights, layout._replace(dispatch="affinity"), hymotion__training__max_steps=1)
    ranks.run(layout.world, train, settings, corpus.folder, tmp_path / "affinity")
    assert logged_or_zero(tmp_path / "affinity", "comm/dispatch_bytes") == [0.0]


def _sent_by_first(batches: list[list[Batch]], width: int, channels: int) -> int:
    size = len(batches)
    total = 8 * size * len(batches[0])
    for rank, micros in enumerate(batches):
        for batch in micros:
            rows = zip(batch.lengths.tolist(), batch.text_lengths.tolist(), batch.experts.tolist())
            for frames, tokens, expert in rows:
                there, back = 4 * width * (1 + frames + tokens), 4 * channels * frames
                total += (24 + there + back) * (rank == 0)
                total += (back + there) * (owner_of(f"experts.{expert}.", len(NAMES), size) == 0)
    return total

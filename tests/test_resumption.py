"""A run that goes on from a checkpoint: what stays as it was, what may change, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ds_hymotion.arguments import TrainArguments
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.steps import Layout
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.training.export import Export
from ds_hymotion.training.resumption import batch_note
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.start import output_folder
from ds_hymotion.training.weights import load_weights, read_weights, run_weights, save_weights
from tests.corpora import random_weights, wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, largest_difference, run_settings, train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 23, 31, 34])


@pytest.fixture(scope="module")
def weights(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    (folder / "LICENSE").write_text("the base's own\n")
    return random_weights(folder / "weights.safetensors", corpus)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (Layout(2, 1, 4), Layout(1, 2, 4), ""),
        (Layout(2, 1, 4), Layout(4, 1, 2), ""),
        (Layout(2, 1, 4), Layout(1, 1, 4), "takes 4 clips on 1 .* took 8; gradient_accumulation_steps = 2 keeps 8$"),
        (Layout(1, 1, 3), Layout(2, 1, 3), "takes 6 clips on 2 data rank.*, before it took 3$"),
        (
            Layout(2, 2, 0, 600),
            Layout(1, 2, 0, 600),
            "takes 1200 frames .*accumulation_steps = 4 keeps 2400$",
        ),
        (Layout(2, 2, 4), Layout(2, 2, 4, 600), "frames_per_gpu fills steps otherwise"),
    ],
)
def test_steps_of_another_size_are_named(before: Layout, now: Layout, words: str) -> None:
    note = batch_note(before, now)
    assert re.search(words, note) if words else note == ""


def test_an_average_that_is_switched_on_starts_from_the_weights(
    ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path
) -> None:
    ranks.run(1, train, run_settings(weights, hymotion__training__ema_decay=0.0), corpus.folder, tmp_path)
    ranks.run(1, train, run_settings(), corpus.folder, tmp_path, True)
    average = load_weights(tmp_path / "weights.safetensors")[0]
    for name, value in final_weights(tmp_path).items():
        assert torch.equal(average[name], value), name
    slow = run_settings(hymotion__training__max_steps=3, optimizer__params={"lr": 1e-9})
    ranks.run(1, train, slow, corpus.folder, tmp_path, True)
    assert largest_difference(final_weights(tmp_path, "ema"), final_weights(tmp_path)) < 1e-6


def test_an_export_that_training_went_on_from_is_not_taken(
    ranks: RankPool, corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranks.run(1, train, run_settings(), corpus.folder, tmp_path)
    assert run_weights(tmp_path)[1].steps == 2 and not caplog.messages
    ranks.run(1, train, run_settings(hymotion__training__max_steps=3), corpus.folder, tmp_path, True)
    state, provenance = load_weights(tmp_path / "weights.safetensors")
    assert provenance.steps == 3
    save_weights(tmp_path / "weights.safetensors", {**state, "mean": state["mean"] + 1}, replace(provenance, steps=2))
    found = read_weights(tmp_path)
    assert found.provenance is not None and found.provenance.steps == 3
    assert all(torch.equal(found.tensors[name], value) for name, value in final_weights(tmp_path, "ema").items())
    assert "weights.safetensors is of an earlier end of the run" in caplog.text


def refusal(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output, True)
    return str(caught.value)


def test_sizes_that_no_shape_shows_stay(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    narrow = run_settings(hymotion__model__band_frames=10)
    ranks.run(1, train, narrow, corpus.folder, tmp_path)
    (line,) = ranks.run(1, refusal, run_settings(hymotion__training__max_steps=3), corpus.folder, tmp_path)
    assert re.search("made by a network with band_frames = 10, this run's has .*config.json$", line)
    start = tmp_path / "weights.safetensors"
    (line,) = ranks.run(1, refusal_of_a_start, run_settings(start), corpus.folder, tmp_path / "other")
    assert "was trained with band_frames = 10, preset tiny has" in line and "hymotion.model.band_frames" in line
    ranks.run(1, train, run_settings(start, hymotion__model__band_frames=11), corpus.folder, tmp_path / "other")


def refusal_of_a_start(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output)
    return str(caught.value)


def test_the_base_outlives_its_mention(ranks: RankPool, corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks.run(1, train, run_settings(weights), corpus.folder, run)
    (run / "LICENSE").unlink()
    ranks.run(1, train, run_settings(hymotion__training__max_steps=3), corpus.folder, run, True)
    assert load_weights(run / "weights.safetensors")[1].base == str(weights)
    assert (run / "LICENSE").is_file()
    said: list[str] = []
    Export(run, tmp_path / "out").write(said.append)
    assert said[-1] == "copied from the base weights: LICENSE"


def resume_from(settings: dict[str, Any], corpus: Path, output: Path, places: list[Path | None]) -> str:
    """What this rank says when it is told to go on from its own of ``places``."""
    config = RunConfig(settings, "test", ranks=dist.get_world_size())
    place = places[dist.get_rank()]
    with pytest.raises(UserError) as caught:
        TrainingRun(config, Corpus.open(corpus), output, Mesh.current(), place)
    return str(caught.value)


def test_ranks_that_see_other_checkpoints_end_alike(ranks: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", run_settings()
    ranks.run(2, train, settings, corpus.folder, run)
    for places, words in (
        ([run, None], "rank 0 finds checkpoints in .*/run, rank 1 finds none; give a folder that all"),
        ([None, run], "rank 1 finds checkpoints in .*/run, rank 0 finds none"),
    ):
        lines = ranks.run(2, resume_from, settings, corpus.folder, tmp_path / "new", places)
        assert len(set(lines)) == 1 and re.search(words, lines[0])


def test_a_resumed_run_goes_on_in_its_folder(tmp_path: Path) -> None:
    assert output_folder(TrainArguments(resume=str(tmp_path))) == tmp_path
    assert output_folder(TrainArguments(resume=str(tmp_path), output_dir="b")) == Path("b")
    assert output_folder(TrainArguments(model_name="a/HY")) == Path("runs/HY")

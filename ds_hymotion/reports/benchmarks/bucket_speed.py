"""Clips per second with frame buckets against the same clips padded to the canvas."""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.plan import Position, Step
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.reports.measuring.builtin_corpus import builtin_corpus
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.training.run import TrainingRun

NETWORK = {"preset": "tiny", "feat_dim": 128}


def run(clips: int = 48, batch: int = 4, rounds: int = 3, canvas: int = 300) -> list[Row]:
    """Every planned step of an epoch forward and backward, with its own padded length and with the canvas.

    Built-in motions of 60 to 300 frames, one process, fp32, the network tiny at width 128. The two ways take turns
    step by step; the rate is the median over the rounds. Losses must be equal to 1e-5. Options: how many clips, how
    many in a batch, how many rounds, and the canvas (300 or 360 frames).
    """
    settings = {
        "train_micro_batch_size_per_gpu": batch,
        "hymotion": {"model": NETWORK, "data": {"bucket_bounds": [60, 120, 180, 240, canvas]}},
    }
    with tempfile.TemporaryDirectory() as work:
        corpus = builtin_corpus(Path(work), clips, (60, 300))
        mesh = Mesh.start()
        try:
            training = TrainingRun(RunConfig(settings), corpus, Path(work), mesh)
            with torch.no_grad():  # a fresh network's gates are zero, and its blocks would not count
                for parameter in training.engine.objective.parameters():
                    parameter.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(parameter.numel()))
            steps = list(islice(training.feed.planner.walk(Position()), len(training.feed.planner.epoch(0))))
            times, losses = _epochs(training, steps, rounds, canvas)
        finally:
            mesh.stop()
    bucketed, padded = (statistics.median(sum(one) for one in way) for way in times)
    rate = clips / bucketed
    frames = sum(step.valid_frames for step in steps)
    shares = [
        frames / sum(len(step.clips) * length for step, length in zip(steps, lengths))
        for lengths in ([step.padded[0] for step in steps], [canvas] * len(steps))
    ]
    difference = max(abs(a - b) / abs(b) for a, b in zip(*losses))
    assert difference < 1e-5, f"losses differ by {difference}"
    conditions: dict[str, Any] = {"clips": clips, "batch": batch, "rounds": rounds, "canvas": canvas}
    return [
        Row("bucketed against padded to the canvas", rate, "clips/s", clips / padded, None, conditions),
        Row("share of real frames, bucketed against padded", shares[0], "", shares[1]),
        Row("largest relative difference of a step's loss", difference, "", 1e-5),
    ]


def _epochs(
    training: TrainingRun, steps: list[Step], rounds: int, canvas: int
) -> tuple[list[list[list[float]]], list[list[float]]]:
    """Seconds by way, round and step, and losses by way and step."""
    times: list[list[list[float]]] = [[[0.0] * len(steps) for _ in range(rounds)] for _ in range(2)]
    losses = [[0.0] * len(steps) for _ in range(2)]
    for turn in range(rounds):
        for number, step in enumerate(steps):
            for way in (0, 1) if (turn + number) % 2 else (1, 0):
                padded = step.padded[0] if way == 0 else canvas
                batch = training.feed.maker.make(step.epoch, step.micro_batches[0][0], step.strata, padded)
                training.engine.objective.zero_grad(set_to_none=True)
                start = time.perf_counter()
                loss, _ = training.engine.objective(batch, step.valid_frames)
                torch.autograd.backward(loss)
                times[way][turn][number] = time.perf_counter() - start
                losses[way][number] = float(loss.detach())
    return times, losses

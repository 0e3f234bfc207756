"""What selective gradient sync saves in bytes, and what it costs in loss."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config.gradient_sync import GradientSyncSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import preset
from ds_hymotion.parallel.mesh import free_port
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.reports.measuring.builtin_corpus import builtin_corpus
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.reports.measuring.short_run import short_training, start_rank, words_to
from ds_hymotion.training.log import read_log
from ds_hymotion.training.run import TrainingRun

SMALL = {"preset": "tiny", "feat_dim": 64, "num_layers": 6}
FULL, SELECTIVE, FASTER = "full", "selective", "selective-faster"
HALF = {"communication_data_type": "bf16"}
SYNC: dict[str, dict[str, Any]] = {
    FULL: {"hymotion": {"gradient_sync": {"others_every": 1, "check_steps": 50}}},
    SELECTIVE: {**HALF, "hymotion": {"gradient_sync": {"others_every": 2, "check_steps": 50}}},
    FASTER: {**HALF, "hymotion": {"gradient_sync": {"others_every": 2, "others_lr_factor": 2.0, "check_steps": 50}}},
}


def run(steps: int = 200, seeds: int = 3, ranks: int = 2, clips: int = 60) -> list[Row]:
    """Bytes of K = 2 with 16-bit gradients against everything in fp32 every step, and the held-out loss of both.

    Released presets are computed from their parameters; a small network of the same proportions (tiny at width 64 with
    6 blocks) is trained on built-in motions by processes of one thread each, without ZeRO, and counted. Weights are
    compared bit by bit over the ranks every 50 steps. A third run of each seed gives the parameters that wait twice the
    learning rate (others_lr_factor 2): if its loss is the full one's, half as many steps of Adam are the reason for the
    second's. Options: how many steps, seeds, processes and clips.
    """
    rows = [row for name in ("hy-motion-1.0", "hy-motion-1.0-lite") for row in released(name)]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        corpus = builtin_corpus(folder, clips, (60, 90), (0.8, 0.2, 0.0))
        jobs = [(mode, seed) for seed in range(seeds) for mode in SYNC]
        torch.multiprocessing.spawn(_rank, (ranks, free_port(), jobs, steps, corpus.folder, folder), nprocs=ranks)
        runs = {job: folder / _name(*job) for job in jobs}
        sent = {mode: _mean_bytes(runs[mode, 0]) for mode in SYNC}
        losses = {mode: [_final_loss(runs[mode, seed]) for seed in range(seeds)] for mode in SYNC}
    conditions = {"ranks": ranks, "steps": steps}
    rows.append(
        Row("small network, counted: gradient bytes per step", sent[SELECTIVE], "B", sent[FULL], None, conditions)
    )
    full = losses[FULL]
    for mode, name in ((SELECTIVE, "selective"), (FASTER, "selective, others_lr_factor 2")):
        for seed, (loss, against) in enumerate(zip(losses[mode], full)):
            rows.append(Row(f"held-out loss, {name}, against full", loss, "", against, conditions={"seed": seed}))
        mean = statistics.mean(losses[mode])
        rows.append(
            Row(f"held-out loss, {name}, mean", mean, "", statistics.mean(full), None, {"seeds": seeds, **conditions})
        )
    return rows


def released(name: str) -> list[Row]:
    """The shares of a released preset, from its parameters."""
    with torch.device("meta"):
        numel = {key: value.numel() for key, value in MotionGenerator(preset(name)).named_parameters()}
    groups = sync_groups(GradientSyncSection(others_every=2), list(numel))
    total, always = sum(numel.values()), sum(numel[key] for key in groups.always)
    mean = always + (total - always) / 2
    return [
        Row(f"{name}, computed: parameters always synchronised", always / 1e6, "M", total / 1e6),
        Row(f"{name}, computed: gradient bytes per step, K = 2, fp32", 4e-6 * mean, "MB", 4e-6 * total),
        Row(f"{name}, computed: gradient bytes per step, K = 2, 16 bit", 2e-6 * mean, "MB", 4e-6 * total),
    ]


def settings(mode: str, seed: int, steps: int) -> dict[str, Any]:
    """The configuration of one run."""
    sync = SYNC[mode]
    return {
        **sync,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.99], "weight_decay": 0.0}},
        "hymotion": {
            **sync["hymotion"],
            "model": SMALL,
            "flow": {"time": "stratified"},
            "training": short_training(steps, seed=seed, log_steps=1),
            "evaluation": {"eval_steps": steps, "split": "val"},
        },
    }


def _rank(
    rank: int, ranks: int, port: int, jobs: list[tuple[str, int]], steps: int, corpus: Path, folder: Path
) -> None:
    mesh = start_rank(port, rank, ranks)
    for mode, seed in jobs:
        output = folder / _name(mode, seed)
        with words_to(output / f"said{rank}.txt"):
            config = RunConfig(settings(mode, seed, steps), ranks=ranks)
            TrainingRun(config, Corpus.open(corpus), output, mesh).train()
    mesh.stop()


def _name(mode: str, seed: int) -> str:
    return f"{mode}{seed}"


def _mean_bytes(run_folder: Path) -> float:
    return statistics.mean(entry["comm/allreduce_bytes"] for entry in read_log(run_folder))


def _final_loss(run_folder: Path) -> float:
    return float(read_log(run_folder, "eval")[-1]["loss"])

"""What experts by action type give in held-out loss, and what a phase with a frozen trunk saves in time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus, Sample
from ds_hymotion.flow.matching import interpolate
from ds_hymotion.model.experts import ExpertGenerator, Routed
from ds_hymotion.motion.statistics import normalise
from ds_hymotion.parallel.mesh import free_port
from ds_hymotion.randomness import sample_noise
from ds_hymotion.reports.measuring.builtin_corpus import builtin_corpus
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.reports.measuring.short_run import short_training, start_rank, words_to
from ds_hymotion.text.encoders import text_encoder
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.weights import TrainedModel, load_model

DENSE, EXPERTS, TAILS = "dense", "experts", "experts alone"
TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
FRAMES = (60, 90)


def run(steps: int = 400, clips: int = 120, timed_steps: int = 30) -> list[Row]:
    """A network of the preset tiny and one with six experts on its last block and head: equal active parameters.

    Both train on built-in motions with their true types, on one process, and see the same batches, noise and times.
    The held-out loss is that of the validation clips, a fifth of all, at five fixed times; differences below its
    spread over clips, given as a standard error of the difference, mean little. Then the time of a step with a trunk
    that learns and with a frozen one. Options: steps, clips, and steps that are timed.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        corpus = builtin_corpus(folder, clips, FRAMES, (0.8, 0.2, 0.0))
        jobs = [(DENSE, steps), (EXPERTS, steps), (EXPERTS + " timed", timed_steps), (TAILS, timed_steps)]
        torch.multiprocessing.spawn(_train, (free_port(), jobs, corpus.folder, folder), nprocs=1)
        rows = _losses(folder, corpus, steps)
        seconds = {name: float((folder / name / "seconds").read_text()) for name, _ in jobs}
    timing = {"median of steps": timed_steps - 2, "ratio": "frozen over learning"}
    return [*rows, Row("step with a frozen trunk", seconds[TAILS], "s", seconds[EXPERTS + " timed"], None, timing)]


def settings(name: str, steps: int) -> dict[str, Any]:
    """The configuration of one run."""
    phases = [{"until": steps, "train": ["experts"]}] if name == TAILS else []
    return {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.0}},
        "hymotion": {
            "model": {"preset": "tiny", "init": "copy_noise"},
            "experts": {"number": 0 if name == DENSE else len(ACTION_TYPES), "phases": phases},
            "data": {"bucket_bounds": list(FRAMES)},
            "flow": {"time": "stratified"},
            "training": short_training(steps),
        },
    }


@torch.no_grad()
def clip_losses(model: TrainedModel, corpus: Corpus, clips: list[Sample]) -> Tensor:
    """[clips] each clip's mean squared velocity error over TIMES, by its own expert where there are experts."""
    config = model.generator.config
    encoder = text_encoder(model.provenance.text_encoder, config.ctxt_input_dim, config.vtxt_input_dim)
    found = []
    for clip in clips:
        data = normalise(corpus.features(clip), model.generator.mean, model.generator.std)[None]
        text = encoder.encode([clip.captions[0].text])
        network: Any = model.generator
        if isinstance(model.generator, ExpertGenerator):
            network = Routed(model.generator, torch.tensor([config.expert_names.index(str(clip.action))]))
        errors = []
        for index, at in enumerate(TIMES):
            noise = sample_noise(0, 0, "held out " + clip.id, 0, index, clip.frames, data.shape[-1])[None]
            t = torch.tensor([at])
            x_t, velocity = interpolate(data, noise, t)
            lengths, drop = torch.tensor([clip.frames]), torch.tensor([False])
            predicted = network(x_t, lengths, text.tokens, text.lengths, text.pooled, t, drop)
            errors.append((predicted.float() - velocity).square().mean())
        found.append(torch.stack(errors).mean())
    return torch.stack(found)


def _losses(folder: Path, corpus: Corpus, steps: int) -> list[Row]:
    clips = corpus.split("val")
    models = {name: load_model(folder / name) for name in (DENSE, EXPERTS)}
    dense, experts = (clip_losses(model, corpus, clips) for model in models.values())
    sizes = {name: sum(p.numel() for p in model.generator.parameters()) for name, model in models.items()}
    rows = [Row("parameters in all, experts against dense", sizes[EXPERTS] / 1e6, "M", sizes[DENSE] / 1e6)]
    for action in (*ACTION_TYPES, "all types"):
        own = torch.tensor([action in (clip.action, "all types") for clip in clips])
        if not own.any():
            continue
        apart = (experts - dense)[own]
        error = float(apart.std() / len(apart) ** 0.5) if len(apart) > 1 else float("nan")
        conditions = {"clips": len(apart), "steps": steps, "standard error of the difference": f"{error:.3g}"}
        rows.append(
            Row(f"held-out loss, {action}", float(experts[own].mean()), "", float(dense[own].mean()), None, conditions)
        )
    return rows


def _train(_: int, port: int, jobs: list[tuple[str, int]], corpus: Path, folder: Path) -> None:
    mesh = start_rank(port)
    for name, steps in jobs:
        output = folder / name
        with words_to(output / "said.txt"):
            run = TrainingRun(RunConfig(settings(name, steps), ranks=1), Corpus.open(corpus), output, mesh)
            seconds = _timed(run)
            run.train()
        (output / "seconds").write_text(str(median(seconds[2:])))
    mesh.stop()


def _timed(run: TrainingRun) -> list[float]:
    """Seconds of every training step from now on."""
    seconds: list[float] = []
    step = run.engine.train_step

    def timed(*arguments: Any) -> Tensor:
        start = time.monotonic()
        parts = step(*arguments)
        seconds.append(time.monotonic() - start)
        return parts

    run.engine.train_step = timed  # type: ignore[method-assign,assignment]
    return seconds

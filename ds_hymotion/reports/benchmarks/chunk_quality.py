"""What cutting along time costs in quality: held-out loss, and jumps at the seams of samples."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.generation import Prompt, SamplingSettings, generate_motions
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.parallel.mesh import free_port
from ds_hymotion.parallel.stages import layer_costs
from ds_hymotion.reports.measuring.builtin_corpus import builtin_corpus
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.reports.measuring.short_run import short_training, start_rank, words_to
from ds_hymotion.text.encoders import text_encoder
from ds_hymotion.training.log import read_log
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.weights import load_model

CHUNK, FRAMES, TOKENS = 30, (60, 90), 16
WHOLE = "whole"
TIMES = [0.1, 0.3, 0.5, 0.7, 0.9]


def run(steps: int = 300, clips: int = 12, modes: str = "whole,0,4,8") -> list[Row]:
    """Networks of the preset tiny, trained on whole built-in motions and on their chunks, tied, with a halo.

    Clips have 60 to 90 frames, chunks 30. All modes see the same batches, noise and times on one process; the
    held-out loss is that of the training clips with other noise. Samples are those of the training captions, without
    smoothing: a jump is the mean distance that joints move between two frames. Compute is counted in multiply-adds
    per real frame. Options: steps, clips, and which modes: ``whole`` or a number of halo frames.
    """
    names = modes.split(",")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        corpus = builtin_corpus(folder, clips, FRAMES)
        torch.multiprocessing.spawn(_train, (free_port(), names, steps, corpus.folder, folder), nprocs=1)
        rows = []
        for name in names:
            rows += _rows(name, folder, corpus, steps)
        real = [jumps(corpus.motion(clip).joints(), CHUNK) for clip in corpus.samples[:6]]
        seam, inside = (sum(values) / len(values) for values in zip(*real))
        rows.append(Row("jump at seams against inside, real clips", seam, "cm", inside))
    return rows


def settings(mode: str, steps: int) -> dict[str, Any]:
    """The configuration of one run."""
    by_time = {"mode": "temporal", "chunk_frames": CHUNK, "state_frames": 15}
    return {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.99], "weight_decay": 0.0}},
        "hymotion": {
            "model": {"preset": "tiny", "init": "copy_noise"},
            "data": {"bucket_bounds": [60, 90]},
            "flow": {"time": "stratified"},
            "pipeline": {} if mode == WHOLE else {**by_time, "halo_frames": int(mode)},
            "training": short_training(steps, ema_decay=0.99),
            "evaluation": {"eval_steps": steps, "split": "train", "times": TIMES},
        },
    }


def jumps(positions: torch.Tensor, chunk: int) -> tuple[float, float]:
    """Mean movement of joints between frames, [T, J, 3] in metres: across seams and inside chunks, in cm."""
    moved = 100 * (positions[1:] - positions[:-1]).norm(dim=-1).mean(-1)
    seam = (torch.arange(1, len(positions)) % chunk) == 0
    return float(moved[seam].mean()), float(moved[~seam].mean())


def compute_ratio(config: ModelConfig, frames: int, tokens: int, chunk: int, halo: int) -> float:
    """Multiply-adds of a motion in chunks over those of the whole one."""

    def whole(count: int) -> float:
        embed, double, single, head = layer_costs(config, count, tokens)
        return embed + config.double_layers * double + config.single_layers * single + head

    return -(-frames // chunk) * whole(chunk + halo) / whole(frames)


def _rows(name: str, folder: Path, corpus: Corpus, steps: int) -> list[Row]:
    mode = "whole motions" if name == WHOLE else f"chunks of {CHUNK} frames, halo {name}"
    conditions = {"mode": mode, "steps": steps}
    last = read_log(folder / name, "eval")[-1]
    rows = [Row("held-out loss", float(last["loss"]), conditions=conditions)]
    rows += [Row(f"held-out loss at t = {t:g}", float(last[f"loss_t{t:g}"]), conditions=conditions) for t in TIMES]
    model = load_model(folder / name)
    encoder = text_encoder("hashed", model.generator.config.ctxt_input_dim, model.generator.config.vtxt_input_dim)
    clips = corpus.samples[:6]
    prompts = [Prompt(clip.captions[0].text, FRAMES[1], clip.id) for clip in clips]
    motions = generate_motions(model, encoder, prompts, SamplingSettings(guidance=1.0))
    both = [jumps(motion.joints(), CHUNK) for motion in motions]
    seam, inside = (sum(values) / len(values) for values in zip(*both))
    rows.append(Row("jump at seams against inside, samples", seam, "cm", inside, conditions=conditions))
    ratio = 1.0 if name == WHOLE else compute_ratio(model.generator.config, FRAMES[1], TOKENS, CHUNK, int(name))
    rows.append(Row("multiply-adds per real frame against whole motions", ratio, conditions=conditions))
    seconds = float((folder / name / "seconds").read_text())
    return [*rows, Row("seconds per step, start and evaluation included", seconds / steps, "s", conditions=conditions)]


def _train(_: int, port: int, names: list[str], steps: int, corpus: Path, folder: Path) -> None:
    mesh = start_rank(port)
    for name in names:
        output = folder / name
        with words_to(output / "said.txt"):
            start = time.monotonic()
            TrainingRun(RunConfig(settings(name, steps), ranks=1), Corpus.open(corpus), output, mesh).train()
            (output / "seconds").write_text(str(time.monotonic() - start))
    mesh.stop()

"""How near sampled motions lie to the clips of a corpus, and how jittery they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ds_hymotion.data.corpus import Corpus, Sample
from ds_hymotion.flow.postprocess import smooth_motion
from ds_hymotion.generation import Prompt
from ds_hymotion.metrics.jitter import jitter
from ds_hymotion.metrics.skating import skating_ratio
from ds_hymotion.motion.motion import Motion


@dataclass(frozen=True)
class Nearest:
    """A motion's nearest clip, and the distance in metres to it and to the clip whose caption was the prompt."""

    clip: Sample
    distance: float
    own_distance: float | None


def joint_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean distance in metres of two joint tracks [T, J, 3] over the frames both have."""
    frames = min(len(a), len(b))
    return float((a[:frames] - b[:frames]).norm(dim=-1).mean())


def nearest_clips(motions: Sequence[Motion], corpus: Corpus, own: Sequence[str | None]) -> list[Nearest]:
    """The nearest of all clips for every motion; ``own[i]`` is the id of the clip whose caption was its prompt."""
    tracks = [(clip, corpus.motion(clip).joints()) for clip in corpus.samples]
    found = []
    for motion, name in zip(motions, own):
        joints = motion.joints()
        distances = [joint_distance(joints, track) for _, track in tracks]
        best = min(range(len(tracks)), key=distances.__getitem__)
        mine = [d for d, (clip, _) in zip(distances, tracks) if clip.id == name]
        found.append(Nearest(tracks[best][0], distances[best], mine[0] if mine else None))
    return found


def nearest_table(prompts: Sequence[Prompt], motions: Sequence[Motion], corpus: Corpus) -> str:
    """Per sampled motion its nearest clip, how often that is of the prompt's type, and jitter raw and smoothed."""
    wanted = {clip.id: clip.action for clip in corpus.samples}
    lines = [
        f"{'sample':<16} {'nearest clip':<24} {'type':<14} {'cm':>6} {'own cm':>7} {'jitter raw':>11} {'smoothed':>9} "
        f"{'skating':>8}"
    ]
    hits = total = 0
    for prompt, motion, near in zip(prompts, motions, nearest_clips(motions, corpus, [p.clip for p in prompts])):
        action = None if prompt.clip is None else wanted[prompt.clip]
        if action is not None:
            total += 1
            hits += near.clip.action == action
        raw, smoothed = (float(jitter(m.joints(), m.fps)) for m in (motion, smooth_motion(motion)))
        own = "" if near.own_distance is None else f"{100 * near.own_distance:.1f}"
        lines.append(
            f"{prompt.name:<16} {near.clip.id:<24} {near.clip.action or '':<14} {100 * near.distance:>6.1f} {own:>7} "
            f"{raw:>11.2f} {smoothed:>9.2f} {skating_ratio(smooth_motion(motion).joints(), motion.fps):>8.2f}"
        )
    verdict = f"nearest clip is of the caption's type: {hits} of {total}" if total else "no clip has an action type"
    lines.append(f"{verdict}; jitter in 10 m/s3, clips {corpus_jitter(corpus):.2f}")
    return "\n".join(lines)


def corpus_jitter(corpus: Corpus) -> float:
    """Mean jitter of the corpus's clips, in 10 m/s³."""
    values = [float(jitter(corpus.motion(clip).joints(), corpus.fps)) for clip in corpus.samples if clip.frames > 3]
    return sum(values) / len(values)

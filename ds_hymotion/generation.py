"""From prompts to motions: encode the text, integrate the velocity field, decode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ds_hymotion.data.actions.prompts import action_of_prompt
from ds_hymotion.data.actions.types import ActionTypes
from ds_hymotion.data.corpus import ACTION_TYPES_FILE, Corpus, Sample
from ds_hymotion.data.expert_ids import expert_number
from ds_hymotion.errors import UserError
from ds_hymotion.flow.sampler import VelocityNetwork, row_noise, sample
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.experts import ExpertGenerator, Routed
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.statistics import denormalise
from ds_hymotion.text.encoder import TextEncoder
from ds_hymotion.training.weights import TrainedModel

SHORTEST = 20


@dataclass(frozen=True)
class Prompt:
    """What to sample: a text, a length in frames, and a name for the files; the clip whose caption it is, if any, and
    the action type whose expert makes it, where the network has experts."""

    text: str
    frames: int
    name: str
    clip: str | None = None
    action: str | None = None


@dataclass(frozen=True)
class SamplingSettings:
    """How the velocity field is integrated.

    Attributes:
        steps: steps of the fixed-step methods.
        method: euler, midpoint or dopri5 (adaptive; ``steps`` is then only the output grid).
        guidance: scale s of u + s·(c − u); 1 is the plain conditional field.
        seed: of the noise; each prompt's noise is counted from its place.
        first: number of the first prompt, where prompts are sampled in parts.
    """

    steps: int = 50
    method: str = "euler"
    guidance: float = 5.0
    seed: int = 0
    first: int = 0


def read_prompts(path: Path, frames: int, first: int = 0) -> list[Prompt]:
    """Read lines ``text#frames#id``; frames and id may be left out.

    Args:
        frames: of a line that names none.
        first: number of the first line's prompt, by which a line without an id is called.

    Raises:
        UserError: an unreadable file, a line without text, or frames that are no number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({why}); give a text file of text#frames#id lines") from None
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        text, _, rest = line.partition("#")
        count, _, name = rest.partition("#")
        if not text.strip():
            raise UserError(f"{path} line {number}: no text before the first #; give text#frames#id")
        if count.strip() and not re.fullmatch(r"\d{1,9}", count.strip()):
            raise UserError(f"{path} line {number}: frames {count.strip()[:20]!r} is not a whole number such as 120")
        called = name.strip() or f"{first + len(prompts):04d}"
        prompts.append(Prompt(text.strip(), int(count) if count.strip() else frames, called))
    if not prompts:
        raise UserError(f"{path}: no prompt; give lines such as: a person walks forward#120#walk")
    return prompts


def checked_prompts(prompts: Sequence[Prompt], longest: int) -> list[Prompt]:
    """The prompts with their names fit for files.

    Raises:
        UserError: a text without words, frames outside 20..``longest``, or a repeated name.
    """
    checked: list[Prompt] = []
    for prompt in prompts:
        if not prompt.text.strip():
            raise UserError(f"prompt {prompt.name!r} is empty; give words such as: a person walks forward")
        if not SHORTEST <= prompt.frames <= longest:
            raise UserError(
                f"prompt {prompt.name!r}: {prompt.frames} frames; this network samples {SHORTEST}..{longest}"
            )
        name = re.sub(r"[^\w.-]+", "_", prompt.name).strip(".") or "motion"
        if any(name == other.name for other in checked):
            raise UserError(f"prompt id {name!r} stands twice; give every line its own id")
        checked.append(replace(prompt, name=name))
    return checked


def corpus_prompts(corpus: Corpus, longest: int, as_sorted: bool = False) -> list[Prompt]:
    """The first caption of one clip per action type, or of the first six clips where types are not known.

    A prompt has its clip's length within 20..``longest`` frames. Types are those given with the motions, or with
    ``as_sorted`` those that experts are trained by, where the corpus has been sorted.
    """
    chosen: dict[str, Sample] = {}
    types = ActionTypes.open(corpus) if as_sorted and (corpus.folder / ACTION_TYPES_FILE).is_file() else None
    for clip in corpus.samples if types is None else [replace(c, action=types.name_of(c)) for c in corpus.samples]:
        chosen.setdefault(clip.action or f"clip {len(chosen)}", clip)
    return [
        Prompt(
            clip.captions[0].text,
            min(max(clip.frames, SHORTEST), longest),
            (clip.action or clip.id).lower(),
            clip.id,
            clip.action,
        )
        for clip in list(chosen.values())[:6]
    ]


def with_actions(prompts: Sequence[Prompt], names: Sequence[str], folder: Path, encoder: TextEncoder) -> list[Prompt]:
    """The prompts, each with an action type: its own, or that of the captions nearest to its text.

    Args:
        names: the action types that have experts.
        folder: a corpus, or a run that keeps the action types of its own.

    Raises:
        UserError: a prompt has no type and ``folder`` no captions of this encoder, or a type has no expert.
    """
    if all(prompt.action is not None for prompt in prompts):
        return list(prompts)
    try:
        types = ActionTypes.read(folder)
        chosen = [prompt.action or types.names[action_of_prompt(types, prompt.text, encoder)] for prompt in prompts]
    except UserError as error:
        raise UserError(
            f"choose an expert with --action, of {', '.join(names)}; by text none is found: {error}"
        ) from None
    return [replace(prompt, action=names[expert_number(name, names)]) for prompt, name in zip(prompts, chosen)]


def _expert(prompt: Prompt, config: ModelConfig) -> int:
    if prompt.action is None:
        raise UserError(
            f"prompt {prompt.name!r}: this network has experts; choose one with --action, of "
            f"{', '.join(config.expert_names)}"
        )
    return expert_number(prompt.action, config.expert_names)


def generate_motions(
    model: TrainedModel, encoder: TextEncoder, prompts: Sequence[Prompt], settings: SamplingSettings
) -> list[Motion]:
    """One motion per prompt at the network's frame rate.

    Raises:
        UserError: the encoder's features have other widths than the network expects, a network with experts is not
            told which, or a sample is not finite.
    """
    config = model.generator.config
    if (encoder.token_dim, encoder.pooled_dim) != (config.ctxt_input_dim, config.vtxt_input_dim):
        raise UserError(
            f"text encoder {encoder.name}: {encoder.token_dim} and {encoder.pooled_dim} values; this network "
            f"expects {config.ctxt_input_dim} and {config.vtxt_input_dim}"
        )
    network: VelocityNetwork = model.generator
    if isinstance(model.generator, ExpertGenerator):
        network = Routed(model.generator, torch.tensor([_expert(prompt, config) for prompt in prompts]))
    device = model.generator.null_vtxt_feat.device
    lengths = torch.tensor([prompt.frames for prompt in prompts])
    noise = row_noise(lengths, config.input_dim, settings.seed, settings.first)
    latent = sample(
        network,
        encoder.encode([prompt.text for prompt in prompts]).to(device, torch.float32),
        lengths.to(device),
        noise.to(device),
        steps=settings.steps,
        method=settings.method,
        guidance=settings.guidance,
    ).cpu()
    features = denormalise(latent.float(), model.generator.mean.cpu(), model.generator.std.cpu())
    motions = [
        model.representation.to_motion(features[i, : prompt.frames], model.provenance.fps)
        for i, prompt in enumerate(prompts)
    ]
    for prompt, motion in zip(prompts, motions):
        if not bool(motion.rotations.isfinite().all() and motion.translation.isfinite().all()):
            raise UserError(
                f"prompt {prompt.name!r}: NaN or Inf in the sample at guidance {settings.guidance:g}; 1..10 is usual, "
                "or the weights are damaged"
            )
    return motions

"""Sample motions from text: a run folder, a weights.safetensors or a released latest.ckpt in; npz, bvh, gif out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from tqdm import tqdm

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.expert_ids import expert_number
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.flow.postprocess import smooth_motion
from ds_hymotion.formats.motions import FORMATS, write_motion
from ds_hymotion.generation import (
    Prompt,
    SamplingSettings,
    checked_prompts,
    corpus_prompts,
    generate_motions,
    read_prompts,
    with_actions,
)
from ds_hymotion.motion.motion import Motion
from ds_hymotion.reports.nearest import nearest_table
from ds_hymotion.text.encoders import text_encoder
from ds_hymotion.text.flags import EncoderFlags
from ds_hymotion.training.checkpoint_folder import require_outside
from ds_hymotion.training.text import fit_encoder
from ds_hymotion.training.weights import load_model


@dataclass
class SampleArguments(EncoderFlags):
    """Flags of launch/sample.py."""

    model: str = flag("", "run folder, weights.safetensors, or released latest.ckpt (or the folder that holds it)")
    out: str = flag("", "folder for the motions")
    prompt: list[str] = field(default_factory=list, metadata={"help": "texts to sample", "nargs": "+"})
    prompts: str = flag("", "file of text#frames#id lines")
    from_corpus: str = flag("", "one caption per action type of this corpus as prompts, compared with its clips")
    action: str | None = flag(
        None, "action type whose expert samples, where the network has experts; by the text of each prompt unless given"
    )
    frames: int = flag(120, "length at the network's rate where a prompt gives none: 20 to 360, best as in training")
    steps: int = flag(50, "steps of the integration")
    method: str = flag("euler", "euler, midpoint or dopri5")
    guidance: float = flag(5.0, "guidance scale; 1 = none")
    seed: int = flag(0, "seed of the noise")
    batch: int = flag(16, "prompts sampled together")
    smooth: bool = flag(True, "smooth rotations and path after sampling, as the release does; --no_smooth leaves them")
    formats: list[str] = field(
        default_factory=lambda: ["npz", "bvh", "gif"],
        metadata={"help": "which files to write: npz, bvh, gif, mp4, png (a strip of poses)", "nargs": "+"},
    )
    base: str | None = flag(None, "where the base weights of adapters are now; where they were in the training")
    text_encoder: str | None = flag(
        None,
        "encoder for a released checkpoint, which names none; by the width of its text features unless given",
    )


def main() -> None:
    """Parse, sample, write, print."""
    arguments = parse_flags(SampleArguments)
    for name in ("model", "out"):
        if not getattr(arguments, name):
            raise UserError(f"--{name} is missing; give a path")
    if arguments.batch < 1:
        raise UserError(f"--batch {arguments.batch} must be at least 1; 16 is usual")
    if not math.isfinite(arguments.guidance):
        raise UserError(f"--guidance {arguments.guidance} must be a finite number; 1 = none, 5 is usual")
    formats = [name for word in arguments.formats for name in word.replace(",", " ").split()]
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"--formats: {name!r} is not one of {', '.join(FORMATS)}")
    prompts = [Prompt(text, arguments.frames, f"{i:04d}") for i, text in enumerate(arguments.prompt)]
    if arguments.prompts:
        prompts += read_prompts(Path(arguments.prompts), arguments.frames, len(prompts))
    corpus = Corpus.open(arguments.from_corpus) if arguments.from_corpus else None
    if not prompts and not corpus:
        raise UserError('no prompts; give --prompt "a person walks forward", --prompts FILE or --from_corpus CORPUS')

    place, out = Path(arguments.model), Path(arguments.out)
    if place.is_dir():
        require_outside(out, place)
    model = load_model(arguments.model, arguments.text_encoder, arguments.base)
    config = model.generator.config
    prompts += corpus_prompts(corpus, config.text_position, bool(config.expert_names)) if corpus else []
    prompts = checked_prompts(prompts, config.text_position)
    if arguments.action is not None:
        if not config.expert_names:
            raise UserError(f"--action {arguments.action}: this network has no experts; leave it out")
        action = config.expert_names[expert_number(arguments.action, config.expert_names)]
        prompts = [replace(prompt, action=action) for prompt in prompts]
    name = model.provenance.text_encoder
    encoder = text_encoder(name, config.ctxt_input_dim, config.vtxt_input_dim, arguments.sources())
    fit_encoder(encoder, model.provenance, place)
    if config.expert_names:
        prompts = with_actions(prompts, config.expert_names, place if place.is_dir() else place.parent, encoder)
        print("\n".join(f"{prompt.name}: expert {prompt.action}" for prompt in prompts))
    if torch.cuda.is_available():
        model.generator.cuda()
    settings = SamplingSettings(arguments.steps, arguments.method, arguments.guidance, arguments.seed)
    motions: list[Motion] = []
    for start in tqdm(range(0, len(prompts), arguments.batch), desc="sampling", unit="batch"):
        part = prompts[start : start + arguments.batch]
        sampled = generate_motions(model, encoder, part, replace(settings, first=start))
        for prompt, motion in zip(part, sampled):
            final = smooth_motion(motion) if arguments.smooth else motion
            for path in write_motion(out, prompt.name, final, formats, prompt.text):
                tqdm.write(str(path))
        motions += sampled
    if corpus:
        print(nearest_table(prompts, motions, corpus))


if __name__ == "__main__":
    command_line(main)

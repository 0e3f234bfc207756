"""One expert as a network of its own: weights with experts in, a plain weights.safetensors or latest.ckpt out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.data.expert_ids import expert_number
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.model.experts import merged, merged_config
from ds_hymotion.model.released import write_released
from ds_hymotion.training.weights import load_weights, run_weights, save_weights


@dataclass
class MergeArguments:
    """Flags of launch/merge_expert.py."""

    model: str = flag("", "run folder or weights.safetensors of a network with experts")
    action: str = flag("", "action type whose expert is taken")
    out: str = flag("", "file to write: NAME.safetensors, or NAME.ckpt in the release's format")


def main() -> None:
    """Read, merge, write."""
    arguments = parse_flags(MergeArguments)
    for name, example in (("model", "RUN"), ("action", "LOCOMOTION"), ("out", "latest.ckpt")):
        if not getattr(arguments, name):
            raise UserError(f"--{name} is missing; give it, such as --{name} {example}")
    path, out = Path(arguments.model), Path(arguments.out)
    state, provenance = run_weights(path) if path.is_dir() else load_weights(path)
    config = provenance.config
    if not config.expert_names:
        raise UserError(f"{path}: this network has no experts; nothing is to be merged")
    if out.suffix not in (".safetensors", ".ckpt"):
        raise UserError(f"--out {out}: give a name that ends with .safetensors or .ckpt")
    plain = merged(state, expert_number(arguments.action, config.expert_names))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".ckpt":
            write_released(out, plain, 0, provenance.steps)
        else:
            save_weights(out, plain, replace(provenance, model=asdict(merged_config(config))))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror}); give another file") from None
    print(out)


if __name__ == "__main__":
    command_line(main)

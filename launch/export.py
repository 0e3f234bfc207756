"""Take weights away from a run: python launch/export.py RUN --format latest.ckpt --out FOLDER."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.training.export import Export


@dataclass
class ExportArguments:
    """Flags of launch/export.py; the run may be given without a flag, first."""

    run: str = flag("", "folder of a run, or its weights.safetensors or adapter_model.safetensors")
    out: str = flag("", "folder for the weights and what belongs to them")
    format: str = flag("latest.ckpt", "latest.ckpt, as the release's tools load it, or safetensors")
    ema: bool = flag(True, "the average of the weights where the run keeps one; --no_ema takes the weights themselves")
    checkpoint: str = flag("", "name of a checkpoint such as step-00000400; the newest intact one unless given")
    merge_lora: bool = flag(False, "of a run of adapters: whole weights with the adapters in them")
    base: str = flag("", "where the base weights of adapters are now; where they were in the training unless given")
    action: str = flag("", "of a network with experts: the action type whose expert becomes a plain network")


def main() -> None:
    """Parse, write, print."""
    given = sys.argv[1:]
    named = ["--run", *given] if given and not given[0].startswith("-") else given
    arguments = parse_flags(ExportArguments, named)
    for name in ("run", "out"):
        if not getattr(arguments, name):
            raise UserError(f"{'RUN' if name == 'run' else '--out'} is missing; give a folder")
    Export(
        Path(arguments.run),
        Path(arguments.out),
        arguments.format,
        arguments.ema,
        arguments.checkpoint,
        arguments.merge_lora,
        arguments.base,
        arguments.action,
    ).write(print)


if __name__ == "__main__":
    command_line(main)

"""Write the built-in motion set: python launch/builtin_motions.py --out DIR [--clips N | --clips_per_type N] ..."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.data.builtin import generate_set, table, write_set
from ds_hymotion.errors import UserError, command_line

CLIPS_PER_TYPE = 8


@dataclass
class BuiltinArguments:
    """Flags of launch/builtin_motions.py."""

    out: str = flag("", "folder of the set; must be new or empty")
    clips: int | None = flag(None, "clips in all")
    clips_per_type: int | None = flag(None, f"clips of each of the six action types; {CLIPS_PER_TYPE} unless given")
    frames: list[int] = field(
        default_factory=lambda: [60, 300], metadata={"help": "shortest and longest clip, in frames at 30 fps"}
    )
    seed: int = flag(0, "seed of everything random")


def main() -> None:
    """Generate, write, print what was written."""
    arguments = parse_flags(BuiltinArguments)
    if not arguments.out:
        raise UserError("--out is missing; give it, such as --out motions")
    if arguments.clips is not None and arguments.clips_per_type is not None:
        raise UserError(
            f"--clips {arguments.clips} and --clips_per_type {arguments.clips_per_type} exclude each other: give one"
        )
    per_type = arguments.clips_per_type
    if per_type is None and arguments.clips is None:
        per_type = CLIPS_PER_TYPE
    if len(arguments.frames) != 2:
        raise UserError(f"--frames {' '.join(map(str, arguments.frames))} must be two numbers, such as 60 300")
    low, high = arguments.frames
    clips = generate_set(per_type, arguments.clips, arguments.seed, (low, high))
    write_set(arguments.out, clips)
    print(table(clips))
    print(f"written to {arguments.out}: amass/, texts/, index.csv, actions.json")


if __name__ == "__main__":
    command_line(main)

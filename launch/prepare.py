"""Make a corpus of motions and captions: python launch/prepare.py --data_dir AMASS --out CORPUS [--texts DIR] ..."""

from __future__ import annotations

from ds_hymotion.errors import command_line


def main() -> None:
    """Parse the flags and prepare."""
    # Imported here: worker processes import this file, and do without the parser.
    from ds_hymotion.arguments import parse_flags
    from ds_hymotion.data.flags import PrepareArguments
    from ds_hymotion.data.prepare import prepare

    prepare(parse_flags(PrepareArguments).preparation())


if __name__ == "__main__":
    command_line(main)

"""Make a corpus of motions and captions: python launch/prepare.py --data_dir AMASS --out CORPUS [--texts DIR] ..."""

from __future__ import annotations

import sys
from pathlib import Path

from ds_hymotion.errors import command_line


def main() -> None:
    """Parse the flags and prepare."""
    # Imported here: worker processes import this file, and do without the parser.
    from ds_hymotion.data.workers import start_early

    if dict(zip(sys.argv, sys.argv[1:])).get("--workers") != "1":
        start_early()
    from ds_hymotion.arguments import parse_flags
    from ds_hymotion.data.check_against import Reference
    from ds_hymotion.data.flags import PrepareArguments
    from ds_hymotion.data.prepare import check_corpus, prepare

    given = parse_flags(PrepareArguments)
    reference = None
    if given.check_against is not None:
        from ds_hymotion.model.released import load_released

        reference = Reference.of(load_released(given.check_against).state, given.check_against)
    actions = given.action_settings()
    if actions is not None and not given.data_dir and given.out:
        given.require_finished_corpus()
        if reference is not None:
            check_corpus(Path(given.out), reference)
    elif reference is not None and not given.data_dir and given.out:
        check_corpus(Path(given.out), reference)
    else:
        prepare(given.preparation(), reference=reference)
    if actions is not None:
        from ds_hymotion.reports.actions import sort_with_report

        sort_with_report(Path(given.out), actions)


if __name__ == "__main__":
    command_line(main)

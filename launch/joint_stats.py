"""How much each joint turns, and joint groups for tensor ranks: python launch/joint_stats.py --data_dir CORPUS ..."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.reports.joint_variance import draw_variances, variance_table


@dataclass
class JointArguments:
    """Flags of launch/joint_stats.py."""

    data_dir: str = flag("", "prepared corpus")
    ranks: int = flag(2, "tensor ranks to suggest joint groups for")
    out: str = flag("", "PNG of the bar chart; joint_variance.png in the corpus unless given")


def main() -> None:
    """Print the table, draw the chart."""
    arguments = parse_flags(JointArguments)
    if not arguments.data_dir:
        raise UserError("--data_dir is missing; give it, such as --data_dir CORPUS")
    corpus = Corpus.open(arguments.data_dir)
    path = Path(arguments.out or corpus.folder / "joint_variance.png")
    print(variance_table(corpus.representation, corpus.joint_variance, arguments.ranks))
    try:
        draw_variances(corpus.representation, corpus.joint_variance, arguments.ranks, path)
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror}); give another path") from None
    print(path)


if __name__ == "__main__":
    command_line(main)

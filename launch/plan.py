"""Whether a configuration fits, told without a GPU: python launch/plan.py CONFIG [--gpus N --memory 24GB] ..."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.reports.planner.request import plan_text


@dataclass
class PlanArguments:
    """Flags of launch/plan.py, behind the configuration's path."""

    gpus: int | None = flag(None, "GPUs; those of the tier, or as many as the axes need, unless given")
    memory: str | None = flag(None, "memory of a card, such as 24GB; what the tier may take unless given")
    data_dir: str | None = flag(None, "prepared corpus, whose longest clips and captions count instead of any")
    torch_adam: bool = flag(False, "count the copy that torch's own Adam makes, where DeepSpeed's cannot be built")


def main() -> None:
    """Parse, plan, print."""
    given = sys.argv[1:]
    if given and given[0].startswith("-") and given[0] not in ("-h", "--help"):
        raise UserError(f"the configuration comes first: launch/plan.py ds_configs/lite_1x3090.json {' '.join(given)}")
    if not given:
        raise UserError("give a configuration, such as launch/plan.py ds_configs/lite_1x3090.json")
    arguments = parse_flags(PlanArguments, given if given[0].startswith("-") else given[1:])
    print(plan_text(given[0], arguments.gpus, arguments.memory, arguments.data_dir, not arguments.torch_adam))


if __name__ == "__main__":
    command_line(main)

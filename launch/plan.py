"""Whether a configuration fits, told without a GPU: python launch/plan.py CONFIG [--gpus N --memory 24GB] ..."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ds_hymotion.arguments import flag, parse_flags
from ds_hymotion.errors import UserError, command_line
from ds_hymotion.reports.planner.request import plan_text


@dataclass
class PlanArguments:
    """Flags of launch/plan.py; the configuration may be given without a flag, first."""

    config: str = flag("", "DeepSpeed JSON, such as ds_configs/lite_1x3090.json")
    gpus: int | None = flag(None, "GPUs; those of the tier, or as many as the axes need, unless given")
    memory: str | None = flag(None, "memory of a card, such as 24GB; what the tier may take unless given")
    data_dir: str | None = flag(None, "prepared corpus, whose longest clips and captions count instead of any")
    torch_adam: bool = flag(False, "count the copy that torch's own Adam makes, where DeepSpeed's cannot be built")


def main() -> None:
    """Parse, plan, print."""
    given = sys.argv[1:]
    named = ["--config", *given] if given and not given[0].startswith("-") else given
    arguments = parse_flags(PlanArguments, named)
    if not arguments.config:
        raise UserError("give a configuration, such as launch/plan.py ds_configs/lite_1x3090.json")
    print(plan_text(arguments.config, arguments.gpus, arguments.memory, arguments.data_dir, not arguments.torch_adam))


if __name__ == "__main__":
    command_line(main)

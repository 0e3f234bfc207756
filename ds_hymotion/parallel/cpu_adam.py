"""Adam on the CPU for offloaded optimizer states: DeepSpeed's, which compiles at first use, or torch's."""

from __future__ import annotations

import shutil
from typing import Any

import torch

NO_COMPILER = (
    "warning: no C++ compiler and ninja found, so offloaded states are stepped by torch's Adam, which is slower than "
    "DeepSpeed's; install them with apt-get install g++ ninja-build"
)


def compiles() -> bool:
    """Whether DeepSpeed's CPU Adam can be built here: it needs a C++ compiler and ninja."""
    from torch.utils.cpp_extension import get_cxx_compiler, is_ninja_available

    return shutil.which(get_cxx_compiler()) is not None and is_ninja_available()


def replay_steps(optimizer: torch.optim.Optimizer) -> None:
    """Bring DeepSpeed's CPU Adam to the step its states stand at, bit for bit; other optimizers need nothing.

    Its C++ part keeps the powers of beta as running products of fp32 numbers. Where it is handed a step that does not
    follow the last, it takes ``pow`` instead, whose last bits differ: a resumed run would leave an unbroken one.
    """
    if not hasattr(optimizer, "ds_opt_adam"):
        return
    native: Any = optimizer
    group = native.param_groups[0]
    last = max((int(state["step"]) for state in native.state.values() if "step" in state), default=0)
    weight, gradient, first, second = (torch.zeros(1) for _ in range(4))
    rates = (0.0, *group["betas"], group["eps"], group["weight_decay"], group["bias_correction"])
    for step in range(1, last + 1):
        native.ds_opt_adam.adam_update(native.opt_id, step, *rates, weight, gradient, first, second)

"""Ranks that ``srun`` starts itself, one task per process, without a launcher of DeepSpeed's or torch's."""

from __future__ import annotations

from collections.abc import MutableMapping

from ds_hymotion.errors import UserError

NAMES = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
PORT = "29500"


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Give a task of a Slurm step the variables that a launcher would have set; without effect anywhere else.

    Raises:
        UserError: nobody said on which machine the first task is.
    """
    if "RANK" in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    if not environment.get("MASTER_ADDR"):
        raise UserError(
            "MASTER_ADDR is missing in a step of several tasks; before srun, "
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        )
    for name, slurm in NAMES.items():
        environment[name] = environment[slurm]
    environment.setdefault("MASTER_PORT", PORT)

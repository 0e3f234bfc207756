"""Two machines, played by one: a launcher on each, or Slurm's srun without any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ds_hymotion.errors import UserError
from ds_hymotion.parallel.slurm import adopt_slurm
from tests.commands import ROOT, cpu_environment
from tests.corpora import wavy_corpus
from tests.ranks import RankPool, free_port
from tests.runs import logged, run_settings, train


def node_commands(folder: Path, port: str) -> dict[str, list[list[str]]]:
    """What is started on each of two nodes, by way of starting."""
    hostfile = folder / "hostfile"
    hostfile.write_text("localhost slots=1\n127.0.0.1 slots=1\n")
    address = ["--master_addr", "127.0.0.1", "--master_port", port]
    launcher = ["deepspeed", "-H", str(hostfile), "--no_ssh", *address]
    torchrun = ["torchrun", "--nnodes", "2", "--nproc_per_node", "1", *address]
    return {
        "deepspeed": [[*launcher, "--node_rank", str(node)] for node in range(2)],
        "torchrun": [[*torchrun, "--node_rank", str(node)] for node in range(2)],
        "srun": [[sys.executable], [sys.executable]],
    }


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["deepspeed", "torchrun", "srun"])
def test_two_nodes(ranks: RankPool, tmp_path: Path, way: str) -> None:
    corpus = wavy_corpus(tmp_path / "wavy", [20, 23, 31, 34, 40, 44])
    settings = run_settings(zero_optimization={"stage": 1}, hymotion__training__max_steps=3)
    ranks.run(2, train, settings, corpus.folder, tmp_path / "one")
    config, port, run = tmp_path / "run.json", str(free_port()), tmp_path / way
    config.write_text(json.dumps(settings))
    flags = ["launch/train.py", "--deepspeed", "--deepspeed_config", str(config), "--data_dir", str(corpus.folder),
             "--output_dir", str(run)]  # fmt: skip
    nodes = []
    for node, command in enumerate(node_commands(tmp_path, port)[way]):
        environment = cpu_environment(tmp_path)
        if way == "srun":
            environment |= {"SLURM_PROCID": str(node), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        output = (tmp_path / f"{node}.txt").open("w")
        nodes.append(
            subprocess.Popen([*command, *flags], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        )
    try:
        codes = [node.wait(300) for node in nodes]
    finally:
        for process in nodes:
            process.kill()
    said = [(tmp_path / f"{node}.txt").read_text() for node in range(2)]
    assert codes == [0, 0], "\n".join(said)
    assert "2 data rank(s)" in said[0] and len(logged(run)) == 3
    assert logged(run) == logged(tmp_path / "one")


def test_tasks_of_a_slurm_step_become_ranks() -> None:
    step = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}
    with pytest.raises(UserError, match="MASTER_ADDR is missing .*scontrol show hostnames"):
        adopt_slurm(dict(step))
    environment = {**step, "MASTER_ADDR": "node1"}
    adopt_slurm(environment)
    found = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    assert found == {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    for other in ({"RANK": "0", **step}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}):
        before = dict(other)
        adopt_slurm(other)
        assert other == before

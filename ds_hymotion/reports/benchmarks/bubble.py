"""How long pipeline stages wait: by layers and by time, measured and simulated, and other schedules simulated."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ds_hymotion.model.config import ModelConfig
from ds_hymotion.parallel.mesh import Mesh, free_port
from ds_hymotion.reports.measuring import stage_schedules
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.reports.measuring.stage_schedules import Costs, Operation, bubble
from ds_hymotion.reports.measuring.stage_times import Load, in_turn, measure, measured_bubble, measured_costs

CHUNK = 60
REAL = ModelConfig(256, 6, 4, input_dim=219, ctxt_input_dim=128, vtxt_input_dim=128, text_position=600)
THIN = ModelConfig(
    16, 9, 2, input_dim=219, ctxt_input_dim=16, vtxt_input_dim=16, mlp_ratio=1.0, text_position=600, refiner_layers=1
)
BY_TIME, BY_LAYERS = "by time", "by layers, 1F1B"
SLEPT_FORWARD = 0.1
SIMULATED: dict[str, Callable[[int, int, Costs], list[list[Operation]]]] = {
    BY_LAYERS: stage_schedules.one_forward_one_backward,
    "by layers, interleaved": stage_schedules.interleaved,
    "by layers, zero-bubble H1": stage_schedules.zero_bubble,
    "by layers, DualPipeV": stage_schedules.dual_pipe_v,
    BY_TIME: stage_schedules.by_time,
}


def run(micro_batches: int = 4, steps: int = 4, most_stages: int = 8) -> list[Row]:
    """Share of the time from the first forward to the last backward pass in which a stage does neither.

    Two stages compute a network of width 256 with 6 blocks for real, one process and thread each. On 4, 5 and 8
    stages (as far as --most_stages goes) the real engines exchange real messages, and operations sleep in the ratio
    forward : backward : state that the two stages measured. Beside each stands the simulated share for the same
    costs; then all schedules simulated, where they are defined. On a machine with other work to do the least of the
    steps says more than their median: what disturbs one stage makes the other wait. By time the stages of tied
    weights also sum their gradients after the last backward pass; the share with that is among the conditions.
    """
    jobs: list[tuple[str, int, bool]] = [(mode, 2, False) for mode in (BY_TIME, BY_LAYERS)]
    jobs += [(mode, stages, True) for stages in (4, 5, 8) if stages <= most_stages for mode in (BY_TIME, BY_LAYERS)]
    with tempfile.TemporaryDirectory() as folder:
        ports = [(stages, free_port()) for _, stages, _ in jobs]
        most = max(stages for stages, _ in ports)
        arguments = (jobs, ports, most, micro_batches, steps, folder)
        torch.multiprocessing.spawn(_process, arguments, nprocs=most)
        found = [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(len(jobs))]
    costs = measured_costs(found[0])
    rows = []
    for (mode, stages, slept), spans in zip(jobs, found):
        own = measured_costs(spans)
        if mode == BY_LAYERS:
            own = dataclasses.replace(own, state=0.0)
        rows.append(_measured(mode, stages, micro_batches, slept, spans, own))
    for name, value in (("backward", costs.backward), ("state", costs.state)):
        rows.append(
            Row(
                f"seconds of a {name}, two stages by time", value, "s", costs.forward, conditions={"against": "forward"}
            )
        )
    return rows + simulated(costs)


def simulated(costs: Costs) -> list[Row]:
    """All schedules for 2, 4, 5 and 8 stages and 4, 8 and 16 micro-batches, beside 1F1B."""
    rows = []
    for name, schedule in SIMULATED.items():
        for stages in (2, 4, 5, 8):
            for micro in (4, 8, 16):
                try:
                    share = bubble(schedule(stages, micro, costs))
                except ValueError:
                    continue
                plain = bubble(stage_schedules.one_forward_one_backward(stages, micro, costs))
                conditions = {"stages": stages, "micro-batches": micro, "how": "simulated", "against": "1F1B"}
                rows.append(Row(f"bubble {name}", 100 * share, "%", 100 * plain, conditions=conditions))
    return rows


def _measured(mode: str, stages: int, micro: int, slept: bool, spans: list[Any], costs: Costs) -> Row:
    shares = sorted(measured_bubble(step) for step in spans)
    share = median(shares)
    conditions = {
        "stages": stages,
        "micro-batches": micro,
        "how": "measured, operations asleep" if slept else "measured, computing",
        "median of steps": len(spans),
        "least": f"{100 * shares[0]:.2f} %",
        "with the sum of tied gradients": f"{100 * median(measured_bubble(step, True) for step in spans):.2f} %",
        "against": "simulated with the same costs",
    }
    expected = bubble(SIMULATED[mode](stages, micro, costs))
    return Row(f"bubble {mode}", 100 * share, "%", 100 * expected, conditions=conditions)


def _process(
    rank: int,
    jobs: list[tuple[str, int, bool]],
    ports: list[tuple[int, int]],
    total: int,
    micro_batches: int,
    steps: int,
    folder: str,
) -> None:
    torch.set_num_threads(1)

    def work(number: int) -> None:
        mode, stages, slept = jobs[number]
        config, sleeps = (THIN, _sleeps(Path(folder))) if slept else (REAL, None)
        if mode == BY_TIME:
            config = dataclasses.replace(config, chunk_frames=CHUNK)
        load = Load(config, micro_batches, 1 if slept else 4, CHUNK * stages, 8 if slept else 32, sleeps)
        mesh = Mesh.start(pipe=stages)
        spans = measure(load, mesh, steps)
        if mesh.is_first:
            (Path(folder) / f"{number}.json").write_text(json.dumps(spans))
        mesh.stop()

    in_turn(ports, rank, total, Path(folder), work)


def _sleeps(folder: Path) -> Costs:
    """The costs that the first job measured, as long as the slept forward pass."""
    measured = measured_costs(json.loads((folder / "0.json").read_text()))
    scale = SLEPT_FORWARD / measured.forward
    return Costs(*(scale * value for value in dataclasses.astuple(measured)))

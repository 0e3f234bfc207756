"""The planner's estimates against what real training steps allocate on CPU processes."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.mesh import Mesh, free_port
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.reports.measuring.live_tensors import live_bytes
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.reports.measuring.stage_times import Load as Batches
from ds_hymotion.reports.measuring.stage_times import batch_of, in_turn
from ds_hymotion.reports.planner.load import Load
from ds_hymotion.reports.planner.plan import Plan, RankPlan, plan_run
from ds_hymotion.reports.planner.states import COPIES
from ds_hymotion.training.ema import WeightAverage
from ds_hymotion.training.memory import counting_saved
from ds_hymotion.training.network import sized_network

NETWORKS: dict[str, dict[str, int]] = {
    "tiny": {},
    "100 M": {"feat_dim": 512, "num_layers": 15, "num_heads": 8},
}
SPACE = representation("hymotion-201")
CLIPS, FRAMES, TOKENS, BUCKET = 2, 60, 16, 1_000_000
LAST = ("motion_transformer.input_encoder.weight", "motion_transformer.ctxt_encoder.weight")
BF16 = {"bf16": {"enabled": True}}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
CASES: dict[str, dict[str, Any]] = {
    "fp32, ZeRO-0": {},
    "fp32, ZeRO-1": {"zero_optimization": {"stage": 1}},
    "fp32, ZeRO-2": {"zero_optimization": {"stage": 2}},
    "bf16, ZeRO-1": {**BF16, "zero_optimization": {"stage": 1}},
    "bf16, ZeRO-2": {**BF16, "zero_optimization": {"stage": 2}},
    "bf16, ZeRO-3": {**BF16, "zero_optimization": {"stage": 3}},
    "bf16, ZeRO-3, all offloaded": {
        **BF16,
        "zero_optimization": {"stage": 3, **OFFLOAD, "offload_param": {"device": "cpu"}},
    },
    "bf16, ZeRO-2, offload": {**BF16, "zero_optimization": {"stage": 2, **OFFLOAD}},
}


@dataclass(frozen=True)
class Measured:
    """Bytes on one rank.

    Attributes:
        states: tensors that are alive at the end of the backward pass or at the optimizer step, whichever is more.
        activations: what autograd saved in the forward pass.
        peak: most that the second step held at once.
    """

    states: int
    activations: int
    peak: int


def run(networks: str = "tiny,100 M", cases: str = "", ranks: str = "1,2") -> list[Row]:
    """States, saved activations and peak of real steps against their estimates, per precision, ZeRO stage and ranks.

    States: every reachable tensor's storage once. Activations: hooks on saved tensors. Peak: torch's profiler, which
    sees every allocation. `cases` and `networks` choose some by name, with semicolons and commas between them.
    """
    names = [case.strip() for case in cases.split(";") if case.strip()] or list(CASES)
    rows = []
    for world in map(int, ranks.split(",")):
        jobs = [(network.strip(), case) for network in networks.split(",") for case in names]
        for (network, case), measured in zip(jobs, _measured(world, jobs)):
            rows += compare(network, case, world, measured)
    return rows


def planned(network: str, case: str, world: int) -> Plan:
    """The plan of what :func:`measure` runs."""
    config = settings(network, case, world)
    return plan_run(config, Load(SPACE, (FRAMES,), TOKENS, "the benchmark"), fused=False)


def settings(network: str, case: str, world: int) -> RunConfig:
    """The configuration of a case."""
    given = json.loads(json.dumps(CASES[case]))
    if "zero_optimization" in given:
        given["zero_optimization"]["reduce_bucket_size"] = BUCKET
    model = {"preset": "tiny", **NETWORKS[network]}
    raw = {"train_micro_batch_size_per_gpu": CLIPS, "hymotion": {"model": model}, **given}
    raw["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
    return RunConfig(raw, case, ranks=world)


def measure(network: str, case: str, mesh: Mesh) -> Measured:
    """Train two steps and an average on this rank."""
    gc.collect()
    before = live_bytes()
    config = settings(network, case, mesh.world)
    sizes = sized_network(config.hymotion, SPACE.channels)
    generator = MotionGenerator(sizes)
    initialise(generator, 0, copy_noise=False)
    body = BodyLosses(SPACE, generator.mean.clone(), generator.std.clone(), 30.0, config.hymotion.flow)
    objective = FlowObjective(generator, config.hymotion.flow, body)
    groups = sync_groups(config.hymotion.gradient_sync, [name for name, _ in generator.named_parameters()])
    engine = DataEngine(objective, config, mesh, groups)
    average = WeightAverage(engine.states, 0.9)
    batch = batch_of(Batches(sizes, 1, CLIPS, FRAMES, TOKENS))
    found: list[int] = []
    handles = [engine.engine.basic_optimizer.register_step_pre_hook(lambda *_: found.append(live_bytes()))]
    for name in LAST:
        weight = engine.parameters[name]
        handles.append(weight.register_post_accumulate_grad_hook(lambda _: found.append(live_bytes())))

    def step(number: int) -> None:
        engine.train_step(number, [batch], mesh.world * CLIPS * FRAMES, 1.0)
        average.update(engine.sync.stepping)

    with counting_saved(*engine.called_modules) as saved:
        step(0)
    step(1)
    for handle in handles:
        handle.remove()
    gc.collect()
    resting = live_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(2)
    peak = now = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return Measured(max(found) - before, saved.network + saved.loss, resting + peak - before)


def _measured(world: int, jobs: Sequence[tuple[str, str]]) -> list[Measured]:
    """All jobs on ``world`` processes, one after the other; what the first rank found."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (world, free_port(), jobs, folder), nprocs=world)
        return [Measured(**json.loads((Path(folder) / f"{number}.json").read_text())) for number in range(len(jobs))]


def _process(rank: int, world: int, port: int, jobs: Sequence[tuple[str, str]], folder: str) -> None:
    torch.set_num_threads(1)

    def work(number: int) -> None:
        mesh = Mesh.start()
        for place, (network, case) in enumerate(jobs):
            found = measure(network, case, mesh)
            if mesh.is_first:
                (Path(folder) / f"{place}.json").write_text(json.dumps(vars(found)))
        mesh.stop()

    in_turn([(world, port)], rank, world, Path(folder), work)


def compare(network: str, case: str, world: int, measured: Measured) -> list[Row]:
    """Rows of what was measured against the plan."""
    rank: RankPlan = planned(network, case, world).largest
    host = {name: value for name, value in rank.states.host.items() if name != COPIES}
    states = sum(rank.states.device.values()) + sum(host.values())
    peak = states + max(rank.kept + rank.working, rank.states.step, rank.states.host.get(COPIES, 0))
    conditions = {"network": network, "precision": case, "data ranks": world, "against": "planned"}
    pairs = {
        "states": (measured.states, states),
        "activations": (measured.activations, rank.kept),
        "peak": (measured.peak, peak),
    }
    return [Row(name, real / 1e6, "MB", plan / 1e6, conditions=conditions) for name, (real, plan) in pairs.items()]

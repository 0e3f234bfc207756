"""The golden network cut over tensor ranks: its loss, every gradient, and optimizer steps on DeepSpeed's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.motion.representation import representation
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import sync_groups
from ds_hymotion.parallel.tensor import cut_network, plan_cuts, replica_difference
from ds_hymotion.training.joints import JointPlan
from tests.golden_network import golden_generator, golden_numbers
from tests.ranks import RankPool
from tests.runs import run_settings

BODY = representation("hymotion-201")


def golden_objective(shared: Path, mesh: Mesh, groups: str | None) -> tuple[FlowObjective, Any]:
    settings = RunConfig({"hymotion": {"training": {"joint_groups": groups}}}).hymotion
    joints = JointPlan(settings.training, BODY, mesh.model_size)
    generator = golden_generator(golden_numbers(shared))
    plan = plan_cuts(generator, generator.config, joints.rank_channels)
    cut_network(generator, plan, mesh.model_rank, mesh.model_group)
    body = BodyLosses(BODY, generator.mean, generator.std, 30.0, FlowSection())
    return FlowObjective(generator, settings.flow, body, joints.share(mesh)), plan


def gradients_job(shared: Path) -> tuple[float, dict[str, Tensor], float]:
    """The golden loss and this rank's gradients, from the golden inputs."""
    mesh = Mesh.current(model=dist.get_world_size())
    objective, plan = golden_objective(shared, mesh, None)
    numbers = golden_numbers(shared)
    inputs = [numbers[f"input/{name}"] for name in ("x", "motion_length", "ctxt", "text_length", "vtxt", "timesteps")]
    inputs[4] = inputs[4][:, 0]
    network = objective.generator.motion_transformer
    valid = torch.arange(360) < numbers["input/motion_length"][:, None]
    target = numbers["loss/target"]
    own = slice(None) if objective.share.own is None else objective.share.own
    loss = (network(*inputs) - target[..., own])[valid].square().sum() / (valid.sum() * 201)
    loss.backward()
    gradients = {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    loss = mesh.sum_over_model(loss.detach())
    named = ((f"motion_transformer.{name}", value) for name, value in gradients.items())
    return float(loss), gradients, replica_difference(named, plan, mesh.model_group)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_golden_loss_and_gradients(ranks: RankPool, shared: Path, size: int) -> None:
    numbers = golden_numbers(shared)
    ((loss, whole, _),) = ranks.run(1, gradients_job, shared)
    found = ranks.run(size, gradients_job, shared)
    generator = golden_generator(numbers)
    plan = plan_cuts(generator, generator.config, JointPlan(RunConfig({}).hymotion.training, BODY, size).rank_channels)
    worst = 0.0
    for name, gradient in whole.items():
        joined = plan.join(f"motion_transformer.{name}", [gradients[name] for _, gradients, _ in found])
        largest = float(gradient.abs().max())
        if largest < 1e-8:
            assert name.endswith("self_attn_k_norm.bias"), name
            continue
        worst = max(worst, float((joined - gradient).abs().max()) / largest)
        assert float((joined - gradient).abs().max()) <= 1e-5 * largest, name
        assert joined.norm().item() == pytest.approx(numbers[f"gradnorm/{name}"].item(), rel=1e-3, abs=1e-8)
    print(f"golden network on {size} tensor ranks: gradients within {worst:.1e} of their largest value")
    for other, _, difference in found:
        assert other == pytest.approx(loss, rel=1e-6) and other == pytest.approx(numbers["loss/mse"].item(), rel=1e-6)
        assert difference == 0


def steps_job(shared: Path, stage: int, clipping: float) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """Five AdamW steps: whole weights and moments, losses, gradient norms."""
    size = dist.get_world_size()
    settings = run_settings(
        hymotion__parallel__model=size,
        zero_optimization={"stage": stage},
        gradient_clipping=clipping,
        train_batch_size=3,
    )
    config, mesh = RunConfig(settings, ranks=size), Mesh.current(model=size)
    objective, plan = golden_objective(shared, mesh, None)
    names = [name.removeprefix("generator.") for name, _ in objective.named_parameters()]
    engine = DataEngine(objective, config, mesh, sync_groups(config.hymotion.gradient_sync, names), plan)
    numbers = golden_numbers(shared)
    batch = Batch(
        motion=numbers["loss/target"],
        noise=numbers["input/x"],
        t=numbers["input/timesteps"],
        lengths=numbers["input/motion_length"],
        text=numbers["input/ctxt"],
        text_lengths=numbers["input/text_length"],
        pooled=numbers["input/vtxt"][:, 0],
        drop=torch.tensor([False, True, False]),
    )
    frames = int(batch.lengths.sum())
    losses, norms = [], []
    for step in range(5):
        parts = mesh.sum_over_all(engine.train_step(step, [batch], frames, 1.0))
        losses.append(float(objective.total(parts, frames)))
        norms.append(engine.gradient_norm)
    found = {}
    for kind in engine.states.kinds():
        pieces = engine.states.pieces(kind)
        found.update({f"{kind} {name}": engine.states.gather(name, pieces).clone() for name in engine.parameters})
    return (found if mesh.is_first else {}), losses, norms


@pytest.mark.parametrize(
    ("size", "stage"), [(2, 0), (2, 1), *(pytest.param(4, stage, marks=pytest.mark.full) for stage in (0, 1))]
)
def test_golden_network_after_five_steps(ranks: RankPool, shared: Path, size: int, stage: int) -> None:
    clipping = 0.02
    one, losses, norms = ranks.run(1, steps_job, shared, stage, clipping)[0]
    many, cut_losses, cut_norms = ranks.run(size, steps_job, shared, stage, clipping)[0]
    assert cut_losses == pytest.approx(losses, rel=1e-6) and cut_norms == pytest.approx(norms, rel=1e-5)
    assert min(norms) > 2 * clipping
    start = golden_generator(golden_numbers(shared)).state_dict()
    assert max(float((start[n] - one[f"master {n}"]).abs().max()) for n in start if f"master {n}" in one) > 1e-3
    worst = max(float((one[name] - many[name]).abs().max()) for name in one)
    print(f"golden network, {size} tensor ranks, ZeRO {stage}: largest difference after 5 steps {worst:.1e}")
    assert worst < 1e-5

"""Selective sync on networks small enough to follow: jobs for rank processes, and the same by two plain optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.gradient_sync import assert_synced
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups

ADAM = {"lr": 0.05, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.1}


@dataclass
class Pairs:
    """A batch: inputs and the weights of the outputs in the loss."""

    x: torch.Tensor
    y: torch.Tensor

    def to(self, _: torch.device) -> Pairs:
        return self


class Line(nn.Module):
    """The loss y · (weight · x + bias): its gradients are y · x and y, whatever the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        nn.init.ones_(self.linear.weight)
        nn.init.ones_(self.linear.bias)

    def forward(self, batch: Pairs, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        loss = (self.linear(batch.x) * batch.y).sum()
        return loss, loss.detach().view(1)


class Perceptron(nn.Module):
    """Two layers on random data; the first is deferred in the tests."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 3)
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=random))

    def forward(self, batch: Pairs, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = self.first.weight.dtype
        out = self.second(torch.tanh(self.first(batch.x.to(dtype))))
        loss = (out.float() - batch.y).square().mean()
        return loss, loss.detach().view(1)


def array(value: torch.Tensor) -> np.ndarray:
    return value.detach().float().clone().numpy()


ALWAYS, DEFERRED = ("second.weight", "second.bias"), ("first.weight", "first.bias")


def data(step: int, rank: int, micro: int) -> Pairs:
    random = torch.Generator().manual_seed(10_000 + 100 * step + 10 * rank + micro)
    return Pairs(torch.randn(4, 6, generator=random), torch.randn(4, 3, generator=random))


def settings(every: int, **changes: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": dict(ADAM)},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "hymotion": {"gradient_sync": {"others_every": every}},
        **changes,
    }


def engine_of(module: nn.Module, config: dict[str, Any], groups: SyncGroups) -> DataEngine:
    mesh = Mesh.current()
    objective: Any = module
    return DataEngine(objective, RunConfig(config, "test", ranks=mesh.data_size), mesh, groups)


def line_job(config: dict[str, Any], inputs: list[list[float]]) -> list[tuple[float, float]]:
    """Weight and bias after every step; ``inputs[rank][step]``."""
    engine = engine_of(Line(), config, SyncGroups(("linear.bias",), ("linear.weight",), ()))
    rank = engine.mesh.data_rank
    one = torch.ones(1, 1)
    after = []
    for step, x in enumerate(inputs[rank]):
        engine.train_step(step, [Pairs(x * one, one / engine.mesh.data_size)], 1, 1.0)
        linear = engine.objective.linear  # type: ignore[attr-defined]
        after.append((linear.weight.item(), linear.bias.item()))
    return after


@dataclass
class Trace:
    """What a rank saw after every step."""

    weights: list[dict[str, np.ndarray]]
    moments: list[dict[str, np.ndarray]]
    norms: list[float]
    traffic: list[dict[str, float]]


def perceptron_job(config: dict[str, Any], steps: int) -> Trace:
    """Train the perceptron; ranks are compared bit by bit after every step."""
    engine = engine_of(Perceptron(), config, SyncGroups(ALWAYS, DEFERRED, ()))
    trace = Trace([], [], [], [])
    with engine.traffic:
        for step in range(steps):
            batches: Any = [data(step, engine.mesh.data_rank, micro) for micro in range(engine.accumulation)]
            engine.train_step(step, batches, 1, 1.0)
            assert_synced(engine.mesh, engine.parameters, f"step {step}")
            trace.weights.append({name: array(p) for name, p in engine.parameters.items()})
            states = engine.states
            trace.moments.append(
                {f.name: array(states.local(f, "exp_avg")) for f in states.fragments() if f.name in DEFERRED}
            )
            trace.norms.append(engine.gradient_norm)
            trace.traffic.append(engine.traffic.scalars())
    return trace


def reference(every: int, world: int, accumulation: int, clip: float, steps: int, dtype: torch.dtype) -> Trace:
    """The same by hand on one process: fp32 masters, one AdamW for each group, gradients averaged over all ranks.

    DeepSpeed's bf16 masters start from the weights rounded to bf16.
    """
    model = Perceptron()
    masters = {name: p.detach().to(dtype).float().clone().requires_grad_() for name, p in model.named_parameters()}
    model.to(dtype)
    own = dict(model.named_parameters())
    optimizers = {
        names: torch.optim.AdamW([masters[name] for name in names], **{**ADAM, "betas": tuple(ADAM["betas"])})  # type: ignore[arg-type]
        for names in (ALWAYS, DEFERRED)
    }
    sums = {name: torch.zeros_like(value) for name, value in masters.items()}
    trace = Trace([], [], [], [])
    for step in range(steps):
        for rank in range(world):
            for micro in range(accumulation):
                loss = model(data(step, rank, micro), 1)[0] * accumulation * world / accumulation
                for name, gradient in zip(own, torch.autograd.grad(loss, list(own.values()))):
                    sums[name] += gradient.float() / world
        due = (step + 1) % every == 0
        stepping = (*ALWAYS, *DEFERRED) if due else ALWAYS
        for name in stepping:
            masters[name].grad = sums[name] / (every if name in DEFERRED else 1)
            sums[name] = torch.zeros_like(sums[name])
        gradients = [masters[name] for name in stepping]
        norm = torch.nn.utils.clip_grad_norm_(gradients, clip) if clip else torch.zeros(())
        trace.norms.append(float(norm))
        for names, optimizer in optimizers.items():
            if names == ALWAYS or due:
                optimizer.step()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(masters[name])
        trace.weights.append({name: array(p) for name, p in own.items()})
    return trace

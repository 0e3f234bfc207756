"""Selective sync inside DeepSpeed's pipeline engine: two stages of two data ranks against one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.ranks import RankPool

LAYERS, WIDTH, MICRO, STEPS = 4, 5, 2, 5
ADAM = {"lr": 0.05, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.1}


class Layer(nn.Module):
    """One layer of the stack. Odd ones are averaged every step, so each stage of two has one of both kinds."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        random = torch.Generator().manual_seed(index)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=random))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


def data(step: int, rank: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * step + 10 * rank + micro)
    return torch.randn(3, WIDTH, generator=random), torch.randn(3, WIDTH, generator=random)


def loss_of(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output - label).square().mean()


def stage_job(stage: int, clip: float) -> tuple[list[dict[str, np.ndarray]], list[bool]]:
    """This rank's weights after every step, and whether a step was a sync."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

    from ds_hymotion.parallel.gradient_sync import GradientSync
    from ds_hymotion.parallel.traffic import Traffic

    class Synced(PipelineEngine):
        sync: GradientSync

        def allreduce_gradients(self, *arguments: Any, **named: Any) -> None:
            with self.sync.reducing():
                super().allreduce_gradients(*arguments, **named)

        def _take_model_step(self, *arguments: Any) -> None:
            with self.sync.moving():
                super()._take_model_step(*arguments)

    module = PipelineModule(
        [LayerSpec(Layer, index) for index in range(LAYERS)],
        topology=PipeDataParallelTopology(2, 2),
        loss_fn=loss_of,
        partition_method="uniform",
    )
    named = dict(module.named_parameters())
    always = {name: value for name, value in named.items() if int(name.split(".")[0]) % 2}
    deferred = {name: value for name, value in named.items() if name not in always}
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": MICRO,
        "gradient_clipping": clip,
        "steps_per_print": 10**6,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {**ADAM, "torch_adam": True}},
    }
    stock, deepspeed.PipelineEngine = deepspeed.PipelineEngine, Synced
    try:
        engine, *_ = deepspeed.initialize(
            model=module,
            model_parameters=[{"params": list(part.values())} for part in (always, deferred)],
            config=config,
            dist_init_required=False,
        )
    finally:
        deepspeed.PipelineEngine = stock
    engine.sync = GradientSync(engine, always, deferred, 2, Traffic())
    rank = engine.grid.get_data_parallel_rank()
    weights, syncs = [], []

    def batches(step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter([data(step, rank, micro) for micro in range(MICRO)])

    for step in range(STEPS):
        engine.sync.begin(step)
        syncs.append(engine.sync.due)
        engine.train_batch(batches(step))
        weights.append({name: value.detach().clone().numpy() for name, value in named.items()})
    return weights, syncs


def reference(clip: float) -> list[dict[str, np.ndarray]]:
    layers = nn.ModuleList([Layer(index) for index in range(LAYERS)])
    named = dict(layers.named_parameters())
    groups = [[value for name, value in named.items() if int(name.split(".")[0]) % 2 == odd] for odd in (1, 0)]
    arguments: Any = {**ADAM, "betas": (0.8, 0.9)}
    optimizers = [torch.optim.AdamW(group, **arguments) for group in groups]
    sums = {value: torch.zeros_like(value) for value in named.values()}
    after = []
    for step in range(STEPS):
        for rank in range(2):
            for micro in range(MICRO):
                x, y = data(step, rank, micro)
                for layer in layers:
                    x = layer(x)
                loss = loss_of(x, y) / (2 * MICRO)
                for value, gradient in zip(sums, torch.autograd.grad(loss, list(sums))):
                    sums[value] += gradient
        due = step % 2 == 1
        moving = [*groups[0], *groups[1]] if due else groups[0]
        for value in moving:
            value.grad = sums[value] / (2 if any(value is other for other in groups[1]) else 1)
            sums[value] = torch.zeros_like(value)
        if clip:
            torch.nn.utils.clip_grad_norm_(moving, clip)
        for optimizer in optimizers[: 1 + due]:
            optimizer.step()
        after.append({name: value.detach().clone().numpy() for name, value in named.items()})
    return after


@pytest.mark.parametrize(("stage", "clip"), [(0, 0.0), (1, 0.05)])
def test_two_stages_of_two_data_ranks(ranks: RankPool, stage: int, clip: float) -> None:
    expected = reference(clip)
    results = ranks.run(4, stage_job, stage, clip)
    seen: set[str] = set()
    for weights, syncs in results:
        assert syncs == [False, True, False, True, False]
        for got, wanted in zip(weights, expected):
            for name, value in got.items():
                assert np.allclose(value, wanted[name], rtol=0, atol=2e-6), name
        seen.update(weights[0])
    assert len(seen) == 2 * LAYERS
    for step in range(1, STEPS):
        name = "0.linear.weight"
        assert np.array_equal(expected[step][name], expected[step - 1][name]) == (step % 2 == 0)

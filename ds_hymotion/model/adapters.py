"""Low-rank adapters (LoRA, arXiv 2106.09685) on a plain network, through peft.

A linear's weight W [out, in] becomes W + (alpha / rank) · B·A with A [rank, in] and B [out, rank]; only A and B train.
Where a linear called ``X`` has an adapter, its own tensors are called ``X.base_layer.weight`` and ``.bias``, the
adapter's ``X.lora_A.default.weight`` and ``X.lora_B.default.weight``: peft's names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ds_hymotion.errors import UserError
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import named_generator

ADAPTER = "default"
A, B = f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"


@dataclass(frozen=True)
class LowRank:
    """Which linears of a network have an adapter, and of which size.

    Attributes:
        rank: columns of B and rows of A.
        alpha: over ``rank``, the factor of B·A.
        modules: released names of the linears.
    """

    rank: int
    alpha: float
    modules: tuple[str, ...]

    @property
    def scale(self) -> float:
        """The factor of B·A."""
        return self.alpha / self.rank

    def peft_config(self) -> Any:
        """The same as peft has it, for a network in training."""
        from peft import LoraConfig  # seconds to import, and few runs need it

        alpha: Any = self.alpha  # peft says int and computes with any number
        return LoraConfig(r=self.rank, lora_alpha=alpha, target_modules=list(self.modules), lora_dropout=0.0)


def linear_names(network: nn.Module) -> list[str]:
    """Names of a plain network's linears, in its order."""
    return [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a linear with an adapter."""
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")


def add_adapters(
    generator: MotionGenerator, settings: LowRank, seed: int, held: Callable[[str], bool] | None = None
) -> None:
    """Give linears of a plain network their adapters in place, and freeze everything else.

    A is Kaiming-uniform as a fresh linear's weight is, drawn by ``seed`` and its own name; B is zero.

    Args:
        held: which parameters this process needs; adapters of the others stay on the meta device. None = all.
    """
    from peft import inject_adapter_in_model

    inject_adapter_in_model(settings.peft_config(), generator, adapter_name=ADAPTER, low_cpu_mem_usage=True)
    for name, parameter in list(generator.named_parameters()):
        if name.endswith((A, B)) and (held is None or held(name)):
            parent, _, child = name.rpartition(".")
            value = torch.zeros(parameter.shape)
            if name.endswith(A):
                bound = 1 / math.sqrt(parameter.shape[1])  # of Kaiming's rule with a = sqrt(5)
                value.uniform_(-bound, bound, generator=named_generator(seed, name))
            setattr(generator.get_submodule(parent), child, nn.Parameter(value))


def merge_adapters(
    base: Mapping[str, Tensor], adapters: Mapping[str, Tensor], settings: LowRank, source: str
) -> dict[str, Tensor]:
    """The base's tensors by released name with W + scale · B·A, in fp32, where an adapter is.

    Args:
        source: how messages call the adapters.

    Raises:
        UserError: the adapters do not fit the base or are not those of ``settings``.
    """
    expected = {module + kind for module in settings.modules for kind in (A, B)}
    if odd := sorted(expected.symmetric_difference(adapters)):
        raise UserError(f"{source}: {odd[0]} is {'missing' if odd[0] in expected else 'unknown'}; take the whole file")
    merged = dict(base)
    for module in settings.modules:
        weight, a, b = base.get(module + ".weight"), adapters[module + A].float(), adapters[module + B].float()
        shape = (b.shape[0], a.shape[1])
        if weight is None or weight.shape != shape:
            found = "nothing" if weight is None else tuple(weight.shape)
            raise UserError(f"{source}: {module} wants a base weight of {shape} and finds {found}; give its own base")
        merged[module + ".weight"] = weight.float() + settings.scale * (b @ a)
    return merged


def adapter_sizes(shapes: Mapping[str, Collection[int]], settings: LowRank) -> int:
    """How many numbers the adapters of linears have, whose weights have ``shapes`` by released parameter name."""
    return sum(settings.rank * sum(shapes[module + ".weight"]) for module in settings.modules)

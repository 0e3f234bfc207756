"""Tensor parallelism: a plain network's linears replaced by narrower ones that work together over the model axis.

Attention is cut by heads, an MLP by its hidden units, a modulation by its outputs, the motion head by joints. The
streams between them stay whole on every rank. Layers that are not cut see whole inputs and whole gradients, so all
ranks compute the same update of them; two kinds need help for that. The norms of q and k see this rank's heads alone,
and the condition's encoders feed modulations that are cut, so their partial gradients are summed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ds_hymotion.errors import UserError
from ds_hymotion.model.adapters import ADAPTER, A, B, is_adapted
from ds_hymotion.model.blocks import SingleBlock
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import own_name
from ds_hymotion.model.layers import EPS, LayerNorm, RMSNorm
from ds_hymotion.parallel.collectives import copy_to_parts, join_parts, sum_of_parts
from ds_hymotion.parallel.cuts import Cut, CutPlan, ListCut, SegmentCut
from ds_hymotion.parallel.joint_head import JointHead


@dataclass(frozen=True)
class Rule:
    """What happens to the modules whose released name matches.

    Attributes:
        modules: regular expression on the whole name.
        style: ``column`` cuts outputs, ``row`` cuts inputs and sums, ``joined`` cuts outputs and gathers them,
            ``head`` cuts outputs by joint; ``heads`` and ``condition`` stay whole and sum their gradients.
        segments: from width C and MLP width M, the parts that are cut one by one.
    """

    modules: str
    style: Literal["column", "row", "joined", "head", "heads", "condition"]
    segments: Callable[[int, int], tuple[int, ...]] = lambda c, m: ()


DOUBLE = r"motion_transformer\.double_blocks\.\d+\.(motion|text)"
SINGLE = r"motion_transformer\.single_blocks\.\d+"
REFINER = r"motion_transformer\.text_refiner\.individual_token_refiner\.blocks\.\d+"
RULES = (
    Rule(rf"{DOUBLE}_qkv|{REFINER}\.self_attn_qkv", "column", lambda c, m: (c, c, c)),
    Rule(rf"{DOUBLE}_out_proj|{REFINER}\.self_attn_proj", "row", lambda c, m: (c,)),
    Rule(rf"({DOUBLE}_|{REFINER}\.)mlp\.fc1", "column", lambda c, m: (m,)),
    Rule(rf"({DOUBLE}_|{REFINER}\.)mlp\.fc2", "row", lambda c, m: (m,)),
    Rule(rf"{SINGLE}\.linear1", "column", lambda c, m: (c, c, c, m)),
    Rule(rf"{SINGLE}\.linear2", "row", lambda c, m: (c, m)),
    Rule(rf"{DOUBLE}_mod\.linear", "joined", lambda c, m: (6 * c,)),
    Rule(rf"{SINGLE}\.modulation\.linear", "joined", lambda c, m: (3 * c,)),
    Rule(rf"({REFINER}|motion_transformer\.final_layer)\.adaLN_modulation\.linear", "joined", lambda c, m: (2 * c,)),
    Rule(r"motion_transformer\.final_layer\.linear", "head"),
    Rule(rf"({DOUBLE}_|{SINGLE}\.|{REFINER}\.self_attn_)[qk]_norm", "heads"),
    Rule(r"motion_transformer\.(timestep_encoder|vtxt_encoder)", "condition"),
    Rule(r"motion_transformer\.text_refiner\.(timestep_encoder|context_encoder)", "condition"),
)


def rule_of(module: str) -> Rule | None:
    """The rule for a module by its name in the generator, an expert's as in a network of its own, if there is one."""
    return next((rule for rule in RULES if re.fullmatch(rule.modules, own_name(module))), None)


def legal_sizes(config: ModelConfig) -> list[int]:
    """How many ranks a network can be cut over: divisors of its heads that also divide its MLP width."""
    return [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0 and config.mlp_dim % n == 0]


def check_size(config: ModelConfig, size: int) -> None:
    """Raise :class:`UserError` where a network cannot be cut over ``size`` ranks."""
    if size not in legal_sizes(config):
        raise UserError(
            f"hymotion.parallel.model = {size} does not divide the network's {config.num_heads} heads and MLP width "
            f"{config.mlp_dim}; use one of {', '.join(map(str, legal_sizes(config)))}"
        )


def plan_cuts(network: nn.Module, config: ModelConfig, channels: Sequence[Sequence[int]]) -> CutPlan:
    """Where every tensor of a plain network, whole or on the meta device, is cut.

    Args:
        network: a :class:`MotionGenerator`, or a module with its names.
        channels: the motion channels that every rank predicts, one list per rank.

    Raises:
        UserError: the heads cannot be divided by the number of ranks.
    """
    size = len(channels)
    check_size(config, size)
    cuts: dict[str, Cut] = {}
    for name, module in network.named_modules():
        rule = rule_of(name)
        if size == 1 or rule is None or rule.style in ("heads", "condition"):
            continue
        if rule.style == "head":
            cut: Cut = ListCut(0, tuple(tuple(part) for part in channels))
        else:
            segments = rule.segments(config.feat_dim, config.mlp_dim)
            cut = SegmentCut(1 if rule.style == "row" else 0, segments, size)
        base = f"{name}.base_layer" if is_adapted(module) else name
        cuts[f"{base}.weight"] = cut
        if rule.style != "row":
            cuts[f"{base}.bias"] = cut
        if is_adapted(module):
            cuts[name + (A if rule.style == "row" else B)] = cut
    return CutPlan(size, cuts)


def cut_network(network: nn.Module, plan: CutPlan, rank: int, group: Any) -> None:
    """Replace a plain network's modules in place by this rank's parts, adapters included; names of tensors stay.

    Args:
        network: what the plan was made for, with its weights loaded.
        plan: made by :func:`plan_cuts`; one of size 1 changes nothing.
        rank: this rank's place on the model axis.
        group: the model axis' process group; None only where nothing will be computed.
    """
    if plan.size == 1:
        return
    for name, module in list(network.named_modules()):
        if isinstance(module, SingleBlock):
            module.attention_width //= plan.size
            module.mlp_width //= plan.size
        rule = rule_of(name)
        if rule is None:
            continue
        if rule.style == "condition":
            module.register_forward_hook(lambda _module, _inputs, output: copy_to_parts(output, group))
            continue
        if is_adapted(module):
            module.base_layer = _replacement(f"{name}.base_layer", module.base_layer, rule, plan, rank, group)
            _cut_adapter(name, module, rule, plan, rank, group)
            continue
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, _replacement(name, module, rule, plan, rank, group))
    mark(network.named_parameters(), plan, rank)


def mark(parameters: Iterable[tuple[str, nn.Parameter]], plan: CutPlan, rank: int) -> None:
    """Tell DeepSpeed's norms which parameters to count here: cut ones everywhere, others on the first rank only.

    fp32 without ZeRO counts unmarked parameters on the first of all pipe × model ranks alone, so both marks are set.
    """
    for name, parameter in parameters:
        parameter.tensor_model_parallel = name in plan.cuts  # type: ignore[attr-defined]
        parameter.model_parallel = name in plan.cuts or rank == 0  # type: ignore[attr-defined]
        # BF16_Optimizer counts experts' parameters everywhere, but for those with this mark.
        parameter.ds_pipe_replicated = not parameter.model_parallel  # type: ignore[attr-defined]


def replica_difference(parameters: Iterable[tuple[str, Tensor]], plan: CutPlan, group: Any) -> float:
    """The largest difference over the model axis between sums of tensors that all ranks hold whole (collective)."""
    sums = [value.detach().double().sum() for name, value in parameters if name not in plan.cuts]
    if plan.size == 1 or not sums:
        return 0.0
    both = torch.stack([torch.stack(sums), -torch.stack(sums)])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    return float(both.sum(0).max())


def head_of(generator: MotionGenerator) -> nn.Module:
    """The motion head: a :class:`JointHead` once the network is cut."""
    return generator.motion_transformer.final_layer.linear


class ColumnLinear(nn.Module):
    """Whole input, this rank's outputs."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, group: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.group = weight, bias, group

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(copy_to_parts(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """This rank's inputs, whole output; the bias is added once, after the sum."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, group: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.group = weight, bias, group

    def forward(self, x: Tensor) -> Tensor:
        whole = sum_of_parts(F.linear(x, self.weight), self.group)
        return whole if self.bias is None else whole + self.bias


class JoinedLinear(nn.Module):
    """Whole input, whole output, every rank computing a slice: for modulations, whose input is one token.

    The gradient of its input stays partial; the encoders of the condition sum it once for all modulations.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, size: int, group: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.group = weight, bias, group
        self.widths = [weight.shape[0]] * size

    def forward(self, x: Tensor) -> Tensor:
        return join_parts(F.linear(x, self.weight, self.bias), self.widths, self.group)


class SharedLinear(nn.Module):
    """Whole input, whole weight, an output of which every rank uses a slice: the weight's partial gradients are summed.

    The gradient of its input stays partial, as :class:`JoinedLinear`'s does.
    """

    def __init__(self, weight: nn.Parameter, group: Any) -> None:
        super().__init__()
        self.weight, self.group = weight, group

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, copy_to_parts(self.weight, self.group))


class HeadsRMSNorm(RMSNorm):
    """RMSNorm of this rank's heads with a weight that all ranks share."""

    def __init__(self, norm: RMSNorm, group: Any) -> None:
        super().__init__(norm.weight.shape[0])
        self.weight, self.group = norm.weight, group

    def forward(self, x: Tensor) -> Tensor:
        weight = copy_to_parts(self.weight.float(), self.group)
        return F.rms_norm(x.float(), x.shape[-1:], weight, EPS)


class HeadsLayerNorm(LayerNorm):
    """LayerNorm of this rank's heads with a weight and a bias that all ranks share."""

    def __init__(self, norm: LayerNorm, group: Any) -> None:
        super().__init__(norm.normalized_shape[0])
        self.weight, self.bias, self.group = norm.weight, norm.bias, group

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = copy_to_parts(torch.stack([self.weight.float(), self.bias.float()]), self.group)
        return F.layer_norm(x.float(), x.shape[-1:], weight, bias, EPS).to(x.dtype)


def _replacement(name: str, module: nn.Module, rule: Rule, plan: CutPlan, rank: int, group: Any) -> nn.Module:
    if isinstance(module, RMSNorm):
        return HeadsRMSNorm(module, group)
    if isinstance(module, LayerNorm):
        return HeadsLayerNorm(module, group)
    assert isinstance(module, nn.Linear)
    weight, bias = (
        nn.Parameter(plan.cut(f"{name}.{kind}", value.detach(), rank), requires_grad=value.requires_grad)
        for kind, value in (("weight", module.weight), ("bias", module.bias))
    )
    if rule.style == "column":
        return ColumnLinear(weight, bias, group)
    if rule.style == "row":
        return RowLinear(weight, bias, group)
    if rule.style == "joined":
        return JoinedLinear(weight, bias, plan.size, group)
    cut = plan.cuts[f"{name}.weight"]
    return JointHead(weight, bias, [cut.index(other).tolist() for other in range(plan.size)], group)


def _cut_adapter(name: str, layer: nn.Module, rule: Rule, plan: CutPlan, rank: int, group: Any) -> None:
    """Cut B as the layer's rows or A as its columns, segment by segment; the other one stays whole on every rank.

    What lies between them, [..., rank], is whole on every rank, so that the whole one's gradient is whole, too.
    """
    down, up = layer.lora_A, layer.lora_B
    assert isinstance(down, nn.ModuleDict) and isinstance(up, nn.ModuleDict)
    weights = {A: down[ADAPTER].weight, B: up[ADAPTER].weight}
    kind = A if rule.style == "row" else B
    whole = weights[kind]
    shared = weights[A]
    assert isinstance(whole, nn.Parameter) and isinstance(shared, nn.Parameter)
    part = nn.Parameter(plan.cut(name + kind, whole.detach(), rank), requires_grad=whole.requires_grad)
    if rule.style == "row":
        down[ADAPTER] = RowLinear(part, None, group)
    elif rule.style == "column":
        up[ADAPTER] = ColumnLinear(part, None, group)
    elif rule.style == "joined":
        up[ADAPTER] = JoinedLinear(part, None, plan.size, group)
        down[ADAPTER] = SharedLinear(shared, group)
    else:
        joints = plan.cuts[name + kind]
        up[ADAPTER] = JointHead(part, None, [joints.index(other).tolist() for other in range(plan.size)], group)

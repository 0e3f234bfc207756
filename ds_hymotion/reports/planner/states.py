"""Bytes that a rank's weights, gradients and optimizer states take, as DeepSpeed 0.19 lays them out.

Which copies exist was read off running engines: ``launch/benchmark.py plan`` compares them with what is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ds_hymotion.config.deepspeed_keys import EIGHT_BIT, offloads, zero_section, zero_stage
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.parallel.eight_bit import MOMENT_BYTES

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
LIVE, PREFETCH = 1_000_000_000, 50_000_000  # DeepSpeed's defaults for ZeRO-3
COPIES, BUCKETS = "copies in the step", "reduce buckets"
BUCKET = 500_000_000  # DeepSpeed's default of reduce_bucket_size, and the most it flattens for an all-reduce


@dataclass(frozen=True)
class Held:
    """Parameters on one rank.

    Attributes:
        trunk: trained ones that all data ranks hold.
        frozen: those that are not trained.
        sharers: data ranks that share the states of the trunk.
        largest: numbers of the largest tensor.
        experts: trained ones of the experts here.
        expert_sharers: data ranks that hold the same experts.
    """

    trunk: int
    frozen: int
    sharers: int
    largest: int
    experts: int = 0
    expert_sharers: int = 1

    @property
    def trained(self) -> int:
        """All trained ones."""
        return self.trunk + self.experts

    @property
    def part(self) -> int:
        """Numbers whose states are this rank's own, where ranks share them."""
        return -(-self.trunk // self.sharers) - (-self.experts // self.expert_sharers)


@dataclass
class States:
    """Bytes by what they are for.

    Attributes:
        device: what stays on the device, gradients at their most.
        step: more on the device while the optimizer steps, when activations are gone.
        live: whole weights that ZeRO-3 gathers at most while it computes.
        host: what offloading keeps in this rank's host memory.
    """

    device: dict[str, int] = field(default_factory=dict)
    step: int = 0
    live: int = 0
    host: dict[str, int] = field(default_factory=dict)


def moment_bytes(config: RunConfig) -> float:
    """Bytes of a trained number's moments: two of Adam, in fp32 or 8 bit, one of SGD with momentum."""
    optimizer = config.deepspeed["optimizer"]
    if optimizer["type"] in EIGHT_BIT:
        return 2 * MOMENT_BYTES
    if optimizer["type"] in ("Adam", "AdamW"):
        return 4 * (3 if optimizer["params"].get("amsgrad") else 2)
    return 4 if optimizer["params"].get("momentum") else 0


def accumulation_bytes(config: RunConfig) -> int:
    """Bytes of an accumulated gradient's number; bf16 is accumulated in fp32 unless the JSON says otherwise."""
    asked = config.deepspeed.get("data_types", {}).get("grad_accum_dtype")
    return BYTES[asked or ("fp32" if config.dtype == "bf16" else config.dtype)]


def rank_states(config: RunConfig, held: Held, fused: bool = True) -> States:
    """The bytes of one rank.

    Args:
        config: checked configuration.
        held: what the rank holds.
        fused: whether the optimizer's step needs no copies, as of DeepSpeed's own Adam; torch's makes some of a
            moment.
    """
    size, accumulated = BYTES[config.dtype], accumulation_bytes(config)
    fused = fused or config.deepspeed["optimizer"]["type"] in EIGHT_BIT
    stage, part = zero_stage(config.deepspeed), held.part
    own = part if stage else held.trained
    master = 4 * part if stage else 0
    average = 4 * own if config.hymotion.training.ema_decay else 0
    optimizer = {"fp32 masters": master, "moments": int(moment_bytes(config) * own), "weight average": average}
    if stage == 3:
        return _divided(config, held, optimizer, fused)
    states = States({"weights": size * (held.trained + held.frozen)})
    if offloads(config.deepspeed, "offload_optimizer"):
        states.host = {
            **optimizer,
            "gradients": 4 * part,
            "copy of the weights": size * part,
            "buffer": size * held.largest,
        }
        kept = accumulated * part if accumulated != size else size * held.largest
        states.device |= {"gradients": kept, BUCKETS: _bucket(config, size) + size * held.largest}
        if accumulated == size and config.deepspeed["gradient_accumulation_steps"] > 1:
            states.host["accumulated gradients"] = size * part
        if not fused:
            states.host[COPIES] = 8 * part
        return states
    states.device |= optimizer
    grouped = config.dtype == "bf16" and accumulated == 4 and stage == 1
    if stage == 0:
        gradients = size * held.trained
    elif grouped:
        gradients = (accumulated + size) * held.trained
    elif stage == 1:
        gradients = max(size * held.trained, 4 * part)
    else:
        gradients = max(accumulated, 4) * part
    states.device["gradients"] = gradients
    if stage and not grouped:
        states.device[BUCKETS] = _bucket(config, accumulated if stage == 1 else size)
    flattened = 4 * min(BUCKET, held.trained) if held.sharers > 1 and (grouped or stage == 0) else 0
    copies = 2 if stage == 1 or stage and accumulated == size else 1  # of a flat group, by torch's own Adam
    states.step = max(flattened, 0 if fused else 4 * copies * own)
    return states


def _divided(config: RunConfig, held: Held, optimizer: dict[str, int], fused: bool) -> States:
    """ZeRO-3: the weights too are divided over the data ranks, and gathered layer by layer."""
    size, part = BYTES[config.dtype], held.part
    zero = zero_section(config.deepspeed)
    most = zero.get("stage3_max_live_parameters", LIVE) + zero.get("stage3_prefetch_bucket_size", PREFETCH)
    states = States(live=size * min(held.trained + held.frozen, int(most)))
    weights = {"weights": size * (part - (-held.frozen // held.sharers))}
    resting = {**optimizer, "gradients": (accumulation_bytes(config) + 4) * part}
    states.device |= {BUCKETS: bucket_numbers(config) * size}
    for key, items in (("offload_param", weights), ("offload_optimizer", resting)):
        place = states.host if offloads(config.deepspeed, key) else states.device
        place.update(items)
    copies = 0 if fused else 8 * part
    if offloads(config.deepspeed, "offload_optimizer"):
        states.host |= {COPIES: copies} if copies else {}
    else:
        states.step = copies
    return states


def bucket_numbers(config: RunConfig) -> int:
    """Numbers of a bucket of gradients that ZeRO reduces at once."""
    return int(zero_section(config.deepspeed).get("reduce_bucket_size", BUCKET))


def _bucket(config: RunConfig, size: int) -> int:
    zero = zero_section(config.deepspeed)
    if zero.get("contiguous_gradients") is False:
        return 0
    return bucket_numbers(config) * size * (2 if zero.get("overlap_comm") else 1)

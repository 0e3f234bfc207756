"""The hardware tiers: one DeepSpeed JSON per machine, and which of them fits the devices that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_hymotion.errors import UserError

GIB = 2**30
TINY = "tiny"
AXES = (("parallel", "model"), ("parallel", "pipeline"), ("experts", "size"))
# A card sold as one of 24 GB shows a little less: drivers and tables keep some for themselves.
SHOWN = 0.9


@dataclass(frozen=True)
class Tier:
    """A file of ``ds_configs/`` and the machine it is for.

    Attributes:
        name: the file without ``.json``.
        devices: GPUs in all; 0 for CPU processes.
        card: GiB that each is sold with.
        budget: GiB of it that a run may take.
        peak: GiB of it that a run is planned to take; where the tier is automatic, in bf16 or in fp16.
        host: GiB of host memory that offloading takes; 0 without.
        automatic: whether ``--auto_tier`` may choose it.
        what: the machine and the network, for tables.
    """

    name: str
    devices: int
    card: float
    budget: float
    peak: float
    host: float
    automatic: bool
    what: str

    @property
    def path(self) -> Path:
        """The file."""
        return CONFIGS / f"{self.name}.json"


CONFIGS = Path(__file__).resolve().parent.parent / "ds_configs"
TIERS = (
    Tier("cpu_tiny", 0, 0, 0, 0, 0, True, "2 CPU processes, network tiny"),
    Tier("lite_1x3090", 1, 24, 16, 14.71, 0, True, "1 GPU of 16 GB or more, Lite"),
    Tier("lora_1x3090", 1, 24, 12, 7.99, 0, False, "1 GPU of 12 GB or more, adapters of 1.0"),
    Tier("lite_1x3090_offload", 1, 24, 16, 9.98, 22, False, "1 GPU of 16 GB and 22 GiB of host memory, 1.0"),
    Tier("full_1x3090_zero3", 1, 24, 16, 7.69, 26, False, "1 GPU of 16 GB and 26 GiB of host memory, 1.0, ZeRO-3"),
    Tier("pro_2x3090", 2, 24, 24, 16.57, 0, True, "2 GPUs of 24 GB, 1.0"),
    Tier("studio_4xa100", 4, 40, 40, 13.18, 0, True, "4 GPUs of 40 GB, 1.0"),
    Tier("studio_4xa100_experts", 4, 40, 40, 15.27, 0, False, "4 GPUs of 40 GB, 1.0 with six experts"),
    Tier("cluster_8x8", 64, 40, 40, 7.92, 0, False, "8 nodes of 8 GPUs of 40 GB, 1.0 with six experts"),
)


def tier_of(path: str | Path) -> Tier | None:
    """The tier whose file this is, by its name."""
    return next((tier for tier in TIERS if tier.name == Path(path).stem), None)


def choose_tier(memory: Sequence[int], processes: int) -> tuple[Tier, str]:
    """The largest tier that ``processes`` ranks on visible devices of ``memory`` bytes serve, and why.

    A multiple of a tier's GPUs serves it too: the data axis takes them.

    Raises:
        UserError: there are GPUs, and no tier fits them.
    """
    if not memory:
        return TIERS[0], "no GPU is in use"
    least = min(memory) / GIB
    seen = f"{len(memory)} visible GPU(s) of at least {least:.1f} GiB and {processes} process(es)"
    fitting = [tier for tier in TIERS if _serves(tier, least, processes)]
    if not fitting:
        choices = "; ".join(f"{tier.name}: {tier.what}" for tier in TIERS if tier.automatic and tier.devices)
        raise UserError(f"--auto_tier finds no tier for {seen}; give --deepspeed_config instead. Tiers: {choices}")
    best = max(fitting, key=lambda tier: tier.devices * tier.card)
    larger = [tier for tier in TIERS if tier.devices > best.devices and _serves(tier, least, len(memory))]
    hint = f"; for {larger[-1].name} start {len(memory)} processes" if larger else ""
    return best, f"{seen} serve it ({best.what}){hint}"


def _serves(tier: Tier, least: float, processes: int) -> bool:
    enough = max(tier.peak, SHOWN * (tier.card if tier.devices > 1 else tier.budget))
    return tier.automatic and bool(tier.devices) and processes % tier.devices == 0 and least >= enough


def on_tiny_network(raw: Mapping[str, Any], preset: str | None) -> dict[str, Any]:
    """What else changes where the network ``tiny`` takes the place of a JSON's own: values by dotted key.

    The same strategy then runs on a few CPU processes: axes above 2 become 2, text features are the hashed ones, which
    ``tiny`` reads, and weights start fresh. {} for any other network.
    """
    section = raw.get("hymotion")
    section = section if isinstance(section, Mapping) else {}
    model = _part(section, "model")
    if preset != TINY or model.get("preset", TINY) == TINY:
        return {}
    changes: dict[str, Any] = {"hymotion.text.encoder": "hashed"}
    if model.get("init_from"):
        changes["hymotion.model.init_from"] = ""
    for part, key in AXES:
        size = _part(section, part).get(key, 1)
        if isinstance(size, int) and size > 2:
            changes[f"hymotion.{part}.{key}"] = 2
    return changes


def _part(section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = section.get(name)
    return part if isinstance(part, Mapping) else {}

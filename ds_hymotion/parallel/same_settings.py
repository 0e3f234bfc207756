"""One configuration on all ranks: a mesh of two would wait for itself without end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist

from ds_hymotion.errors import UserError


def require_same_settings(settings: Mapping[str, Any]) -> None:
    """Compare this rank's whole configuration with that of all others (collective).

    Raises:
        UserError: they differ; on every rank alike, with the first key that does.
    """
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, dict(_values(settings)))
    first = every[0]
    for rank, other in enumerate(every):
        keys = sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
        if keys:
            raise UserError(
                f"rank {rank} has {keys[0]} = {other.get(keys[0])!r}, rank 0 has {first.get(keys[0])!r}; start all "
                "ranks with the same flags and --deepspeed_config, which unlike machines need in place of --auto_tier"
            )


def _values(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

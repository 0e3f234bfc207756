"""How much memory this process's tensors take: each storage once."""

from __future__ import annotations

import gc

import torch


def live_bytes() -> int:
    """Bytes of every tensor that Python can reach, gradients included; what autograd alone keeps is not."""
    sizes: dict[int, int] = {}
    for value in gc.get_objects():
        if issubclass(type(value), torch.Tensor):
            for tensor in (value, value.grad if value.is_leaf else None):
                if tensor is not None and not tensor.is_meta:
                    storage = tensor.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())

"""Functions of torch.distributed and of DeepSpeed's backend object, wrapped for a time and given back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

Wrapper = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class WrappedCalls:
    """Replaces functions of modules and objects, and remembers how to give them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap_collectives(self, names: Iterable[str], wrapper: Wrapper) -> None:
        """Wrap functions by name, wherever this package and DeepSpeed call them.

        DeepSpeed's backend object has references of its own to some functions of torch.distributed.

        Args:
            wrapper: makes the function to call from the name and the original.
        """
        from deepspeed.comm import comm

        for owner in (comm.cdb, dist):
            for name in names:
                if owner is not None and callable(getattr(owner, name, None)):
                    self.replace(owner, name, wrapper(name, getattr(owner, name)))

    def replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Let ``owner.name`` be ``function``."""
        original, own = getattr(owner, name), name in vars(owner)
        setattr(owner, name, functools.wraps(original)(function))
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def restore(self) -> None:
        """Give everything back, the last first."""
        while self._undo:
            self._undo.pop()()

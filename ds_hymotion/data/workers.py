"""Work spread over processes, its results in the order of the work.

This file imports no torch, so that the processes can be started before their parent has it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import TypeVar

from ds_hymotion.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 3  # items per worker that are under way or wait for their turn: what bounds the memory


class Workers:
    """Processes for :meth:`map`; use it as a context manager. They start with the first work that needs them.

    Args:
        count: processes; 1 works in this one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """``work`` of every item, in order. Every process uses one thread, so results do not depend on the count.

        Args:
            work: a function that can be pickled.

        Raises:
            UserError: a process was killed, as happens when memory runs out.
        """
        if self.count <= 1 or len(items) <= 1:
            return _one_by_one(work, items)
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.count, _context(), initializer=_start_worker)
        return self._ordered(self._pool, work, items)

    def _ordered(
        self, pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        remaining = iter(items)
        waiting: deque[Future[bytes]] = deque()
        try:
            while True:
                for item in islice(remaining, _AHEAD * self.count - len(waiting)):
                    waiting.append(pool.submit(_run, work, pickle.dumps(item)))
                if not waiting:
                    return
                yield pickle.loads(waiting.popleft().result())
        except BrokenProcessPool:
            raise UserError(
                f"one of {self.count} worker processes was killed, most likely for want of memory: "
                "run the command again with fewer --workers; it goes on where it stopped"
            ) from None


def start_early() -> None:
    """Let a process import what workers need while this one still reads its flags; workers are then its copies."""
    _context()
    forkserver.ensure_running()


def _context() -> BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ds_hymotion.data.clips"])
    return context


def _one_by_one(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    import torch

    threads = torch.get_num_threads()
    for item in items:
        torch.set_num_threads(1)
        try:
            result = work(item)
        finally:
            torch.set_num_threads(threads)
        yield result


def _run(work: Callable[[Item], Result], item: bytes) -> bytes:
    # Pickled by hand: torch would send tensors between processes through shared memory, which containers keep small.
    return pickle.dumps(work(pickle.loads(item)))


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever: it holds both ends of its queue itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

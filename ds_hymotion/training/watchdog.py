"""Ends a run that stands still, and says what every rank was at, long before a collective's own time-out."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from ds_hymotion.parallel.collective_record import CollectiveRecord
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.training.stall import doing, report

STALLED = 86
"""Exit code of every rank of a run that stood still."""
PATIENCE = 10
"""The first step, saves and evaluations may take so many times the limit."""
ANSWER_S = 5.0
TALK_S = 5 * ANSWER_S
"""Longest time from the alarm to the end of a rank's process, whether the others answer or not."""
RUNS = count()


class Watchdog:
    """Threads beside each rank's main thread that see no step for ``seconds``.

    The main thread may hang inside a collective, so ranks talk through the store that their process group started
    with. The first to notice claims the report, gathers what all ranks say of themselves and prints it; then every
    rank's own watchdog ends its process with code ``STALLED``, that of the store's host last. A call of the store
    whose host is frozen never returns, so one thread makes all of them; another knows only the clock, and ends the
    process with its own state where the talk takes longer than ``TALK_S``.

    Args:
        engine: its calls tell micro-batches and shapes.
        seconds: longest time from step to step; 0 = no watchdog.
        end: what ends the process.

    Attributes:
        step: optimizer steps that are complete.
    """

    def __init__(self, engine: DataEngine, seconds: float, end: Callable[[int], Any] = os._exit) -> None:
        self.engine = engine
        self.mesh = engine.mesh
        self.seconds = seconds
        self.record = CollectiveRecord()
        self._end = end
        self.step = 0
        self._micro_batch = 0
        self._shapes: Any = ()
        self._limit = seconds * PATIENCE
        self._since = time.monotonic()
        self._main = 0
        self._alarmed = threading.Event()
        self._told = False
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []
        self._hook: Any = None

    def __enter__(self) -> Watchdog:
        if not self.seconds:
            return self
        self._main = threading.get_ident()
        self._since = time.monotonic()
        self._hook = self.engine.called_modules[0].register_forward_pre_hook(self._note_inputs)
        self.record.__enter__()
        store = _store(self.mesh.world, next(RUNS))
        self._start(self._watch, TALK_S if store else 0.0)
        if store:
            self._start(self._talk, store)
        return self

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, name="watchdog", daemon=True))
        self._threads[-1].start()

    def __exit__(self, *_: object) -> None:
        if not self._threads:
            return
        self._done.set()
        for thread in self._threads:
            thread.join(ANSWER_S)
        self.record.__exit__()
        self._hook.remove()

    def beat(self, step: int) -> None:
        """Optimizer step ``step`` is complete on this rank."""
        self.step = step
        self._micro_batch = 0
        self._limit = self.seconds
        self._since = time.monotonic()

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside, ``PATIENCE`` times the limit: for saves and evaluations."""
        before, self._limit = self._limit, self.seconds * PATIENCE
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._limit = before
            self._since = time.monotonic()

    def state(self) -> dict[str, Any]:
        """What this rank is at, as a JSON-able object."""
        words, calls = doing(sys._current_frames().get(self._main))
        mesh = self.mesh
        return {
            "place": f"stage {mesh.pipe_rank}, data rank {mesh.data_rank}, tensor rank {mesh.model_rank}",
            "step": self.step + 1,
            "micro_batch": self._micro_batch,
            "accumulation": self.engine.accumulation,
            "doing": words,
            "calls": calls,
            "shapes": ", ".join(f"{name} {list(shape)}" for name, shape in self._shapes),
            "collective": self.record.state(),
            "silent_s": time.monotonic() - self._since,
        }

    def _note_inputs(self, _: Any, arguments: tuple[Any, ...]) -> None:
        self._micro_batch += 1
        self._shapes = list(_named_shapes(arguments))

    @property
    def _pause(self) -> float:
        return min(1.0, self.seconds / 5)

    def _watch(self, talk_s: float) -> None:
        """End the process ``talk_s`` after the alarm, whatever the store does."""
        while not (self._alarmed.is_set() or time.monotonic() - self._since > self._limit):
            if self._done.wait(self._pause):
                return
        self._alarmed.set()
        if not self._done.wait(talk_s):
            self._end_alone()

    def _talk(self, store: dist.Store) -> None:
        """Make every call of the store."""
        while not self._done.wait(self._pause):
            try:
                if self._alarmed.is_set() or store.check(["alarm"]):
                    self._alarmed.set()
                    self._give_up(store)
            except RuntimeError:  # the store's host is gone, or was out of reach; the clock of _watch goes on
                if self._alarmed.is_set():
                    self._end_alone()

    def _give_up(self, store: dist.Store) -> None:
        """Say what this rank is at, hear or print the report, and end the process."""
        rank, world = self.mesh.rank, self.mesh.world
        store.set(f"state{rank}", json.dumps(self.state()))
        reporter = store.add("alarm", 1) == 1
        if reporter:
            _wait_for(store, [f"state{other}" for other in range(world)])
            said = {other: store.check([f"state{other}"]) for other in range(world)}
            self._tell({other: json.loads(store.get(f"state{other}")) if there else None
                        for other, there in said.items()})  # fmt: skip
            store.set("told", "1")
        else:
            _wait_for(store, ["told"], 3 * ANSWER_S)
        store.set(f"gone{rank}", "1")
        if rank == 0:
            _wait_for(store, [f"gone{other}" for other in range(world)])
        self._end(STALLED)

    def _end_alone(self) -> None:
        """End the process with its own state: there is no other rank, or the store through which they talk is lost."""
        if not self._told:
            self._tell({self.mesh.rank: self.state()})
        self._end(STALLED)

    def _tell(self, states: dict[int, dict[str, Any] | None]) -> None:
        self._told = True
        text = report(states, self.seconds)
        end = f"watchdog: all ranks end with code {STALLED}; continue with --resume from the last checkpoint"
        print(f"\n{text}\n{end}", file=sys.stderr, flush=True)


def _named_shapes(arguments: tuple[Any, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for number, value in enumerate(arguments):
        if torch.is_tensor(value):
            yield f"input {number}", tuple(value.shape)
        elif is_dataclass(value):
            for one in fields(value):
                part = getattr(value, one.name)
                if torch.is_tensor(part) and part.ndim:
                    yield one.name, tuple(part.shape)
        elif isinstance(value, tuple):
            yield from _named_shapes(value)


def _store(world: int, number: int) -> dist.Store | None:
    """A connection of its own to the store that the process group started with; None for one process alone."""
    if world == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    own = store.clone() if hasattr(store, "clone") else store
    own.set_timeout(timedelta(seconds=ANSWER_S))
    return dist.PrefixStore(f"watchdog{number}", own)


def _wait_for(store: dist.Store, keys: list[str], seconds: float = ANSWER_S) -> None:
    deadline = time.monotonic() + seconds
    while not store.check(keys) and time.monotonic() < deadline:
        time.sleep(0.05)

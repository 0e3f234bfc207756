"""A session-wide pool of rank processes: tests send it functions, so that torch and DeepSpeed are imported once."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
JOB_SECONDS = 120.0
MOST_THREADS = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _threads(process: subprocess.Popen[bytes]) -> int:
    """Threads of a rank process: DeepSpeed keeps some process groups, and gloo's threads with them, for good."""
    return psutil.Process(process.pid).num_threads() if process.poll() is None else 0


class RankPool:
    """Rank processes that run a function of an importable test module together, over gloo.

    ``run(world, function, *arguments)`` calls ``function(*arguments)`` on ranks 0 to world − 1 inside a fresh process
    group and returns their results. A failure or a hang of any rank fails the call and replaces the processes.
    """

    def __init__(self) -> None:
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def run(self, world: int, function: Callable[..., Any], *arguments: Any, seconds: float = JOB_SECONDS) -> list[Any]:
        self._grow(world)
        job = (function.__module__, function.__qualname__, pickle.dumps(arguments))
        port = free_port()
        for rank, (_, connection) in enumerate(self._workers[:world]):
            connection.send((rank, world, port, job, seconds))
        deadline = time.monotonic() + seconds + 20
        results: list[Any] = []
        for rank, (process, connection) in enumerate(self._workers[:world]):
            while not connection.poll(0.05):
                if process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise AssertionError(f"rank {rank} of {world} died or hung in {function.__qualname__}")
            try:
                results.append(connection.recv())
            except (EOFError, ConnectionError):
                process.wait(10)
                self.close()
                raise AssertionError(
                    f"rank {rank} of {world} died or hung in {function.__qualname__} ({process.returncode})"
                ) from None
        problems = [f"rank {rank}:\n{text}" for rank, (kind, text) in enumerate(results) if kind == "error"]
        if problems:
            self.close()
            raise AssertionError("\n".join(problems))
        return [pickle.loads(value) for _, value in results]

    def _grow(self, world: int) -> None:
        for worn in [entry for entry in self._workers if _threads(entry[0]) > MOST_THREADS]:
            worn[1].close()
            worn[0].kill()
            worn[0].wait()
        self._workers = [entry for entry in self._workers if entry[0].poll() is None]
        with Listener(("127.0.0.1", 0)) as listener:
            while len(self._workers) < world:
                environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
                command = [sys.executable, "-m", "tests.ranks", str(listener.address[1])]
                process = subprocess.Popen(command, cwd=ROOT, env=environment)
                self._workers.append((process, listener.accept()))  # one by one: a connection must be its process's

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.kill()
            process.wait()
        self._workers = []


def _serve(port: int) -> None:
    connection = Client(("127.0.0.1", port))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    linear = torch.nn.functional.linear
    from datetime import timedelta

    from ds_hymotion.parallel.mesh import quiet_cpu_setup

    quiet_cpu_setup()
    import deepspeed
    from deepspeed.utils import groups

    while True:
        try:
            rank, world, master, (module, name, arguments), seconds = connection.recv()
        except EOFError:
            return
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master))
        try:
            deepspeed.init_distributed(
                dist_backend="gloo", timeout=timedelta(seconds=seconds), auto_mpi_discovery=False, verbose=False
            )
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            value = pickle.dumps(function(*pickle.loads(arguments)))
            dist.barrier()
            torch.nn.functional.linear = linear  # ZeRO-3 leaves its own, which rounds otherwise in bf16
            gc.collect()  # engines are cycles, and keep their groups with all threads
            groups._release_process_group_references()
            dist.destroy_process_group()
            deepspeed.comm.comm.cdb = None
            connection.send(("value", value))  # last: from here on this process may be replaced
        except BaseException:
            import traceback

            connection.send(("error", traceback.format_exc()))
            os._exit(1)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

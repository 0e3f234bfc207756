"""The schedule of a pipeline by time, played without processes."""

from __future__ import annotations

from collections import Counter, deque
from itertools import product

import pytest
from deepspeed.runtime.pipe.schedule import OptimizerStep, ReduceGrads

from ds_hymotion.parallel import temporal_schedule as ts


def names(micro_batches: int, stages: int, stage: int) -> list[str]:
    steps = ts.TemporalSchedule(micro_batches, stages, stage).steps()
    return [f"{type(c).__name__}{c.kwargs.get('micro', '')}" for commands in steps for c in commands]


def test_the_middle_of_three_stages_with_two_micro_batches() -> None:
    assert names(2, 3, 1) == [
        "LoadChunks0", "RecvState0", "EncodeState0", "SendState0",
        "LoadChunks1", "RecvState1", "EncodeState1", "SendState1",
        "Forward0", "Backward0",
        "Forward1", "Backward1", "RecvStateGrad0", "StateBackward0", "SendStateGrad0",
        "RecvStateGrad1", "StateBackward1", "SendStateGrad1",
        "ReduceStages", "ReduceGrads", "OptimizerStep",
    ]  # fmt: skip


@pytest.mark.parametrize(("stages", "micro_batches"), list(product([1, 2, 4, 5], [1, 2, 4])))
def test_every_receive_finds_its_message_and_nobody_waits_for_ever(stages: int, micro_batches: int) -> None:
    queues = {(kind, stage): deque[int]() for kind in ("state", "grad") for stage in range(stages)}
    todo = [
        deque(c for commands in ts.TemporalSchedule(micro_batches, stages, s).steps() for c in commands)
        for s in range(stages)
    ]
    done: list[Counter[str]] = [Counter() for _ in range(stages)]
    moved = True
    while moved:
        moved = False
        for stage, commands in enumerate(todo):
            while commands:
                command = commands[0]
                inbox = {ts.RecvState: "state", ts.RecvStateGrad: "grad"}.get(type(command))
                if inbox:
                    if not queues[inbox, stage]:
                        break
                    assert queues[inbox, stage].popleft() == command.kwargs["micro"]
                if isinstance(command, ts.SendState):
                    queues["state", stage + 1].append(command.micro)
                if isinstance(command, ts.SendStateGrad):
                    queues["grad", stage - 1].append(command.micro)
                done[stage][type(command).__name__] += 1
                commands.popleft()
                moved = True
    assert not any(todo) and not any(queues.values())
    for stage, counts in enumerate(done):
        assert counts["Forward"] == counts["Backward"] == counts["StateBackward"] == micro_batches
        assert counts["SendState"] == (micro_batches if stage < stages - 1 else 0)
        assert counts[OptimizerStep.__name__] == counts[ReduceGrads.__name__] == 1

"""Pipeline schedules played by a discrete-event simulation: who computes what in which order, who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass, TrainSchedule

from ds_hymotion.parallel import temporal_schedule as temporal

Key = tuple[str, int, int]
"""What an operation makes: F, B or W of a (virtual) stage and a micro-batch; S and T are states by time and back."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one stage and micro-batch; ``weight`` is the part of ``backward`` that gives weights' gradients."""

    forward: float = 1.0
    backward: float = 2.0
    weight: float = 1.0
    state: float = 0.02


@dataclass(frozen=True)
class Operation:
    """A piece of work on one device, after others.

    Attributes:
        keys: what it makes; several where passes overlap in one.
        seconds: how long it takes.
        needs: what must be made before.
        heavy: whether it counts as computing.
    """

    keys: tuple[Key, ...]
    seconds: float
    needs: tuple[Key, ...] = ()
    heavy: bool = True


def bubble(devices: Sequence[Sequence[Operation]]) -> float:
    """Mean share of the time from the first to the last heavy operation in which a device does none.

    Raises:
        ValueError: the devices wait for each other for ever.
    """
    made: dict[Key, float] = {}
    free, busy, places = [0.0] * len(devices), [0.0] * len(devices), [0] * len(devices)
    first, last = float("inf"), 0.0
    moved = True
    while moved:
        moved = False
        for device, operations in enumerate(devices):
            while places[device] < len(operations):
                operation = operations[places[device]]
                if any(key not in made for key in operation.needs):
                    break
                start = max([free[device], *(made[key] for key in operation.needs)])
                free[device] = start + operation.seconds
                made.update(dict.fromkeys(operation.keys, free[device]))
                if operation.heavy:
                    busy[device] += operation.seconds
                    first, last = min(first, start), max(last, free[device])
                places[device] += 1
                moved = True
    if any(place < len(operations) for place, operations in zip(places, devices)):
        raise ValueError("this schedule waits for ever")
    return 1 - sum(busy) / (len(devices) * (last - first))


def one_forward_one_backward(stages: int, micro_batches: int, costs: Costs) -> list[list[Operation]]:
    """DeepSpeed's own schedule."""
    devices = []
    for stage in range(stages):
        counts, operations = {ForwardPass: 0, BackwardPass: 0}, []
        for commands in TrainSchedule(micro_batches, stages, stage).steps():
            for command in commands:
                if type(command) in counts:
                    kind = "F" if type(command) is ForwardPass else "B"
                    operations.append(_pass(kind, stage, counts[type(command)], stages, costs))
                    counts[type(command)] += 1
        devices.append(operations)
    return devices


def interleaved(stages: int, micro_batches: int, costs: Costs, parts: int = 2) -> list[list[Operation]]:
    """Megatron's: every device has ``parts`` stages of the pipeline, each ``1 / parts`` as heavy.

    Raises:
        ValueError: ``micro_batches`` is no multiple of ``stages``.
    """
    if micro_batches % stages:
        raise ValueError(f"{micro_batches} micro-batches are no multiple of {stages} stages")
    less = Costs(costs.forward / parts, costs.backward / parts, costs.weight / parts)
    total = micro_batches * parts

    def place(number: int, forward: bool) -> tuple[int, int]:
        part = number // stages % parts
        return (part if forward else parts - 1 - part), number // (stages * parts) * stages + number % stages

    devices = []
    for device in range(stages):
        ahead = min(total, (stages - device - 1) * 2 + (parts - 1) * stages)
        order = [("F", number) for number in range(ahead)]
        for number in range(total - ahead):
            order += [("F", ahead + number), ("B", number)]
        order += [("B", number) for number in range(total - ahead, total)]
        operations = []
        for kind, number in order:
            part, micro = place(number, kind == "F")
            operations.append(_pass(kind, part * stages + device, micro, stages * parts, less))
        devices.append(operations)
    return devices


def zero_bubble(stages: int, micro_batches: int, costs: Costs) -> list[list[Operation]]:
    """ZB-H1 (Qi et al. 2024): gradients of weights are put off by as many micro-batches as a stage has before it."""
    devices = []
    for stage in range(stages):
        ahead = min(micro_batches, stages - 1 - stage)
        order: list[tuple[str, int]] = [("F", micro) for micro in range(ahead)]
        for micro in range(micro_batches):
            order += [("F", ahead + micro)] if ahead + micro < micro_batches else []
            order += [("I", micro)]
            order += [("W", micro - stage)] if micro >= stage else []
        order += [("W", micro) for micro in range(max(0, micro_batches - stage), micro_batches)]
        devices.append([_pass(kind, stage, micro, stages, costs) for kind, micro in order])
    return devices


def dual_pipe_v(stages: int, micro_batches: int, costs: Costs) -> list[list[Operation]]:
    """DeepSeek's: device i has stages i and 2p − 1 − i of a pipeline twice as long; passes of both overlap.

    An overlapped pair is counted as long as its two passes: what overlapping hides is communication.

    Raises:
        ValueError: fewer than 2p micro-batches.
    """
    if micro_batches < 2 * stages:
        raise ValueError(f"{micro_batches} micro-batches are fewer than {2 * stages}")
    half = Costs(costs.forward / 2, costs.backward / 2, costs.weight / 2)
    return [list(_dual_device(device, stages, micro_batches, half)) for device in range(stages)]


def _dual_device(device: int, stages: int, micro_batches: int, costs: Costs) -> Iterator[Operation]:
    counts = {("F", 0): 0, ("F", 1): 0, ("B", 0): 0, ("B", 1): 0}
    put_off: list[tuple[int, int]] = []

    def operation(kind: str, side: int, split: bool = False) -> Operation:
        micro = counts[kind, side]
        counts[kind, side] += 1
        stage = device if side == 0 else 2 * stages - 1 - device
        if split:
            put_off.append((stage, micro))
        return _pass("I" if split else kind, stage, micro, 2 * stages, costs)

    def weights() -> Operation:
        stage, micro = put_off.pop(0)
        return _pass("W", stage, micro, 2 * stages, costs)

    def both(one: Operation, other: Operation) -> Operation:
        return Operation(one.keys + other.keys, one.seconds + other.seconds, one.needs + other.needs)

    after = stages - device - 1
    for _ in range(2 * after):
        yield operation("F", 0)
    for _ in range(device + 1):
        yield operation("F", 0)
        yield operation("F", 1)
    for _ in range(after):
        yield operation("B", 1, split=True)
        yield weights()
        yield operation("F", 1)
    for number in range(micro_batches - 2 * stages + device + 1):
        if number == 0 and after == 0:
            yield operation("F", 0)  # the turning point hands its own forward to itself: nothing to overlap with
            yield operation("B", 1)
        else:
            yield both(operation("F", 0), operation("B", 1))
        yield both(operation("F", 1), operation("B", 0))
    for _ in range(after):
        yield operation("B", 1)
        yield both(operation("F", 1), operation("B", 0))
    split = False
    for number in range(device + 1):
        turn = number == (device + 1) // 2
        split = split or (turn and device % 2 == 1)
        yield operation("B", 1, split)
        split = split or (turn and device % 2 == 0)
        yield operation("B", 0, split)
    for _ in range(after):
        yield weights()
        yield operation("B", 0, split=True)
    while put_off:
        yield weights()


def by_time(stages: int, micro_batches: int, costs: Costs) -> list[list[Operation]]:
    """This package's schedule by time: states ahead, then every stage its own chunks."""
    devices = []
    for stage in range(stages):
        operations = []
        for commands in temporal.TemporalSchedule(micro_batches, stages, stage).steps():
            for command in commands:
                micro = command.kwargs.get("micro")
                if isinstance(command, temporal.EncodeState):
                    needs: tuple[Key, ...] = (("S", stage - 1, micro),) if stage else ()
                    operations.append(Operation((("S", stage, micro),), costs.state, needs, heavy=False))
                elif isinstance(command, temporal.Forward):
                    operations.append(Operation((("F", stage, micro),), costs.forward))
                elif isinstance(command, temporal.Backward):
                    operations.append(Operation((("B", stage, micro),), costs.backward))
                elif isinstance(command, temporal.StateBackward):
                    needs = (("T", stage + 1, micro),) if stage < stages - 1 else ()
                    operations.append(Operation((("T", stage, micro),), costs.state, needs, heavy=False))
        devices.append(operations)
    return devices


def _pass(kind: str, stage: int, micro: int, stages: int, costs: Costs) -> Operation:
    """A forward (F), a backward (B), its part for the input alone (I), or the rest of it (W)."""
    if kind == "F":
        return Operation((("F", stage, micro),), costs.forward, (("F", stage - 1, micro),) if stage else ())
    if kind == "W":
        return Operation((("W", stage, micro),), costs.weight, (("B", stage, micro),))
    seconds = costs.backward if kind == "B" else costs.backward - costs.weight
    after: Key = ("B", stage + 1, micro) if stage < stages - 1 else ("F", stage, micro)
    return Operation((("B", stage, micro),), seconds, (after, ("F", stage, micro)))

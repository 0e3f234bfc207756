"""What is said about a run that stands still: every rank's last state, and which rank keeps the others waiting."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

# What a rank does, by the functions its main thread is in; the first that is found counts.
DOING = (
    ("saving a checkpoint", {"_save"}),
    ("evaluating", {"_evaluate"}),
    ("waiting for its next batch", {"batches"}),
    ("receiving from another stage", {"_exec_recv_activations", "_exec_recv_grads"}),
    ("sending to another stage", {"_exec_send_activations", "_exec_send_grads"}),
    ("in a backward pass", {"backward", "_exec_backward_pass"}),
    ("in the optimizer's step", {"step", "_take_model_step", "_exec_optimizer_step"}),
    ("in a forward pass", {"forward", "_exec_forward_pass"}),
)
FRAMES = 5
WRAPPERS = {"noted", "counted", "wrapper", "log_wrapper"}


def doing(frame: FrameType | None) -> tuple[str, list[str]]:
    """What a thread does, in words, and its innermost calls as ``folder/file.py:line function``."""
    stack = traceback.extract_stack(frame) if frame is not None else []
    names = {entry.name for entry in stack}
    words = next((words for words, functions in DOING if names & functions), "between two operations")
    calls = [
        f"{'/'.join(Path(entry.filename).parts[-2:])}:{entry.lineno} {entry.name}"
        for entry in stack
        if entry.name not in WRAPPERS
    ]
    return words, calls[-FRAMES:][::-1]


def report(states: Mapping[int, Mapping[str, Any] | None], seconds: float) -> str:
    """A paragraph per rank and a verdict.

    Args:
        states: what each rank said of itself, None where it did not answer.
        seconds: the limit that was passed.
    """
    silent = max((state["silent_s"] for state in states.values() if state), default=seconds)
    lines = [f"watchdog: no progress for {silent:.0f} s (hymotion.watchdog_s = {seconds:g})"]
    for rank, state in sorted(states.items()):
        if state is None:
            lines.append(f"  rank {rank}: no answer; its process is gone or stopped")
            continue
        lines.append(f"  rank {rank} ({state['place']}): step {state['step']}, {state['doing']}{_micro_batch(state)}")
        lines.append(f"    {_collective(state['collective'])}")
        if state["shapes"]:
            lines.append(f"    inputs of its micro-batch: {state['shapes']}")
        lines.append(f"    at {' < '.join(state['calls'])}")
    lines.append(f"watchdog: {verdict(states)}")
    return "\n".join(lines)


def verdict(states: Mapping[int, Mapping[str, Any] | None]) -> str:
    """Which rank keeps the others waiting: one that is gone, is in no collective, or has called fewest."""
    gone = [rank for rank, state in states.items() if state is None]
    if gone:
        return f"{_named(gone, states)} does not answer, the others wait for it"
    known = {rank: state for rank, state in states.items() if state is not None}
    outside = [rank for rank, state in known.items() if not state["collective"]["inside"]]
    if len(known) == 1:
        return f"{_named(outside or list(known), states)} is {next(iter(known.values()))['doing']}"
    late = behind({rank: state["collective"]["counts"] for rank, state in known.items()})
    if outside and len(outside) < len(known):
        # Who waits for an asynchronous call is in none either, but has called as many as the others.
        first = [rank for rank in outside if rank in late] or outside
        return f"{_named(first, states)} is in no collective, the others wait for it"
    if late:
        return f"{_named(late, states)} has called fewer collectives than the ranks of its group, which wait for it"
    if not outside:
        return "every rank waits for others: they are in different collectives, or the network between them fails"
    return "no rank waits in a collective: see what each one is at"


def behind(counts: Mapping[int, Mapping[str, int]]) -> list[int]:
    """Ranks that have called fewer collectives of a group than another rank of it."""
    most: dict[str, int] = {}
    for own in counts.values():
        for group, count in own.items():
            most[group] = max(most.get(group, 0), count)
    return [
        rank
        for rank, own in counts.items()
        if any(own.get(group, 0) < count for group, count in most.items() if str(rank) in group.split(","))
    ]


def _named(ranks: Sequence[int], states: Mapping[int, Mapping[str, Any] | None]) -> str:
    names = []
    for rank in ranks:
        state = states[rank]
        names.append(f"rank {rank} ({state['place']})" if state else f"rank {rank}")
    return " and ".join(names)


def _micro_batch(state: Mapping[str, Any]) -> str:
    return f", micro-batch {state['micro_batch']} of {state['accumulation']} begun" if state["micro_batch"] else ""


def _collective(last: Mapping[str, Any]) -> str:
    if "name" not in last:
        return "no collective yet"
    ranks = ",".join(map(str, last["ranks"]))
    what = f"{last['name']} of {last['message'] or 'objects'} over ranks {ranks}"
    since = f"{last['seconds']:.0f} s ago"
    return f"waits in {what}, called {since}" if last["inside"] else f"in no collective; the last was {what}, {since}"

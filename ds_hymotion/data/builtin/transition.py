"""TRANSITION: sitting down, standing up, turning around, bending down, kneeling down."""

from __future__ import annotations

import numpy as np

from ds_hymotion.data.builtin.action import Builder, Facts
from ds_hymotion.data.builtin.body import BALL_AHEAD, SIDES, SIGN, Body, other
from ds_hymotion.data.builtin.captions import again, pace
from ds_hymotion.data.builtin.curves import ease, repeated_plateau, repetitions
from ds_hymotion.data.builtin.footsteps import Steps, Swing
from ds_hymotion.data.builtin.stances import bend, kneel_on_one_knee, seat


def _span(body: Body, rng: np.random.Generator, shortest: float, longest: float) -> tuple[float, float]:
    """When a single move starts and ends: ``shortest`` to ``longest`` seconds, within the clip."""
    length = min(rng.uniform(shortest, longest), body.duration - 0.25)
    start = rng.uniform(0.1, min(0.6, body.duration - length - 0.1))
    return start, start + length


def sit_down(body: Body, rng: np.random.Generator) -> Facts:
    """From standing onto a chair."""
    start, end = _span(body, rng, 1.3, 2.8)
    height = rng.uniform(0.52, 0.58)
    seat(body, ease(body.times, start, end), lean=rng.uniform(42.0, 56.0), height=height)
    return {"pace": pace(start - end, -2.3, -1.6)}


def stand_up(body: Body, rng: np.random.Generator) -> Facts:
    """From a chair to standing."""
    start, end = _span(body, rng, 1.3, 2.6)
    height = rng.uniform(0.52, 0.58)
    seat(body, 1.0 - ease(body.times, start, end), lean=rng.uniform(50.0, 66.0), height=height)
    return {"pace": pace(start - end, -2.2, -1.6)}


def turn_around(body: Body, rng: np.random.Generator) -> Facts:
    """Turn by a half or a quarter on the spot, stepping."""
    side = str(rng.choice(SIDES))
    half = rng.random() < 0.7
    angle = rng.uniform(172.0, 188.0) if half else rng.uniform(80.0, 100.0)
    start, end = _span(body, rng, 1.5 if half else 1.2, 3.2 if half else 2.2)
    pairs = 1 if not half else 3 if end - start > 1.7 else 2
    steps = {name: Steps(name, *_print(body, name, 0.0)) for name in SIDES}
    slot = (end - start) / (2 * pairs)
    for index in range(2 * pairs):
        name = side if index % 2 == 0 else other(side)
        share = min(1.0, (index // 2 + (0.8 if index % 2 == 0 else 1.0)) / pairs)
        if index >= 2 * pairs - 2:
            share = 1.0
        begin = start + index * slot
        place, yaw = _print(body, name, SIGN[side] * angle * share)
        steps[name].swings.append(
            Swing(begin, begin + 0.95 * slot, place, yaw, lift=0.07, heel_off=16.0, heel_strike=-6.0)
        )
    for name in SIDES:
        steps[name].write(body, heel_rise=0.12, settle=0.1, shift=0.6 * slot)
    turned = SIGN[side] * angle * ease(body.times, start - 0.1, end + 0.1)
    ahead = SIGN[side] * (ease(body.times, start - 0.15, start + 0.5) - ease(body.times, end - 0.5, end + 0.1))
    body.turn(body.hips, yaw=turned)
    body.turn(body.spine, yaw=10.0 * ahead)
    body.turn(body.head, yaw=22.0 * ahead)
    body.balance = 1.0 - 0.45 * (ease(body.times, start - 0.2, start + 0.2) - ease(body.times, end - 0.2, end + 0.3))
    body.pelvis[:, 1] -= 0.045
    body.stretch = 0.985
    for arm in body.arms.values():
        arm.abduction = arm.abduction + 6.0 * np.abs(ahead)
    return {"variant": "half" if half else "quarter", "side": side, "pace": pace(start - end, -2.4, -1.8)}


def _print(body: Body, side: str, yaw: float) -> tuple[tuple[float, float], float]:
    """Where the ball of a foot stands, and its heading, for a body at the origin turned by ``yaw`` degrees."""
    angle = np.radians(yaw)
    aside, ahead = SIGN[side] * 0.11, BALL_AHEAD
    place = (aside * np.cos(angle) + ahead * np.sin(angle), -aside * np.sin(angle) + ahead * np.cos(angle))
    return (float(place[0]), float(place[1])), yaw + SIGN[side] * 7.0


def bend_down(body: Body, rng: np.random.Generator) -> Facts:
    """Bend until both hands are near the toes, and straighten up."""
    spans = repetitions(body.duration, rng.uniform(2.0, 4.0), most=3)
    down = repeated_plateau(body.times, spans, up=0.36, hold=0.14)
    bend(body, down, angle=rng.uniform(112.0, 128.0), knees=rng.uniform(0.02, 0.10))
    low = rng.uniform(0.12, 0.2)
    for side in SIDES:
        foot = body.feet[side].ball
        target = foot + np.array([SIGN[side] * 0.02, low, 0.06])
        body.arms[side].reach(target, ease(down, 0.35, 1.0), (SIGN[side], 0.1, -0.4))
    return {"again": again(len(spans))}


def kneel_down(body: Body, rng: np.random.Generator) -> Facts:
    """From standing down onto one knee."""
    side = str(rng.choice(SIDES))
    start, end = _span(body, rng, 1.5, 2.6)
    kneel_on_one_knee(body, side, start, start + 0.5 * (end - start), end)
    amount = ease(body.times, start, end)
    between = 16.0 * (amount * (1.0 - amount)) ** 2
    body.turn(body.hips, pitch=8.0 * between)
    body.turn(body.spine, pitch=10.0 * between)
    return {"side": side, "other": other(side), "pace": pace(start - end, -2.2, -1.7)}


ACTIONS: dict[str, Builder] = {
    "sit_down": sit_down,
    "stand_up": stand_up,
    "turn_around": turn_around,
    "bend_down": bend_down,
    "kneel_down": kneel_down,
}

"""MANIPULATION: reaching, lifting, pushing, pulling, carrying, throwing."""

from __future__ import annotations

import numpy as np

from ds_hymotion.data.builtin.action import Builder, Facts
from ds_hymotion.data.builtin.body import SIDES, SIGN, Body, other
from ds_hymotion.data.builtin.captions import again, pace
from ds_hymotion.data.builtin.curves import ease, repeated_plateau, repetitions, track
from ds_hymotion.data.builtin.locomotion import stroll, sway_with
from ds_hymotion.data.builtin.stances import bend, crouch


def stagger(body: Body, front: str, length: float) -> None:
    """Stand with one foot ahead of the other by ``length`` metres."""
    for side in SIDES:
        foot = body.feet[side]
        foot.ball[:, 2] += (0.5 if side == front else -0.5) * length
        foot.ball[:, 0] = SIGN[side] * 0.13
    body.feet[other(front)].yaw *= 2.0
    body.stretch = 0.985


def reach(body: Body, rng: np.random.Generator) -> Facts:
    """Reach up, forward or down with one hand and bring it back."""
    side, where = str(rng.choice(SIDES)), str(rng.choice(["up", "forward", "down"]))
    sign = SIGN[side]
    spans = repetitions(body.duration, rng.uniform(1.8, 3.2))
    out = repeated_plateau(body.times, spans, up=0.33, hold=0.22)
    arm = body.arms[side]
    aside = sign * rng.uniform(0.05, 0.25)
    if where == "up":
        target = [aside, rng.uniform(0.47, 0.56), rng.uniform(0.08, 0.25)]
        body.turn(body.spine, roll=sign * 6.0 * out, pitch=-4.0 * out)
        body.turn(body.head, pitch=-18.0 * out)
        for foot in body.feet.values():
            foot.pitch -= rng.uniform(0.0, 14.0) * out
    elif where == "forward":
        target = [aside, rng.uniform(0.05, 0.22), rng.uniform(0.48, 0.56)]
        body.turn(body.spine, yaw=-sign * 16.0 * out, pitch=9.0 * out)
        body.turn(body.hips, pitch=4.0 * out, yaw=-sign * 4.0 * out)
        body.turn(body.head, yaw=sign * 10.0 * out)
    else:
        target = [aside, rng.uniform(-0.34, -0.26), rng.uniform(0.42, 0.48)]
        bend(body, 1.0 * out, angle=rng.uniform(42.0, 58.0), knees=0.10)
        body.arms[other(side)].set(out, abduction=24.0)
        body.turn(body.spine, yaw=-sign * 14.0 * out)
    arm.reach(np.asarray(target), out, (0.5 * sign, -1.0, -0.4), in_chest=True)
    arm.grip = arm.grip + 25.0 * repeated_plateau(body.times, spans, up=0.2, hold=0.1)
    return {"variant": where, "side": side, "again": again(len(spans))}


def lift(body: Body, rng: np.random.Generator) -> Facts:
    """Squat, take a box from the floor with both hands, hold it before the chest; put it down again if time allows."""
    spans = repetitions(body.duration, rng.uniform(3.6, 5.0))
    returns = spans[0][1] - spans[0][0] > 3.4
    deep, held, carried = np.zeros((3, len(body.times)))
    for start, end in spans:
        shares = (0.02, 0.28, 0.32, 0.52, 0.62, 0.8, 0.84, 0.99) if returns else (0.03, 0.45, 0.5, 0.95)
        when = [start + share * (end - start) for share in shares]
        deep += ease(body.times, when[0], when[1]) - ease(body.times, when[2], when[3])
        held += ease(body.times, when[0] + 0.2, when[1])
        carried += ease(body.times, when[2], when[3])
        if returns:
            carried -= ease(body.times, when[4], when[5])
            deep += ease(body.times, when[4], when[5]) - ease(body.times, when[6], when[7])
            held -= ease(body.times, when[6], when[7])
    half = rng.uniform(0.13, 0.2)
    crouch(body, deep, depth=rng.uniform(0.38, 0.44), lean=rng.uniform(72.0, 84.0), width=0.19)
    body.turn(body.spine, pitch=-5.0 * carried)
    for side in SIDES:
        across = np.full_like(carried, SIGN[side] * half)
        target = np.stack([across, 0.22 + 0.80 * carried, 0.42 - 0.15 * carried], axis=-1)
        body.arms[side].reach(target, held, (0.9 * SIGN[side], -0.8, -0.5))
        body.arms[side].grip = body.arms[side].grip + 20.0 * held
    return {"variant": "down" if returns else "up", "again": again(len(spans))}


def push(body: Body, rng: np.random.Generator) -> Facts:
    """Push away from the chest with both hands, the body leaning in."""
    front = str(rng.choice(SIDES))
    stagger(body, front, rng.uniform(0.34, 0.5))
    spans = repetitions(body.duration, rng.uniform(2.0, 3.2))
    ready = ease(body.times, 0.0, 0.45)
    ready = ready * (1.0 - ease(body.times, body.duration - 0.45, body.duration)) if body.duration > 3.0 else ready
    out = repeated_plateau(body.times, spans, up=0.28, hold=0.2)
    _both_hands(body, ready, out, near=(0.19, 0.02, 0.22), far=(0.15, 0.13, 0.54), elbows=(1.0, -0.9, -0.2))
    body.shift[:, 1] += 0.09 * out - 0.04 * ready
    body.turn(body.hips, pitch=5.0 * ready + 9.0 * out)
    body.turn(body.spine, pitch=4.0 * ready + 7.0 * out)
    body.turn(body.head, pitch=-6.0 * out)
    body.pelvis[:, 1] -= 0.06 * ready
    for arm in body.arms.values():
        arm.wrist[:, 0] += 55.0 * ready
    return {"again": again(len(spans))}


def pull(body: Body, rng: np.random.Generator) -> Facts:
    """Pull something towards the body with both hands, leaning back."""
    front = str(rng.choice(SIDES))
    stagger(body, front, rng.uniform(0.34, 0.5))
    spans = repetitions(body.duration, rng.uniform(2.0, 3.2))
    ready = ease(body.times, 0.0, 0.5)
    back = repeated_plateau(body.times, spans, up=0.3, hold=0.12)
    _both_hands(body, ready, back, near=(0.10, 0.03, 0.53), far=(0.17, -0.12, 0.18), elbows=(1.0, -0.5, -0.6))
    body.shift[:, 1] -= 0.10 * back - 0.03 * ready
    body.turn(body.hips, pitch=8.0 * ready - 14.0 * back)
    body.turn(body.spine, pitch=8.0 * ready - 14.0 * back)
    body.turn(body.head, pitch=6.0 * back)
    body.pelvis[:, 1] -= 0.06 * ready + 0.03 * back
    for arm in body.arms.values():
        arm.grip = arm.grip + 45.0 * ready
    return {"again": again(len(spans))}


def _both_hands(
    body: Body,
    ready: np.ndarray,
    moved: np.ndarray,
    near: tuple[float, float, float],
    far: tuple[float, float, float],
    elbows: tuple[float, float, float],
) -> None:
    """Both wrists, in the chest's frame, from ``near`` to ``far`` by ``moved``; given for the left, mirrored right."""
    for side in SIDES:
        mirror = np.array([SIGN[side], 1.0, 1.0])
        target = (np.asarray(near) + moved[:, None] * (np.asarray(far) - np.asarray(near))) * mirror
        body.arms[side].reach(target, ready, (elbows[0] * SIGN[side], elbows[1], elbows[2]), in_chest=True)


def carry(body: Body, rng: np.random.Generator) -> Facts:
    """Walk forward with a box in both arms."""
    speed = rng.uniform(0.5, 1.1)
    gait = stroll(body, rng, speed, turn=0.0)
    sway_with(body, gait, twist=2.0, sway=0.024, roll=2.5, arms=0.0, elbow=0.0)
    body.turn(body.spine, pitch=-6.0)
    half = rng.uniform(0.13, 0.2)
    full = np.ones_like(body.times)
    for side in SIDES:
        target = np.array([SIGN[side] * half, rng.uniform(-0.14, -0.08), rng.uniform(0.26, 0.31)])
        body.arms[side].reach(target, full, (0.6 * SIGN[side], -1.0, -0.5), in_chest=True)
        body.arms[side].grip = body.arms[side].grip + 20.0
    return {"pace": pace(speed, 0.7, 0.9)}


def throw(body: Body, rng: np.random.Generator) -> Facts:
    """Wind up and throw overarm with one hand, the opposite foot in front."""
    side = str(rng.choice(SIDES))
    sign = SIGN[side]
    stagger(body, other(side), rng.uniform(0.36, 0.5))
    spans = repetitions(body.duration, rng.uniform(1.95, 2.8))
    arm, free = body.arms[side], body.arms[other(side)]
    for start, end in spans:
        middle = 0.5 * (start + end)
        cocked, released = middle - 0.16, middle + 0.34
        back = ease(body.times, cocked - 0.75, cocked) - ease(body.times, cocked + 0.02, released)
        through = ease(body.times, cocked + 0.05, released) - ease(body.times, released + 0.05, released + 0.62)
        low = [float(values[0]) for values in (arm.flexion, arm.abduction, arm.twist, arm.elbow)]
        keys = [(cocked - 0.78, *low), (cocked, -4.0, 92.0, -95.0, 95.0), (released, 82.0, 25.0, 10.0, 18.0)]
        keys += [(released + 0.62, *low)]
        for column, name in enumerate(("flexion", "abduction", "twist", "elbow"), start=1):
            moved = track(body.times, [(key[0], key[column]) for key in keys])
            setattr(arm, name, getattr(arm, name) + moved - low[column - 1])
        free.set(np.clip(back, 0.0, 1.0), flexion=62.0, abduction=20.0, elbow=20.0)
        body.turn(body.spine, yaw=sign * (26.0 * back - 22.0 * through), pitch=-7.0 * back + 12.0 * through)
        body.turn(body.hips, yaw=sign * (16.0 * back - 12.0 * through), pitch=-3.0 * back + 6.0 * through)
        body.turn(body.head, yaw=-sign * (36.0 * back - 28.0 * through))
        body.shift[:, 1] += -0.09 * back + 0.10 * through
    body.pelvis[:, 1] -= 0.05
    return {"side": side, "again": again(len(spans))}


ACTIONS: dict[str, Builder] = {"reach": reach, "lift": lift, "push": push, "pull": pull, "carry": carry, "throw": throw}

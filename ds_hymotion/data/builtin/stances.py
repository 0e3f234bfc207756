"""Whole-body poses that several actions share: sitting, kneeling, crouching, bending, lying, standing on one leg.

Each takes ``amount`` [T] from 0 (the stance before) to 1 (the pose).
"""

from __future__ import annotations

import numpy as np

from ds_hymotion.data.builtin.body import SIDES, SIGN, Body, other
from ds_hymotion.data.builtin.curves import Array, ease, track
from ds_hymotion.data.builtin.footsteps import Steps, Swing

SEAT_HEIGHT = 0.545  # of the pelvis over the floor: thighs level on a chair
KNEELING_HEIGHT = 0.525  # of the pelvis over the floor: thighs upright, knees on the floor


def move(values: Array, target: Array | float, amount: Array) -> None:
    """Move ``values`` [T] in place towards ``target`` by ``amount`` [T]."""
    values += amount * (target - values)


def seat(body: Body, amount: Array, lean: float, height: float = SEAT_HEIGHT) -> None:
    """Sit on an invisible chair behind the feet, hands on the thighs; ``lean`` degrees of trunk on the way."""
    between = 16.0 * (amount * (1.0 - amount)) ** 2
    feet = np.mean([body.feet[side].ball[:, 2] for side in SIDES], axis=0)
    move(body.pelvis[:, 1], height, amount)
    move(body.pelvis[:, 2], feet - 0.47, amount)
    body.balance = body.balance * (1.0 - ease(amount, 0.35, 0.95))
    body.turn(body.hips, pitch=0.62 * lean * between - 4.0 * amount)
    body.turn(body.spine, pitch=0.5 * lean * between + 8.0 * amount)
    body.turn(body.head, pitch=-0.5 * lean * between - 2.0 * amount)
    for side, arm in body.arms.items():
        arm.set(amount, flexion=26.0, abduction=9.0, twist=18.0, elbow=40.0)
        arm.flexion = arm.flexion + 22.0 * between
        thigh = np.stack([body.feet[side].ball[:, 0] * 0.95, np.full_like(feet, height), feet - 0.29], axis=-1)
        arm.reach(thigh, ease(amount, 0.5, 1.0), (0.7 * SIGN[side], -0.6, -1.0))


def kneel_on_one_knee(body: Body, side: str, start: float, step: float, end: float) -> None:
    """Step back with ``side`` from ``start`` to ``step`` seconds, that knee on the floor at ``end``."""
    times, front, back = body.times, body.feet[other(side)], body.feet[side]
    ahead = float(front.ball[0, 2])
    first = float(back.ball[0, 0]), float(back.ball[0, 2])
    steps = Steps(side, first, float(back.yaw[0]))
    steps.swings.append(Swing(start, step, (first[0], ahead - 0.80), 0.3 * steps.yaw, lift=0.06))
    steps.write(body)
    # Only the toes of the foot behind come to stand.
    back.pitch = track(times, [(start - 0.25, 0.0), (start + 0.1, -20.0), (step, -48.0), (end, -72.0)])
    backwards = ease(times, start - 0.15, max(step, start + 0.7 * (end - start)))
    move(body.pelvis[:, 2], ahead - 0.42, backwards)
    move(body.pelvis[:, 1], KNEELING_HEIGHT, ease(times, start + 0.2 * (end - start), end))
    body.balance = body.balance * (1.0 - ease(times, start - 0.2, start + 0.35 * (end - start)))
    down = ease(times, start, end)
    body.turn(body.hips, pitch=3.0 * down)
    body.turn(body.spine, pitch=5.0 * down)
    body.arms[other(side)].set(down, flexion=34.0, abduction=6.0, twist=12.0, elbow=34.0)


def kneel_on_both_knees(body: Body, toes_tucked: bool, height: float = KNEELING_HEIGHT) -> None:
    """Kneel upright on both knees all the time, the feet behind: on the toes, or flat on their backs."""
    for side in SIDES:
        foot = body.feet[side]
        foot.ball[:, 0] = SIGN[side] * 0.11
        foot.ball[:, 2] = -0.37 if toes_tucked else -0.50
        foot.yaw[:] = 0.0
        foot.pitch[:] = -72.0 if toes_tucked else -122.0
    body.pelvis[:, 1] = height
    body.pelvis[:, 2] = -0.02
    body.balance[:] = 0.0


def crouch(body: Body, amount: Array, depth: float, lean: float, width: float = 0.16) -> None:
    """Squat with the pelvis ``depth`` metres lower, the trunk leaning by ``lean`` degrees, in balance."""
    for side in SIDES:
        foot = body.feet[side]
        foot.ball[:, 0] = SIGN[side] * width
        foot.yaw[:] = SIGN[side] * 16.0
        foot.pitch -= 26.0 * ease(amount * depth, 0.25, 0.55)
        foot.knee[:, 0] = SIGN[side] * 0.15
    body.pelvis[:, 1] -= depth * amount
    body.turn(body.hips, pitch=0.6 * lean * amount)
    body.turn(body.spine, pitch=0.4 * lean * amount)
    body.turn(body.head, pitch=-0.5 * lean * amount)


def bend(body: Body, amount: Array, angle: float, knees: float = 0.0) -> None:
    """Bend forward by ``angle`` degrees from hips and spine, the hips moving back, the knees by ``knees`` metres."""
    body.turn(body.hips, pitch=0.58 * angle * amount)
    body.turn(body.spine, pitch=0.42 * angle * amount)
    body.turn(body.head, pitch=0.12 * angle * amount)
    body.pelvis[:, 1] -= knees * amount
    for arm in body.arms.values():
        arm.set(amount, flexion=0.8 * angle, elbow=14.0)


def lie_on_back(body: Body, bent: dict[str, float]) -> None:
    """Lie on the back, the head towards −z; ``bent`` metres by which each foot is drawn up."""
    body.turn(body.hips, pitch=-90.0)
    body.pelvis[:] = [0.0, 0.10, 0.0]
    body.balance[:] = 0.0
    body.turn(body.head, pitch=6.0)
    for side in SIDES:
        foot = body.feet[side]
        drawn = bent[side]
        flat = drawn > 0.1
        foot.ball[:] = [SIGN[side] * 0.13, 0.0, (0.98 if flat else 1.04) - drawn]
        foot.pitch[:] = 0.0 if flat else 62.0
        foot.yaw[:] = SIGN[side] * (4.0 if flat else 14.0)
        foot.knee[:] = [0.0, 1.0, 0.0]
        body.arms[side].set(1.0, flexion=-6.0, abduction=20.0, twist=10.0, elbow=14.0)


def raise_foot(body: Body, side: str, amount: Array, height: float, ahead: float) -> None:
    """Lift the foot of ``side`` by ``height`` metres, ``ahead`` of its place, once the other leg carries the weight."""
    foot = body.feet[side]
    foot.load = 1.0 - ease(amount, 0.0, 0.3)
    up = ease(amount, 0.25, 1.0)
    foot.ball[:, 1] += height * up
    foot.ball[:, 2] += ahead * up
    foot.ball[:, 0] -= SIGN[side] * 0.02 * up
    foot.pitch -= 22.0 * ease(amount, 0.15, 0.7)
    body.feet[other(side)].yaw *= 0.6

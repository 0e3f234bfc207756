"""BALANCE: standing and swaying on one leg, the tightrope, the yoga tree."""

from __future__ import annotations

import numpy as np

from ds_hymotion.data.builtin.action import Builder, Facts
from ds_hymotion.data.builtin.body import SIDES, SIGN, Body, other
from ds_hymotion.data.builtin.curves import ease, plateau, wander
from ds_hymotion.data.builtin.footsteps import Gait
from ds_hymotion.data.builtin.locomotion import sway_with
from ds_hymotion.data.builtin.stances import raise_foot


def one_leg_stand(body: Body, rng: np.random.Generator) -> Facts:
    """Lift one foot and stand on the other leg; on longer clips put it down at the end."""
    side = str(rng.choice(SIDES))
    end = body.duration
    lowers = end > 4.5 and rng.random() < 0.5
    up = plateau(body.times, (0.0, 1.1), (end - 1.4, end - 0.2) if lowers else (end + 1.0, end + 2.0))
    raise_foot(body, other(side), up, height=rng.uniform(0.18, 0.42), ahead=rng.uniform(-0.02, 0.12))
    _arms_out(body, rng, up, rng.uniform(38.0, 78.0), unrest=4.0)
    body.turn(body.spine, roll=wander(rng, body.times, 1.6) * up)
    return {"side": side, "other": other(side)}


def one_leg_sway(body: Body, rng: np.random.Generator) -> Facts:
    """Sway from side to side on one leg, the arms working."""
    side = str(rng.choice(SIDES))
    full = np.ones_like(body.times)
    raise_foot(body, other(side), full, height=rng.uniform(0.16, 0.3), ahead=rng.uniform(-0.05, 0.1))
    rate = rng.uniform(0.45, 0.7)
    angle = 2.0 * np.pi * (rate * body.times + rng.uniform())
    swing = np.sin(angle) * (0.75 + 0.25 * np.sin(0.37 * angle + rng.uniform(0.0, 6.28)))
    _arms_out(body, rng, full, 74.0, unrest=5.0)
    body.shift[:, 0] -= 0.022 * swing
    body.turn(body.spine, roll=13.0 * swing)
    body.turn(body.hips, roll=4.0 * swing)
    body.turn(body.head, roll=-9.0 * swing)
    for name, arm in body.arms.items():
        arm.abduction = arm.abduction - SIGN[name] * rng.uniform(18.0, 26.0) * swing
    lifted = body.feet[other(side)]
    lifted.ball[:, 0] += SIGN[other(side)] * (0.06 + 0.04 * swing * SIGN[other(side)])
    return {"side": side, "other": other(side)}


def tightrope(body: Body, rng: np.random.Generator) -> Facts:
    """Walk along a line, one foot before the other, the arms stretched out."""
    speed = rng.uniform(0.26, 0.42)
    gait = Gait(
        forward=speed,
        cadence=speed / rng.uniform(0.28, 0.34),
        duty=0.70,
        width=0.012,
        toes_out=0.0,
        phase=rng.random(),
        ahead=0.05,
        lift=0.10,
        heel_off=22.0,
        heel_strike=-10.0,
        around=0.10,
    )
    gait.write(body)
    body.stretch = 0.985
    body.pelvis[:, 1] = 0.935
    sway_with(body, gait, twist=2.0, sway=0.012, roll=1.0, arms=0.0, elbow=0.0)
    _arms_out(body, rng, np.ones_like(body.times), 84.0, unrest=3.0)
    tilt = wander(rng, body.times, 1.0, lowest=0.3, highest=0.9)
    body.turn(body.spine, roll=4.0 * tilt)
    body.turn(body.head, roll=-3.0 * tilt, pitch=14.0)
    for name, arm in body.arms.items():
        arm.abduction = arm.abduction - SIGN[name] * 9.0 * tilt
    return {}


def tree_pose(body: Body, rng: np.random.Generator) -> Facts:
    """Stand on one leg, the other foot against its knee, the palms together before the chest or overhead."""
    side = str(rng.choice(SIDES))
    raised = other(side)
    up = ease(body.times, -2.0, -1.0) if rng.random() < 0.4 else ease(body.times, 0.0, min(1.8, body.duration))
    foot, stands = body.feet[raised], body.feet[side]
    foot.load = 1.0 - ease(up, 0.0, 0.3)
    lift = ease(up, 0.2, 1.0)
    start = foot.ball.copy()
    place = stands.ball + np.array([SIGN[raised] * 0.075, rng.uniform(0.30, 0.36), -0.03])
    foot.ball = start + lift[:, None] * (place - start)
    foot.ball[:, 2] += 0.04 * (16.0 * (lift * (1.0 - lift)) ** 2)
    foot.yaw = foot.yaw + lift * (SIGN[raised] * 40.0 - foot.yaw)
    foot.pitch = -58.0 * ease(up, 0.15, 0.9)
    foot.knee = np.stack([SIGN[raised] * 1.1 * lift, np.zeros_like(lift), 1.0 - 0.45 * lift], axis=-1)
    stands.yaw *= 0.5
    overhead = rng.random() < 0.5
    target = (0.055, 0.56, 0.04) if overhead else (0.075, -0.04, 0.24)
    for name in SIDES:
        hint = (1.0, 0.15, -0.2) if overhead else (1.0, -0.6, 0.0)
        goal = np.array([SIGN[name] * target[0], target[1], target[2]])
        arm = body.arms[name]
        if overhead:
            arm.set(ease(up, 0.0, 0.75), abduction=128.0, flexion=6.0, twist=0.0, elbow=40.0)
        arm.reach(goal, ease(up, 0.45 if overhead else 0.1, 1.0), (SIGN[name] * hint[0], *hint[1:]), in_chest=True)
    body.turn(body.hips, yaw=SIGN[raised] * 6.0 * lift)
    return {"side": side, "other": raised}


def _arms_out(body: Body, rng: np.random.Generator, amount: np.ndarray, angle: float, unrest: float) -> None:
    for arm in body.arms.values():
        arm.set(amount, abduction=angle, flexion=8.0, twist=0.0, elbow=14.0)
        arm.abduction = arm.abduction + unrest * amount * wander(rng, body.times, 1.0, lowest=0.2, highest=1.2)
        arm.flexion = arm.flexion + unrest * amount * wander(rng, body.times, 1.0, lowest=0.2, highest=1.2)


ACTIONS: dict[str, Builder] = {
    "one_leg_stand": one_leg_stand,
    "one_leg_sway": one_leg_sway,
    "tightrope": tightrope,
    "tree_pose": tree_pose,
}

"""POSTURE: standing, sitting, kneeling, crouching, lying; held over the whole clip."""

from __future__ import annotations

import numpy as np

from ds_hymotion.data.builtin.action import Builder, Facts
from ds_hymotion.data.builtin.body import SIDES, SIGN, Body, other
from ds_hymotion.data.builtin.curves import track, wander
from ds_hymotion.data.builtin.stances import crouch, kneel_on_both_knees, kneel_on_one_knee, lie_on_back, seat


def look_about(body: Body, rng: np.random.Generator, widest: float) -> None:
    """Turn the head to a new place every one to three seconds, the chest a little with it."""
    keys, moment, last = [(0.0, 0.0)], rng.uniform(0.1, 0.4), 0.0
    side = rng.choice([-1.0, 1.0])
    while moment < body.duration + 1.0:
        keys.append((moment, last))
        last = side * rng.uniform(0.5, 1.0) * widest
        side = -side
        keys.append((moment + rng.uniform(0.7, 1.1), last))
        moment = keys[-1][0] + rng.uniform(0.3, 1.4)
    yaw = track(body.times, keys)
    body.turn(body.head, yaw=0.8 * yaw)
    body.turn(body.spine, yaw=0.2 * yaw)


def stand(body: Body, rng: np.random.Generator) -> Facts:
    """Stand still, look around, or shift the weight from foot to foot."""
    how = str(rng.choice(["still", "looking", "shifting"]))
    if how == "looking":
        look_about(body, rng, widest=rng.uniform(35.0, 60.0))
    elif how == "shifting":
        over = np.sin(2.0 * np.pi * (rng.uniform(0.3, 0.45) * body.times + rng.uniform()))
        body.shift[:, 0] += rng.uniform(0.04, 0.06) * over
        body.turn(body.hips, roll=-3.5 * over)
        body.turn(body.spine, roll=3.0 * over)
        body.stretch = 0.993
        body.pelvis[:, 1] -= 0.03
    return {"variant": how}


def sit(body: Body, rng: np.random.Generator) -> Facts:
    """Sit on a chair."""
    seat(body, np.ones_like(body.times), lean=0.0, height=rng.uniform(0.52, 0.58))
    body.turn(body.spine, pitch=rng.uniform(-4.0, 14.0))
    if rng.random() < 0.5:
        look_about(body, rng, widest=rng.uniform(15.0, 40.0))
    return {}


def kneel(body: Body, rng: np.random.Generator) -> Facts:
    """Kneel on both knees or on one."""
    if rng.random() < 0.5:
        kneel_on_both_knees(body, toes_tucked=bool(rng.random() < 0.5))
        for arm in body.arms.values():
            arm.set(1.0, flexion=rng.uniform(8.0, 16.0), abduction=10.0, twist=25.0, elbow=rng.uniform(15.0, 40.0))
        body.turn(body.spine, pitch=rng.uniform(0.0, 8.0))
        return {"variant": "both"}
    side = str(rng.choice(SIDES))
    kneel_on_one_knee(body, side, start=-4.0, step=-3.0, end=-2.0)
    body.turn(body.head, yaw=SIGN[side] * rng.uniform(-10.0, 10.0))
    return {"variant": "one", "side": side, "other": other(side)}


def crouching(body: Body, rng: np.random.Generator) -> Facts:
    """Stay in a low squat, the forearms on the knees."""
    depth = rng.uniform(0.42, 0.52)
    crouch(body, np.ones_like(body.times), depth=depth, lean=rng.uniform(34.0, 48.0))
    for side in SIDES:
        body.arms[side].set(1.0, flexion=50.0, abduction=6.0, twist=20.0, elbow=rng.uniform(16.0, 30.0))
    body.shift[:, 0] += wander(rng, body.times, 0.008)
    return {}


def lie(body: Body, rng: np.random.Generator) -> Facts:
    """Lie on the back, the legs straight or one knee bent."""
    side = str(rng.choice(SIDES))
    bent = rng.random() < 0.5
    lie_on_back(body, {side: rng.uniform(0.32, 0.42) if bent else 0.0, other(side): 0.0})
    body.turn(body.head, yaw=wander(rng, body.times, 8.0, lowest=0.08, highest=0.5))
    return {"variant": "bent" if bent else "straight", "side": side, "other": other(side)}


ACTIONS: dict[str, Builder] = {"stand": stand, "sit": sit, "kneel": kneel, "crouch": crouching, "lie": lie}

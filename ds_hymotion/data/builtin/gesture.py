"""GESTURE: waving, pointing, clapping, bowing, raising both arms."""

from __future__ import annotations

import numpy as np

from ds_hymotion.data.builtin.action import Builder, Facts
from ds_hymotion.data.builtin.body import SIDES, SIGN, Body
from ds_hymotion.data.builtin.captions import again, count_word, pace
from ds_hymotion.data.builtin.curves import ease, plateau, repeated_plateau, repetitions
from ds_hymotion.data.builtin.stances import bend


def wave(body: Body, rng: np.random.Generator) -> Facts:
    """Raise one hand beside the head and wave it."""
    side = str(rng.choice(SIDES))
    sign = SIGN[side]
    rate = rng.uniform(1.0, 1.9)
    end = body.duration
    lowers = end > 3.5 and rng.random() < 0.6
    up = plateau(body.times, (0.05, 0.65), (end - 0.8, end - 0.1) if lowers else (end + 1.0, end + 2.0))
    waving = plateau(body.times, (0.5, 0.9), (end - 1.0, end - 0.6) if lowers else (end + 1.0, end + 2.0))
    swing = waving * np.sin(2.0 * np.pi * rate * body.times + rng.uniform(0.0, 6.28))
    arm = body.arms[side]
    arm.set(up, flexion=rng.uniform(8.0, 22.0), abduction=rng.uniform(58.0, 92.0), twist=-92.0, elbow=92.0)
    arm.elbow = arm.elbow + rng.uniform(16.0, 24.0) * swing
    arm.twist = arm.twist + 7.0 * swing
    arm.wrist[:, 1] += 16.0 * swing
    arm.wrist[:, 0] += 12.0 * up
    body.turn(body.spine, roll=-3.0 * sign * up, yaw=2.0 * sign * swing)
    body.turn(body.head, roll=3.0 * sign * up)
    return {"side": side, "pace": pace(rate, 1.25, 1.6)}


def point(body: Body, rng: np.random.Generator) -> Facts:
    """Stretch one arm ahead, to its own side or up, and look there."""
    side, where = str(rng.choice(SIDES)), str(rng.choice(["ahead", "aside", "up"]))
    sign = SIGN[side]
    spans = repetitions(body.duration, rng.uniform(1.9, 4.5), most=3)
    out = repeated_plateau(body.times, spans, up=0.3, hold=0.32)
    arm = body.arms[side]
    slope = rng.uniform(-6.0, 8.0)
    if where == "ahead":
        arm.set(out, flexion=86.0 + slope, abduction=8.0, twist=0.0, elbow=5.0)
        body.turn(body.spine, yaw=-7.0 * sign * out)
        body.turn(body.head, yaw=5.0 * sign * out)
    elif where == "aside":
        arm.set(out, flexion=10.0, abduction=86.0 + slope, twist=0.0, elbow=5.0)
        body.turn(body.head, yaw=58.0 * sign * out)
        body.turn(body.spine, yaw=12.0 * sign * out)
    else:
        arm.set(out, flexion=148.0 + slope, abduction=8.0, twist=0.0, elbow=6.0)
        body.turn(body.head, pitch=-34.0 * out, yaw=8.0 * sign * out)
        body.turn(body.spine, pitch=-4.0 * out)
    arm.grip = arm.grip - 8.0 * out
    return {"variant": where, "side": side, "again": again(len(spans))}


def clap(body: Body, rng: np.random.Generator) -> Facts:
    """Clap both hands before the chest."""
    rate = rng.uniform(1.0, 2.0)
    end = body.duration
    begin = 0.6
    count = max(1, int((end - 0.05 - begin) * rate))
    clock = np.clip((body.times - begin) * rate, 0.0, count)
    apart = 0.5 - 0.5 * np.cos(2.0 * np.pi * clock)  # 0 at every whole number: the hands together
    ready = ease(body.times, 0.0, begin)
    height, ahead, width = rng.uniform(-0.1, 0.08), rng.uniform(0.27, 0.33), rng.uniform(0.11, 0.17)
    for side in SIDES:
        gap = 0.064 + width * apart
        target = np.stack([SIGN[side] * gap, height - 0.02 * apart, ahead - 0.02 * apart], axis=-1)
        body.arms[side].reach(target, ready, (0.8 * SIGN[side], -1.0, -0.1), in_chest=True)
        body.arms[side].grip = body.arms[side].grip - 6.0
    body.turn(body.head, pitch=4.0 * ready)
    return {"pace": pace(rate, 1.3, 1.65), "count": count_word(count + 1)}


def bow(body: Body, rng: np.random.Generator) -> Facts:
    """Bend forward with straight legs and come up again."""
    period = rng.uniform(1.9, 4.2)
    spans = repetitions(body.duration, period, most=3)
    length = spans[0][1] - spans[0][0]
    down = repeated_plateau(body.times, spans, up=0.33, hold=0.14)
    bend(body, down, angle=rng.uniform(38.0, 70.0))
    for arm in body.arms.values():
        arm.set(down, flexion=rng.uniform(12.0, 24.0), elbow=12.0)
    body.turn(body.head, pitch=14.0 * down)
    return {"pace": pace(-length, -3.6, -2.3), "again": again(len(spans))}


def raise_arms(body: Body, rng: np.random.Generator) -> Facts:
    """Raise both arms over the head, sideways or in front, and lower them."""
    where = str(rng.choice(["aside", "ahead"]))
    spans = repetitions(body.duration, rng.uniform(1.9, 3.6))
    up = repeated_plateau(body.times, spans, up=0.36, hold=0.14)
    top = rng.uniform(152.0, 172.0)
    for arm in body.arms.values():
        if where == "aside":
            arm.set(up, flexion=4.0, abduction=top, twist=0.0, elbow=10.0)
        else:
            arm.set(up, flexion=top, abduction=10.0, twist=0.0, elbow=8.0)
    body.turn(body.head, pitch=-14.0 * up)
    body.turn(body.spine, pitch=-5.0 * up)
    return {"variant": where, "again": again(len(spans))}


ACTIONS: dict[str, Builder] = {"wave": wave, "point": point, "clap": clap, "bow": bow, "raise_arms": raise_arms}

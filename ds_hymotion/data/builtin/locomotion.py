"""LOCOMOTION: walking forward and backward, running, sidestepping, jumping."""

from __future__ import annotations

import numpy as np
from scipy.interpolate import BPoly

from ds_hymotion.data.builtin.action import Builder, Facts
from ds_hymotion.data.builtin.body import SIDES, SIGN, Body, other
from ds_hymotion.data.builtin.captions import count_word, pace
from ds_hymotion.data.builtin.curves import Array, arch, ease, repetitions, track, wander
from ds_hymotion.data.builtin.footsteps import Gait


def sway_with(body: Body, gait: Gait, twist: float, sway: float, roll: float, arms: float, elbow: float) -> None:
    """The trunk and arms of a gait: pelvis turned and moved to the standing leg, chest and arms against the legs.

    Degrees, but ``sway`` in metres.
    """
    left_ahead, left_stands = gait.swinging(body.times, "left"), gait.standing(body.times, "left")
    body.turn(body.hips, yaw=-twist * left_ahead, roll=-roll * -left_stands)
    body.turn(body.spine, yaw=2.0 * twist * left_ahead, roll=-1.2 * roll * left_stands)
    body.turn(body.head, yaw=-1.0 * twist * left_ahead)
    heading = np.radians(gait.heading(body.times))
    body.pelvis[:, [0, 2]] += (sway * left_stands)[:, None] * np.stack([np.cos(heading), -np.sin(heading)], axis=-1)
    for side in SIDES:
        swing = gait.swinging(body.times, other(side))
        arm = body.arms[side]
        arm.flexion = arm.flexion + arms * (swing + 0.1)
        arm.elbow = arm.elbow + elbow * (0.5 + 0.5 * swing)
    body.balance[:] = 0.0


def bob(body: Body, gait: Gait, height: float) -> Array:
    """+``height`` metres at each mid-stance, −``height`` between two of them, [T]."""
    return height * (2.0 * gait.standing(body.times, "left") ** 2 - 1.0)


def _curve(rng: np.random.Generator, straight: float = 0.6) -> tuple[float, str]:
    """Degrees per second to the left and the side of the curve, "" if straight."""
    if rng.random() < straight:
        return 0.0, ""
    side = str(rng.choice(SIDES))
    return SIGN[side] * rng.uniform(16.0, 38.0), side


def stroll(body: Body, rng: np.random.Generator, speed: float, turn: float) -> Gait:
    """Put an ordinary walk into the body: its footsteps, its height and its slight forward lean."""
    cadence = 1.95 * np.sqrt(speed / 1.2) * rng.uniform(0.95, 1.05)
    gait = Gait(
        forward=speed,
        cadence=cadence,
        turn=turn,
        duty=0.58,
        width=rng.uniform(0.07, 0.095),
        toes_out=rng.uniform(3.0, 10.0),
        phase=rng.random(),
        ahead=0.0,
        lift=0.10 + 0.02 * speed,
        heel_off=28.0 + 16.0 * speed,
        heel_strike=10.0 + 8.0 * speed,
    )
    gait.write(body)
    body.stretch = 0.985
    body.pelvis[:, 1] = 0.905 - 0.018 * speed + bob(body, gait, 0.006 + 0.007 * speed)
    body.turn(body.hips, pitch=2.0)
    body.turn(body.spine, pitch=1.0 + 1.5 * speed)
    return gait


def walk(body: Body, rng: np.random.Generator) -> Facts:
    """Walk forward, straight or in a curve."""
    speed = rng.uniform(0.6, 1.4)
    turn, curve = _curve(rng)
    gait = stroll(body, rng, speed, turn)
    arms = rng.uniform(14.0, 20.0) * (0.5 + 0.6 * speed)
    sway_with(body, gait, twist=3.0 + 3.0 * speed, sway=0.022, roll=3.0, arms=arms, elbow=12.0 * speed)
    body.turn(body.hips, roll=-0.06 * turn)
    return {"variant": "curve" if curve else "straight", "side": curve, "pace": pace(speed, 0.85, 1.15)}


def walk_backward(body: Body, rng: np.random.Generator) -> Facts:
    """Walk backward, toes first."""
    speed = rng.uniform(0.4, 0.9)
    gait = Gait(
        forward=-speed,
        cadence=1.55 * np.sqrt(speed / 0.7),
        duty=0.66,
        width=0.095,
        phase=rng.random(),
        ahead=0.07,
        lift=0.12,
        heel_off=8.0,
        heel_strike=-20.0,
    )
    gait.write(body)
    body.stretch = 0.975
    body.pelvis[:, 1] = 0.94
    body.turn(body.spine, pitch=4.0)
    sway_with(body, gait, twist=3.0, sway=0.025, roll=2.0, arms=rng.uniform(8.0, 14.0), elbow=4.0)
    return {"pace": pace(speed, 0.55, 0.75)}


def run(body: Body, rng: np.random.Generator) -> Facts:
    """Run or jog forward, both feet off the floor between the steps."""
    speed = rng.uniform(1.7, 2.8)
    turn, curve = _curve(rng, straight=0.7)
    gait = Gait(
        forward=speed,
        cadence=2.35 + 0.15 * speed,
        turn=turn,
        duty=0.33,
        width=0.055,
        toes_out=4.0,
        phase=rng.random(),
        ahead=-0.04,
        lift=0.16 + 0.05 * speed,
        heel_off=58.0,
        heel_strike=4.0,
    )
    gait.write(body)
    body.stretch = 0.975
    body.pelvis[:, 1] = 0.895 - bob(body, gait, 0.02)
    body.turn(body.hips, pitch=6.0)
    body.turn(body.spine, pitch=2.0 + 1.5 * speed)
    body.turn(body.head, pitch=-4.0)
    for arm in body.arms.values():
        arm.set(1.0, flexion=2.0, abduction=12.0, twist=22.0, elbow=72.0)
    sway_with(body, gait, twist=7.0, sway=0.012, roll=2.5, arms=15.0 + 6.0 * speed, elbow=22.0)
    body.turn(body.hips, roll=-0.12 * turn)
    return {"variant": "curve" if curve else "straight", "side": curve, "pace": pace(speed, 2.05, 2.45)}


def sidestep(body: Body, rng: np.random.Generator) -> Facts:
    """Step sideways without turning."""
    side = str(rng.choice(SIDES))
    speed = rng.uniform(0.3, 0.65)
    cadence = rng.uniform(1.5, 1.9)
    gait = Gait(
        forward=0.0,
        cadence=cadence,
        aside=SIGN[side] * speed,
        duty=0.62,
        width=0.075 + 0.5 * speed / cadence,
        phase=rng.random(),
        lift=0.12,
        heel_off=18.0,
        heel_strike=-6.0,
    )
    gait.write(body)
    body.stretch = 0.975
    body.pelvis[:, 1] = 0.93
    body.turn(body.spine, pitch=4.0)
    sway_with(body, gait, twist=0.5, sway=0.015, roll=2.0, arms=2.0, elbow=3.0)
    for name, arm in body.arms.items():
        arm.abduction = arm.abduction + 8.0 + 5.0 * gait.standing(body.times, name)
        arm.elbow = arm.elbow + 12.0
    body.turn(body.head, yaw=SIGN[side] * rng.uniform(0.0, 22.0))
    return {"side": side, "pace": pace(speed, 0.42, 0.54)}


def jump(body: Body, rng: np.random.Generator) -> Facts:
    """Jump up on the spot or forward, landing on both feet, once or several times."""
    height = rng.uniform(0.16, 0.32)
    distance = rng.uniform(0.3, 0.7) if rng.random() < 0.5 else 0.0
    spans = repetitions(body.duration, rng.uniform(2.05, 2.5))
    flight = 2.0 * np.sqrt(2.0 * height / 9.81)
    crouched, tall = 0.70, 0.93
    travelled = 0.0
    y = np.full_like(body.times, tall)
    for start, end in spans:
        middle = (start + end) / 2.0
        off, land = middle - flight / 2.0, middle + flight / 2.0
        y += _hop(body.times, off, land, tall, crouched, height)
        down = ease(body.times, off - 0.62, off - 0.2) - ease(body.times, off - 0.2, off + 0.06)
        down += 0.7 * (ease(body.times, land - 0.04, land + 0.2) - ease(body.times, land + 0.22, land + 0.7))
        body.turn(body.hips, pitch=22.0 * down)
        body.turn(body.spine, pitch=16.0 * down)
        body.turn(body.head, pitch=-14.0 * down)
        air = ease(body.times, off - 0.34, off + 0.16) - ease(body.times, middle + 0.02, land + 0.42)
        for side in SIDES:
            foot, arm = body.feet[side], body.arms[side]
            foot.ball[:, 1] += (height + 0.06) * arch(body.times, off - 0.07, land + 0.06) ** 0.8
            foot.ball[:, 2] += distance * ease(body.times, off, land - 0.02)
            heel = [(off - 0.26, 0.0), (off + 0.03, -48.0), (middle + 0.05, -26.0), (land + 0.1, 0.0)]
            foot.pitch += track(body.times, heel)
            back = ease(body.times, off - 0.62, off - 0.28) - ease(body.times, off - 0.36, off + 0.04)
            arm.flexion = arm.flexion - 38.0 * back + 98.0 * air
            arm.elbow = arm.elbow + 22.0 * back + 20.0 * air
        body.pelvis[:, 2] += distance * ease(body.times, off - 0.15, land + 0.1)
        travelled += distance
    body.pelvis[:, 1] = y
    body.balance[:] = 0.0
    body.pelvis[:, 2] -= 0.01
    body.pelvis[:, 0] += wander(rng, body.times, 0.004)
    body.stretch = 0.975
    where = "forward" if distance else "up"
    return {"variant": where, "count": count_word(len(spans))}


def _hop(times: Array, off: float, land: float, tall: float, crouched: float, height: float) -> Array:
    """Height of the pelvis over ``tall`` in one jump: crouch, push off, fly under gravity, absorb, stand; [T]."""
    speed = 9.81 * (land - off) / 2.0
    low = crouched - tall
    seconds = [off - 0.8, off - 0.31, off, land, land + 0.23, land + 0.78]
    rest, bottom, absorbed = [0.0, 0.0, 0.0], [low, 0.0, 4.0], [0.75 * low, 0.0, 4.0]
    states = [rest, bottom, [0.02, speed, -9.81], [0.02, -speed, -9.81], absorbed, rest]
    curve = BPoly.from_derivatives(seconds, states)
    inside = np.clip(times, seconds[0], seconds[-1])
    return np.asarray(curve(inside), dtype=np.float64)


ACTIONS: dict[str, Builder] = {
    "walk": walk,
    "run": run,
    "sidestep": sidestep,
    "walk_backward": walk_backward,
    "jump": jump,
}

"""The body over time, as a choreographer sees it: where the pelvis, the feet and the hands are, and how it bends.

Axes: y up, z forward, x to the body's left, metres; angles in degrees. Sides are ``left`` (+x) and ``right`` (−x).
A foot is given by its ball, not by its ankle, because the ball is what stays in place while the heel rises.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from ds_hymotion.data.builtin.curves import Array, wander
from ds_hymotion.data.builtin.limbs import about

Values = Array | float
SIDES = ("left", "right")
SIGN = {"left": 1.0, "right": -1.0}
STANDING_HEIGHT = 0.97  # of the pelvis; more than the legs allow, so that a standing body takes their length
BALL_AHEAD = 0.065  # of the pelvis, in a relaxed stance
HEEL_BEHIND = 0.17  # of the ball, along the sole
TREMOR = 2.0, 4.0  # Hz
HEEL_SOFTNESS = 6.0  # degrees over which the pivot moves from the ball to the heel


def other(side: str) -> str:
    """The opposite side."""
    return "right" if side == "left" else "left"


@dataclass
class Arm:
    """One arm. It hangs at 0; the angles place it unless ``weight`` pulls the wrist to ``target``.

    ``flexion`` raises it forward, ``abduction`` sideways, ``twist`` turns the forearm's bend inwards, [T] each;
    ``wrist`` holds extension, deviation towards the thumb and pronation [T, 3]; ``grip`` curls the hand.
    ``target`` [T, 3] lies in the world or, with ``in_chest``, in the chest's frame from its centre; the elbow points
    along ``hint`` [T, 3] in the chest's frame.
    """

    flexion: Array
    abduction: Array
    twist: Array
    elbow: Array
    wrist: Array
    grip: Array
    target: Array
    weight: Array
    hint: Array
    in_chest: bool = False

    def set(self, weight: Values, **angles: Values) -> None:
        """Move the named angles towards new values by ``weight`` (0: unchanged, 1: there)."""
        for name, value in angles.items():
            before = getattr(self, name)
            setattr(self, name, before + weight * (value - before))

    def reach(self, target: Array, weight: Array, hint: tuple[float, float, float], in_chest: bool = False) -> None:
        """Pull the wrist to ``target`` [T, 3] by ``weight`` [T], the elbow towards ``hint``."""
        self.target, self.weight, self.in_chest = np.broadcast_to(target, self.target.shape), weight, in_chest
        self.hint = np.broadcast_to(np.asarray(hint, dtype=np.float64), self.hint.shape)


@dataclass
class Foot:
    """One foot: the ball on or over the floor [T, 3], turned by ``yaw``, toes up by ``pitch``, tilted by ``roll``.

    Heel up (negative pitch) pivots on the ball, toes up (positive) on the heel. ``load`` [T] is the share of the
    weight it may carry; ``knee`` [T, 3] is the direction of the knee in the foot's heading (forward at first).
    """

    ball: Array
    yaw: Array
    pitch: Array
    roll: Array
    load: Array
    knee: Array

    def rotation(self) -> Rotation:
        """The foot's orientation in the world."""
        angles = np.stack([self.yaw, -self.pitch, self.roll], axis=-1)
        return Rotation.from_euler("YXZ", angles, degrees=True)

    def placed_ball(self) -> Array:
        """The ball after the pivot on the heel, [T, 3]."""
        toes_up = np.maximum(self.pitch, 0.0)
        toes_up = np.where(toes_up < HEEL_SOFTNESS, toes_up**2 / (2.0 * HEEL_SOFTNESS), toes_up - HEEL_SOFTNESS / 2.0)
        turn = Rotation.from_euler("YX", np.stack([self.yaw, -toes_up], axis=-1), degrees=True)
        flat = about("Y", self.yaw)
        heel = np.array([0.0, 0.0, -HEEL_BEHIND])
        return self.ball + flat.apply(heel) - turn.apply(heel)

    def centre(self) -> Array:
        """The middle of the sole on the floor, [T, 2] (x, z)."""
        back = about("Y", self.yaw).apply([0.0, 0.0, -0.05])
        return (self.ball + back)[:, [0, 2]]


@dataclass
class Body:
    """Everything that moves. ``hips``, ``spine`` and ``head`` are angles [T, 3]: yaw left, pitch forward, roll right.

    ``pelvis`` [T, 3] is a wish: it is lowered where the legs are too short, and, by ``balance`` [T], moved so that the
    centre of mass stays over the loaded feet plus ``shift`` [T, 2] (x, z).
    """

    times: Array
    pelvis: Array
    hips: Array
    spine: Array
    head: Array
    arms: dict[str, Arm]
    feet: dict[str, Foot]
    balance: Array
    shift: Array
    stretch: float = 0.996  # the longest leg, as a share of its full length

    @property
    def duration(self) -> float:
        """Seconds from the first to the last frame."""
        return float(self.times[-1])

    def turn(self, part: Array, yaw: Values = 0.0, pitch: Values = 0.0, roll: Values = 0.0) -> None:
        """Add angles to ``hips``, ``spine`` or ``head``."""
        part[:, 0] += yaw
        part[:, 1] += pitch
        part[:, 2] += roll

    def stir(self, rng: np.random.Generator, amount: float = 1.0) -> None:
        """Breathing and the small, smooth unrest of a living body."""
        times = self.times
        breath = np.sin(2.0 * np.pi * (rng.uniform(0.22, 0.35) * times + rng.uniform()))
        self.turn(self.spine, pitch=0.8 * breath, yaw=wander(rng, times, 0.9 * amount))
        self.turn(self.spine, pitch=wander(rng, times, 0.8 * amount), roll=wander(rng, times, 0.7 * amount))
        self.turn(self.hips, yaw=wander(rng, times, 0.6 * amount), roll=wander(rng, times, 0.4 * amount))
        self.turn(self.spine, pitch=wander(rng, times, 0.05 * amount, *TREMOR))
        self.turn(self.spine, roll=wander(rng, times, 0.05 * amount, *TREMOR))
        self.turn(self.head, yaw=wander(rng, times, 2.0 * amount), pitch=wander(rng, times, 1.2 * amount))
        self.turn(self.head, roll=wander(rng, times, 0.8 * amount))
        self.shift += np.stack([wander(rng, times, 0.005 * amount), wander(rng, times, 0.006 * amount)], axis=-1)
        for arm in self.arms.values():
            arm.flexion = arm.flexion + wander(rng, times, 1.3 * amount)
            arm.abduction = arm.abduction + wander(rng, times, 0.8 * amount)
            arm.elbow = arm.elbow + wander(rng, times, 1.5 * amount) - 0.8 * breath
            arm.flexion = arm.flexion + wander(rng, times, 0.1 * amount, *TREMOR)


def standing(frames: int, fps: float, rng: np.random.Generator) -> Body:
    """A relaxed stance at the origin, facing +z, slightly different every time."""
    times = np.arange(frames) / fps
    flat = np.zeros(frames)
    arms, feet = {}, {}
    for side in SIDES:
        arms[side] = Arm(
            flexion=flat + rng.uniform(-2.0, 6.0),
            abduction=flat + rng.uniform(9.0, 14.0),
            twist=flat + rng.uniform(0.0, 20.0),
            elbow=flat + rng.uniform(12.0, 24.0),
            wrist=np.zeros((frames, 3)),
            grip=flat + 12.0,
            target=np.zeros((frames, 3)),
            weight=flat.copy(),
            hint=np.tile([0.0, -1.0, -0.3], (frames, 1)),
        )
        ball = [SIGN[side] * rng.uniform(0.10, 0.13), 0.0, BALL_AHEAD + rng.uniform(-0.02, 0.02)]
        feet[side] = Foot(
            ball=np.tile(ball, (frames, 1)),
            yaw=flat + SIGN[side] * rng.uniform(3.0, 14.0),
            pitch=flat.copy(),
            roll=flat.copy(),
            load=flat + 1.0,
            knee=np.tile([0.0, 0.0, 1.0], (frames, 1)),
        )
    return Body(
        times=times,
        pelvis=np.tile([0.0, STANDING_HEIGHT, 0.0], (frames, 1)),
        hips=np.zeros((frames, 3)),
        spine=np.zeros((frames, 3)),
        head=np.zeros((frames, 3)),
        arms=arms,
        feet=feet,
        balance=flat + 1.0,
        shift=np.zeros((frames, 2)),
    )

"""Footsteps: where each foot stands, when it swings to its next place, and the regular plans of a gait."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.ndimage import gaussian_filter1d

from ds_hymotion.data.builtin.body import BALL_AHEAD, SIDES, SIGN, Body
from ds_hymotion.data.builtin.curves import Array, ease, minimum_jerk

ARRIVAL = 0.94  # of a swing after which the foot only sinks
EARLY_LIFT = 0.85  # below 1 the foot rises faster than it sinks
SMOOTHING = 1.2  # frames


@dataclass(frozen=True)
class Swing:
    """One swing of a foot: from ``start`` to ``end`` seconds, to the place (x, z) of its ball and to a heading ``yaw``.

    ``lift`` metres over the floor; ``heel_off`` degrees of heel rise at its start, ``heel_strike`` of toes up at its
    end (negative: the ball lands first); ``around`` metres outwards on the way.
    """

    start: float
    end: float
    place: tuple[float, float]
    yaw: float
    lift: float = 0.09
    heel_off: float = 25.0
    heel_strike: float = 8.0
    around: float = 0.0


@dataclass
class Steps:
    """The life of one foot: a first place and the swings after it, in order of time."""

    side: str
    place: tuple[float, float]
    yaw: float
    swings: list[Swing] = field(default_factory=list)

    def write(self, body: Body, heel_rise: float = 0.2, settle: float = 0.12, shift: float = 0.25) -> None:
        """Put the steps into the body's foot.

        Seconds: the heel rises for ``heel_rise`` before a swing, the foot flattens for ``settle`` after it, and the
        weight leaves and returns over ``shift``.
        """
        times, foot = body.times, body.feet[self.side]
        ball = np.tile([self.place[0], 0.0, self.place[1]], (len(times), 1))
        yaw, load = np.full_like(times, self.yaw), np.ones_like(times)
        place, heading = np.asarray(self.place), self.yaw
        for swing in self.swings:
            progress = np.clip((times - swing.start) / (swing.end - swing.start), 0.0, 1.0)
            travel = _leave_and_arrive(np.minimum(progress / ARRIVAL, 1.0))
            raised = 16.0 * (progress**EARLY_LIFT * (1.0 - progress**EARLY_LIFT)) ** 2
            ball[:, [0, 2]] += np.outer(travel, np.asarray(swing.place) - place)
            ball[:, 1] += swing.lift * raised
            if swing.around:
                angle = np.radians(swing.yaw)
                outwards = SIGN[self.side] * swing.around * np.array([np.cos(angle), -np.sin(angle)])
                ball[:, [0, 2]] += np.outer(raised, outwards)
            yaw += (swing.yaw - heading) * travel
            load -= ease(times, swing.start - shift, swing.start) - ease(times, swing.end, swing.end + shift)
            place, heading = np.asarray(swing.place), swing.yaw
        foot.ball = gaussian_filter1d(ball, SMOOTHING, axis=0, mode="nearest")
        foot.yaw, foot.load = yaw, np.clip(load, 0.0, 1.0)
        foot.pitch = self._pitch(times, heel_rise, settle)

    def _pitch(self, times: Array, heel_rise: float, settle: float) -> Array:
        keys = [(-1e3, 0.0)]
        for swing in self.swings:
            length = swing.end - swing.start
            keys.append((max(swing.start - heel_rise, keys[-1][0] + 1e-3), 0.0))
            keys.append((swing.start + 0.08 * length, -swing.heel_off))
            keys.append((swing.start + 0.55 * length, -0.15 * swing.heel_off))
            keys.append((swing.end - 0.06 * length, swing.heel_strike))
            keys.append((swing.end + settle, 0.0))
        keys.append((keys[-1][0] + 1e3, 0.0))
        seconds, values = np.array(keys).T
        pitch = PchipInterpolator(seconds, values)(times)
        return np.asarray(gaussian_filter1d(pitch, SMOOTHING, mode="nearest"), dtype=np.float64)


def _leave_and_arrive(u: Array) -> Array:
    """From 0 to 1, leaving and arriving faster than minimum jerk: the leg's reach would not allow a foot to linger."""
    return 0.5 * u**2 * (3.0 - 2.0 * u) + 0.5 * minimum_jerk(u)


@dataclass(frozen=True)
class Gait:
    """A regular gait along a straight or circular path that starts at the origin, facing +z.

    Speeds in metres per second (``aside`` to the left), ``turn`` in degrees per second to the left, ``cadence`` in
    steps per second, ``duty`` the share of a cycle that a foot stands, ``width`` half the distance between the feet,
    ``phase`` in cycles, ``ahead`` metres of the standing ball before the pelvis at mid-stance.
    """

    forward: float
    cadence: float
    aside: float = 0.0
    turn: float = 0.0
    duty: float = 0.62
    width: float = 0.085
    toes_out: float = 6.0
    phase: float = 0.0
    ahead: float = BALL_AHEAD
    lift: float = 0.08
    heel_off: float = 40.0
    heel_strike: float = 18.0
    around: float = 0.0

    @property
    def period(self) -> float:
        """Seconds of a cycle, two steps."""
        return 2.0 / self.cadence

    def heading(self, times: Array) -> Array:
        """Degrees to the left, [T]."""
        return self.turn * times

    def path(self, times: Array) -> Array:
        """The point between the feet on the floor, (x, z) as [T, 2]: the integral of the turning velocity."""
        velocity = complex(self.aside, self.forward)
        rate = -np.radians(self.turn)
        travelled = velocity * (times if rate == 0.0 else (np.exp(1j * rate * times) - 1.0) / (1j * rate))
        return np.stack([travelled.real, travelled.imag], axis=-1)

    def swinging(self, times: Array, side: str) -> Array:
        """+1 where the side's foot is foremost, −1 where it is hindmost, 0 at mid-stance: a sine of the cycle, [T]."""
        return -np.sin(self._angle(times, side))

    def standing(self, times: Array, side: str) -> Array:
        """+1 in the middle of the side's stance, −1 in the middle of its swing, [T]."""
        return np.cos(self._angle(times, side))

    def _angle(self, times: Array, side: str) -> Array:
        return 2.0 * np.pi * (times / self.period - self.phase - (0.5 if side == "right" else 0.0))

    def write(self, body: Body) -> None:
        """Put path, heading and footsteps into the body."""
        body.pelvis[:, [0, 2]] += self.path(body.times)
        body.turn(body.hips, yaw=self.heading(body.times))
        half = self.duty * self.period / 2.0
        for side in SIDES:
            first = int(np.floor(-half / self.period)) - 1
            last = int(np.ceil(body.duration / self.period)) + 2
            centres = (np.arange(first, last + 1) + self.phase + (0.5 if side == "right" else 0.0)) * self.period
            places = [self._footprint(centre, side) for centre in centres]
            steps = Steps(side, *places[0])
            for before, after, (place, yaw) in zip(centres[:-1], centres[1:], places[1:], strict=True):
                steps.swings.append(
                    Swing(
                        float(before) + half,
                        float(after) - half,
                        place,
                        yaw,
                        self.lift,
                        self.heel_off,
                        self.heel_strike,
                        self.around,
                    )
                )
            steps.write(body, heel_rise=0.75 * half, settle=min(0.13, 0.4 * half), shift=0.6 * half)

    def _footprint(self, moment: float, side: str) -> tuple[tuple[float, float], float]:
        when = np.array([moment])
        yaw = float(self.heading(when)[0])
        angle = np.radians(yaw)
        left, forward = np.array([np.cos(angle), -np.sin(angle)]), np.array([np.sin(angle), np.cos(angle)])
        place = self.path(when)[0] + SIGN[side] * self.width * left + self.ahead * forward
        return (float(place[0]), float(place[1])), yaw + SIGN[side] * self.toes_out

"""Curves of time: the smooth scalars and vectors that motions are drawn with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def minimum_jerk(u: Array) -> Array:
    """The minimum-jerk profile 10u³ − 15u⁴ + 6u⁵ from 0 to 1, held outside (Flash and Hogan, 1985)."""
    u = np.clip(u, 0.0, 1.0)
    return u**3 * (10.0 - 15.0 * u + 6.0 * u**2)


def ease(times: Array, start: float, end: float) -> Array:
    """0 before ``start``, 1 after ``end`` (seconds), minimum jerk between them; [T] -> [T]."""
    return minimum_jerk((times - start) / max(end - start, 1e-6))


def plateau(times: Array, rise: tuple[float, float], fall: tuple[float, float]) -> Array:
    """0, up to 1 over the interval ``rise``, back to 0 over the interval ``fall``; [T] -> [T]."""
    return ease(times, *rise) - ease(times, *fall)


def arch(times: Array, start: float, end: float) -> Array:
    """A bump 64u³(1 − u)³ of height 1 over the interval, with two continuous derivatives; [T] -> [T]."""
    u = np.clip((times - start) / max(end - start, 1e-6), 0.0, 1.0)
    return 64.0 * (u * (1.0 - u)) ** 3


def track(times: Array, keys: Sequence[tuple[float, float]]) -> Array:
    """Minimum-jerk moves from key to key, each ``(second, value)`` in order of time; [T] -> [T]."""
    value = np.full_like(times, keys[0][1])
    for (start, before), (end, after) in zip(keys[:-1], keys[1:], strict=True):
        value += (after - before) * ease(times, start, end)
    return value


def wander(
    rng: np.random.Generator, times: Array, amplitude: float, lowest: float = 0.1, highest: float = 1.5
) -> Array:
    """Smooth noise of root mean square ``amplitude``: six sinusoids from ``lowest`` to ``highest`` Hz, 1/f; [T]."""
    frequencies = np.geomspace(lowest, highest, 6) * rng.uniform(0.85, 1.15, 6)
    weights = rng.uniform(0.6, 1.4, 6) / frequencies
    weights *= amplitude * np.sqrt(2.0) / np.linalg.norm(weights)
    phases = rng.uniform(0.0, 2.0 * np.pi, 6)
    return np.sin(2.0 * np.pi * np.outer(times, frequencies) + phases) @ weights


def repetitions(duration: float, period: float, most: int = 4) -> list[tuple[float, float]]:
    """Equal intervals that fill ``duration`` with repetitions of about ``period`` seconds, at least one."""
    count = int(np.clip(duration / period, 1, most))
    bounds = np.linspace(0.0, duration, count + 1)
    return [(float(start), float(end)) for start, end in zip(bounds[:-1], bounds[1:], strict=True)]


def repeated_plateau(times: Array, spans: Sequence[tuple[float, float]], up: float, hold: float) -> Array:
    """One plateau per span: rise for the fraction ``up`` of it, hold for ``hold``, then fall for as long as it rose."""
    value = np.zeros_like(times)
    for start, end in spans:
        length = end - start
        rest = (1.0 - 2.0 * up - hold) / 2.0
        rise = start + rest * length
        fall = rise + (up + hold) * length
        value += plateau(times, (rise, rise + up * length), (fall, fall + up * length))
    return value

"""One clip of the built-in set: what is done, from which seed, and how it is described."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ds_hymotion.data.builtin import balance, gesture, locomotion, manipulation, posture, transition
from ds_hymotion.data.builtin.action import Builder
from ds_hymotion.data.builtin.body import standing
from ds_hymotion.data.builtin.captions import describe
from ds_hymotion.data.builtin.solver import perform
from ds_hymotion.errors import UserError
from ds_hymotion.motion.motion import Motion

FPS = 30.0
SHORTEST, LONGEST = 60, 300  # frames, unless asked otherwise
FEWEST_FRAMES = 60  # two seconds: less than that holds no whole action

ACTIONS: dict[str, dict[str, Builder]] = {
    "LOCOMOTION": locomotion.ACTIONS,
    "MANIPULATION": manipulation.ACTIONS,
    "GESTURE": gesture.ACTIONS,
    "POSTURE": posture.ACTIONS,
    "BALANCE": balance.ACTIONS,
    "TRANSITION": transition.ACTIONS,
}


@dataclass(frozen=True)
class BuiltinClip:
    """A motion at 30 fps, on the floor, facing any way; its captions, type and sub-action; an ``id`` fit for a file."""

    motion: Motion
    captions: tuple[str, ...]
    action: str
    sub_action: str
    id: str


def random_state(*key: int | str) -> np.random.Generator:
    """A generator that depends on ``key`` alone."""
    digest = hashlib.sha256(":".join(str(part) for part in key).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def generate_clip(
    action: str, seed: int, frames: int | None = None, sub_action: str | None = None, id: str | None = None
) -> BuiltinClip:
    """The clip of an action type and a seed; the same arguments give the same bits.

    ``frames`` and ``sub_action`` are drawn where they are not given. Raises :class:`UserError` for an unknown type or
    sub-action and for fewer than 60 frames.
    """
    if action not in ACTIONS:
        raise UserError(f"action type {action!r} does not exist; the types are {', '.join(ACTIONS)}")
    names = tuple(ACTIONS[action])
    if sub_action is not None and sub_action not in names:
        raise UserError(f"{action} has no sub-action {sub_action!r}; it has {', '.join(names)}")
    if frames is not None and frames < FEWEST_FRAMES:
        raise UserError(f"a built-in clip of {frames} frames is too short; the least is {FEWEST_FRAMES}")
    rng = random_state("builtin", action, seed)
    drawn_name, drawn_frames = str(rng.choice(names)), int(rng.integers(SHORTEST, LONGEST + 1))
    sub_action, frames = sub_action or drawn_name, frames or drawn_frames

    rng = random_state("builtin", action, sub_action, seed)
    body = standing(frames, FPS, rng)
    facts = ACTIONS[action][sub_action](body, rng)
    body.stir(rng, amount=rng.uniform(0.7, 1.2))
    heading = float(rng.uniform(-np.pi, np.pi))
    origin = float(rng.uniform(-1.5, 1.5)), float(rng.uniform(-1.5, 1.5))
    motion = perform(body, heading, origin, FPS)
    return BuiltinClip(motion, describe(rng, sub_action, facts), action, sub_action, id or f"{sub_action}_{seed}")

"""A whole built-in set: balanced types and sub-actions, lengths drawn from a range."""

from __future__ import annotations

from ds_hymotion.data.builtin.clip import (
    ACTIONS,
    FEWEST_FRAMES,
    LONGEST,
    SHORTEST,
    BuiltinClip,
    generate_clip,
    random_state,
)
from ds_hymotion.errors import UserError

MOST_FRAMES = 3600  # two minutes


def generate_set(
    clips_per_type: int | None = None,
    clips: int | None = None,
    seed: int = 0,
    frames: tuple[int, int] = (SHORTEST, LONGEST),
) -> list[BuiltinClip]:
    """``clips_per_type`` clips of every action type, or ``clips`` in all, their types as equal in number as can be.

    The sub-actions of a type take turns. Lengths are drawn from ``frames``, both ends included, at 30 fps. A clip
    depends on the seed and on its place within its type alone, so a larger set begins with the smaller one.
    Raises :class:`UserError` unless exactly one number of at least 1 is given and 60 <= frames <= 3600.
    """
    low, high = frames
    if not FEWEST_FRAMES <= low <= high <= MOST_FRAMES:
        raise UserError(
            f"frames {low} {high} must be a shortest and a longest length from {FEWEST_FRAMES} to {MOST_FRAMES}, "
            f"such as {SHORTEST} {LONGEST}"
        )
    made = []
    for (action, builders), count in zip(ACTIONS.items(), _counts(clips_per_type, clips), strict=True):
        names = tuple(builders)
        for place in range(count):
            rng = random_state("set", seed, action, place)
            name, turn = names[place % len(names)], place // len(names)
            length, clip_seed = int(rng.integers(low, high + 1)), int(rng.integers(2**31))
            made.append(generate_clip(action, clip_seed, length, name, id=f"{name}_{turn:05d}"))
    return made


def _counts(clips_per_type: int | None, clips: int | None) -> list[int]:
    if (clips_per_type is None) == (clips is None):
        raise UserError("give either clips_per_type or clips, such as clips_per_type 8")
    name, value = ("clips", clips) if clips_per_type is None else ("clips_per_type", clips_per_type)
    assert value is not None
    if value < 1:
        raise UserError(f"{name} {value} must be at least 1")
    if clips_per_type is not None:
        return [value] * len(ACTIONS)
    return [value // len(ACTIONS) + (index < value % len(ACTIONS)) for index in range(len(ACTIONS))]


def table(clips: list[BuiltinClip]) -> str:
    """Lines with the clips and seconds of every type and sub-action, and a caption of each."""
    rows = [("type", "sub-action", "clips", "seconds", "for example")]
    for action, builders in ACTIONS.items():
        for name in builders:
            found = [clip for clip in clips if clip.sub_action == name]
            if found:
                seconds = sum(clip.motion.frames / clip.motion.fps for clip in found)
                rows.append((action, name, str(len(found)), f"{seconds:.1f}", found[0].captions[0]))
    total = sum(clip.motion.frames / clip.motion.fps for clip in clips)
    rows.append(("all", "", str(len(clips)), f"{total:.1f}", ""))
    return "\n".join(f"{a:<13} {b:<14} {c:>6} {d:>8}  {e}".rstrip() for a, b, c, d, e in rows)

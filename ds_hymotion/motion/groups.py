"""Joint groups: named parts of the body, for losses per part and for cutting the motion head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.motion.representation import Representation
from ds_hymotion.motion.skeleton import joints_named


@dataclass(frozen=True)
class JointGroups:
    """A partition of the joints. ``labels[g]`` names group g, ``joints[g]`` its joint indices.

    The root translation goes with the first group.
    """

    labels: tuple[str, ...]
    joints: tuple[tuple[int, ...], ...]

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> JointGroups:
        """Read ``hip,knee:elbow:others``: groups between colons, joint names or indices between commas.

        A name without a side means both sides and every segment; ``others`` takes what no group names.

        Raises:
            UserError: an unknown or repeated joint, an empty group, or joints that no group takes.
        """
        groups: list[list[int]] = []
        others: int | None = None
        taken: dict[int, str] = {}
        for number, part in enumerate(text.split(":")):
            words = [word.strip() for word in part.split(",") if word.strip()]
            if not words:
                raise UserError(
                    f"joint groups {text!r}: group {number + 1} is empty; give names such as hip,knee:others"
                )
            joints: list[int] = []
            for word in words:
                if word == "others":
                    if others is not None:
                        raise UserError(f"joint groups {text!r}: others stands twice; use it once")
                    others = number
                    continue
                for joint in _resolve(word, names):
                    if joint in taken:
                        raise UserError(
                            f"joint groups {text!r}: {names[joint]} is in {taken[joint]!r} and {word!r}; name it once"
                        )
                    taken[joint] = word
                    joints.append(joint)
            groups.append(joints)
        rest = [joint for joint in range(len(names)) if joint not in taken]
        if others is not None:
            groups[others] += rest
        elif rest:
            missing = ", ".join(names[joint] for joint in rest)
            raise UserError(f"joint groups {text!r}: no group takes {missing}; add them, or others")
        labels = [_label(part) for part in text.split(":")]
        for label, joints in zip(labels, groups):
            if not joints:
                raise UserError(f"joint groups {text!r}: {label} takes no joint of {', '.join(names)}; leave it out")
        return cls(tuple(labels), tuple(tuple(sorted(joints)) for joints in groups))

    def channels(self, representation: Representation) -> list[torch.Tensor]:
        """The channels of every group, rising; the root translation's are in the first."""
        owner = representation.channel_joint()
        group_of = torch.zeros(len(representation.joint_names) + 1, dtype=torch.long)
        for group, joints in enumerate(self.joints):
            group_of[list(joints)] = group
        group_of[-1] = 0
        return [torch.nonzero(group_of[owner] == group).flatten() for group in range(len(self.joints))]


def _resolve(word: str, names: Sequence[str]) -> tuple[int, ...]:
    if word.isdecimal():
        if int(word) >= len(names):
            raise UserError(f"joint index {word} is not in 0..{len(names) - 1}")
        return (int(word),)
    return joints_named(word, names)


def _label(part: str) -> str:
    return "_".join(word.strip() for word in part.split(",") if word.strip())

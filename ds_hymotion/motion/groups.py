"""Joint groups: named parts of the body, for losses per part and for cutting the motion head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.motion.representation import ROOT_TRANSLATION, Representation
from ds_hymotion.motion.skeleton import joints_named, part_of


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

    @classmethod
    def balanced(cls, representation: Representation, count: int, order: Sequence[int] | None = None) -> JointGroups:
        """``count`` groups of neighbours in ``order`` (all joints, by default as they are numbered), with the largest
        number of channels as small as it can be.

        Raises:
            UserError: more groups than joints.
        """
        if not 1 <= count <= representation.joints:
            raise UserError(
                f"{count} joint groups: {representation.name} has {representation.joints} joints; "
                f"use 1..{representation.joints}"
            )
        order = range(representation.joints) if order is None else order
        sizes = [len(representation.joint_channels(joint)) for joint in order]
        sizes[0] += len(representation.joint_channels(ROOT_TRANSLATION))
        parts = [sorted(order[place] for place in part) for part in neighbours(sizes, count)]
        labels = (",".join(_short_names(part, representation.joint_names)) for part in parts)
        return cls(tuple(labels), tuple(map(tuple, parts)))

    def over_ranks(self, ranks: int, representation: Representation) -> JointGroups:
        """The groups joined to one per rank, with nearly equal numbers of channels; the first group's rank is 0.

        Raises:
            UserError: fewer groups than ranks, with a finer grouping to use instead.
        """
        if len(self.joints) < ranks:
            JointGroups.balanced(representation, ranks)
            finer = self.split_until(ranks, representation)
            raise UserError(
                f"joint groups {self.text(representation.joint_names)!r}: {len(self.joints)} group(s) for {ranks} "
                f"tensor ranks; use at least {ranks}, such as {finer.text(representation.joint_names)}"
            )
        parts = balance([len(part) for part in self.channels(representation)], ranks)
        return JointGroups(
            tuple("+".join(self.labels[group] for group in part) for part in parts),
            tuple(tuple(sorted(joint for group in part for joint in self.joints[group])) for part in parts),
        )

    def split_until(self, count: int, representation: Representation) -> JointGroups:
        """The largest group halved again and again until there are ``count``."""
        sizes = [len(representation.joint_channels(joint)) for joint in range(representation.joints)]
        groups = [list(part) for part in self.joints]
        while len(groups) < count:
            largest = max((part for part in groups if len(part) > 1), key=lambda part: sum(sizes[j] for j in part))
            halves = neighbours([sizes[joint] for joint in largest], 2)
            place = groups.index(largest)
            groups[place : place + 1] = [[largest[i] for i in half] for half in halves]
        return JointGroups(tuple(map(str, range(count))), tuple(map(tuple, groups)))

    def text(self, names: Sequence[str]) -> str:
        """The grouping in the form that :meth:`parse` reads, parts without their side where both are in a group."""
        return ":".join(",".join(_short_names(part, names)) for part in self.joints)

    def channels(self, representation: Representation) -> list[torch.Tensor]:
        """The channels of every group, rising; the root translation's are in the first."""
        owner = representation.channel_joint()
        group_of = torch.zeros(len(representation.joint_names) + 1, dtype=torch.long)
        for group, joints in enumerate(self.joints):
            group_of[list(joints)] = group
        group_of[-1] = 0
        return [torch.nonzero(group_of[owner] == group).flatten() for group in range(len(self.joints))]


def balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Places of ``sizes`` in ``count`` parts with nearly equal sums, rising within a part, parts by their first place.

    The largest go first, each to the least part so far (Graham 1969: at most 4/3 of the best).
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        part = loads.index(min(loads))
        parts[part].append(place)
        loads[part] += sizes[place]
    return sorted(sorted(part) for part in parts)


def neighbours(sizes: Sequence[int], count: int) -> list[range]:
    """Places of ``sizes`` cut into ``count`` runs, none empty, whose largest sum is as small as it can be."""
    best = {(0, 0): (0, 0)}
    for part in range(1, count + 1):
        for end in range(part, len(sizes) + 1):
            starts = (start for start in range(part - 1, end) if (part - 1, start) in best)
            best[part, end] = min((max(best[part - 1, start][0], sum(sizes[start:end])), start) for start in starts)
    runs, end = [], len(sizes)
    for part in range(count, 0, -1):
        start = best[part, end][1]
        runs.append(range(start, end))
        end = start
    return runs[::-1]


def _short_names(joints: Sequence[int], names: Sequence[str]) -> list[str]:
    words: list[str] = []
    left = set(joints)
    for joint in joints:
        if joint not in left:
            continue
        word = part_of(names[joint])
        members = set(joints_named(word, names))
        if word not in names and members <= left:
            left -= members
            words.append(word)
        else:
            left.discard(joint)
            words.append(names[joint])
    return words


def _resolve(word: str, names: Sequence[str]) -> tuple[int, ...]:
    if word.isdecimal():
        if int(word) >= len(names):
            raise UserError(f"joint index {word} is not in 0..{len(names) - 1}")
        return (int(word),)
    return joints_named(word, names)


def _label(part: str) -> str:
    return "_".join(word.strip() for word in part.split(",") if word.strip())

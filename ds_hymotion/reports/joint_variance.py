"""How much each joint of a corpus turns, as a table and a bar chart, and joint groups that follow from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ds_hymotion.motion.groups import JointGroups
from ds_hymotion.motion.representation import Representation
from ds_hymotion.motion.skeleton import part_of

ROTATION = "mean squared angle to the mean rotation (rad²)"


def part_variances(names: Sequence[str], variance: Tensor) -> dict[str, float]:
    """Mean variance in rad² of each part (both sides, all segments) of joint variances [J], the liveliest first."""
    parts: dict[str, list[float]] = {}
    for name, value in zip(names, variance.tolist()):
        parts.setdefault(part_of(name), []).append(value)
    means = {part: sum(values) / len(values) for part, values in parts.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def suggested_groups(representation: Representation, variance: Tensor, ranks: int) -> JointGroups:
    """One group per rank with nearly equal numbers of channels, joints that turn alike together.

    Raises:
        UserError: more ranks than joints.
    """
    names = representation.joint_names
    place = {part: number for number, part in enumerate(part_variances(names, variance))}
    order = sorted(range(len(names)), key=lambda joint: (place[part_of(names[joint])], joint))
    return JointGroups.balanced(representation, ranks, order)


def variance_table(representation: Representation, variance: Tensor, ranks: int) -> str:
    """Variance per part and joint, and the suggested groups with their channels, as lines of text."""
    names, values = representation.joint_names, dict(zip(representation.joint_names, variance.tolist()))
    lines = [f"{'part':<10}{'rad²':>8}  joints"]
    for part, mean in part_variances(names, variance).items():
        joints = ", ".join(f"{name} {values[name]:.3f}" for name in names if part_of(name) == part)
        lines.append(f"{part:<10}{mean:>8.3f}  {joints}")
    groups = suggested_groups(representation, variance, ranks)
    channels = " + ".join(str(len(part)) for part in groups.channels(representation))
    lines.append(f"{ranks} tensor rank(s), {channels} of {representation.channels} channels:")
    lines.append(f"--joint_groups {groups.text(names)}")
    return "\n".join(lines)


def draw_variances(representation: Representation, variance: Tensor, ranks: int, path: Path) -> None:
    """Draw the joints' variances as bars, coloured by suggested group, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = suggested_groups(representation, variance, ranks)
    order = sorted(range(representation.joints), key=lambda joint: -float(variance[joint]))
    group_of = {joint: number for number, joints in enumerate(groups.joints) for joint in joints}
    figure, axes = pyplot.subplots(figsize=(8, 4), dpi=120)
    colours = pyplot.get_cmap("tab10")
    for place, joint in enumerate(order):
        axes.bar(place, float(variance[joint]), color=colours(group_of[joint] % 10))
    axes.set_xticks(range(len(order)), [representation.joint_names[joint] for joint in order], rotation=75, fontsize=8)
    axes.set(ylabel=ROTATION)
    axes.set_title(f"one colour per tensor rank: {ranks}", fontsize=9)
    axes.grid(alpha=0.3, axis="y")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name("." + path.name + ".partial.png")
    figure.savefig(temporary)
    pyplot.close(figure)
    os.replace(temporary, path)

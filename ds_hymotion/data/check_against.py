"""A corpus against the mean and standard deviation that a released checkpoint was trained with.

A network that is fine-tuned keeps those numbers, so features of another unit, axis or origin would reach it as values
it has never seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.motion.representation import HyMotion201, Representation
from ds_hymotion.motion.skeleton import smplh22
from ds_hymotion.motion.statistics import LEAST_STD

COMPATIBLE, SUSPICIOUS, REFUSED = "compatible", "suspicious", "refused"
LISTED = 10
TRANSLATION, ROTATIONS, FIRST_POSITION, POSITIONS = slice(0, 3), slice(3, 135), slice(135, 138), slice(135, 201)
NEAR = 0.08
"""Metres from the pelvis or from J0 (which lie 0.19 m apart) within which a mean position settles the origin."""
ANOTHER_UNIT, ODD_LENGTHS = 20.0, 2.0
"""Ratios of lengths beyond which they are in another unit, and beyond which they are worth a look."""
FAR_MEAN, ODD_SPREAD = 3.0, 5.0
"""|z| of a mean, and ratio of two standard deviations, beyond which a channel is worth a look."""
FOREIGN_MEAN, FOREIGN_SHARE = 5.0, 0.25
"""Where this share of channels has a larger |z|, the two numbers are not of the same representation."""
_UNITS = {2: "centimetres", 3: "millimetres"}


@dataclass(frozen=True)
class Reference:
    """Mean and standard deviation [201] of a checkpoint, in float64."""

    name: str
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, state: Mapping[str, Tensor], name: str | Path) -> Reference:
        """Those of a checkpoint's tensors.

        Raises:
            UserError: they are absent, not finite, of another number of channels, or never set.
        """
        channels = HyMotion201.channels
        found = {key: state[key].double() for key in ("mean", "std") if key in state}
        for key in ("mean", "std"):
            if key not in found or tuple(found[key].shape) != (channels,):
                shape = tuple(found[key].shape) if key in found else "absent"
                raise UserError(f"{name}: {key} is {shape}, not [{channels}]: give a latest.ckpt of HY-Motion")
            if not bool(found[key].isfinite().all()):
                raise UserError(f"{name}: {key} is not finite: give an undamaged latest.ckpt")
        if bool((found["std"] < 0).any()) or bool((found["std"] == found["std"][0]).all()):
            raise UserError(f"{name}: std was never set (it is {float(found['std'][0]):g} everywhere or negative)")
        return cls(str(name), found["mean"], found["std"])

    @property
    def positions_relative_to(self) -> str | None:
        """What joint positions count from, by the mean position of joint 0; None if it is at neither place."""
        first = self.mean[FIRST_POSITION]
        places = {"pelvis": torch.zeros(3), "rest_root": smplh22().offsets[0]}
        apart = {name: float((first - place.double()).norm()) for name, place in places.items()}
        nearest = min(apart, key=lambda name: apart[name])
        return nearest if apart[nearest] < NEAR else None


@dataclass(frozen=True)
class Channel:
    """One channel: ``z`` of the corpus's mean, and ``ratio`` of the corpus's std to the checkpoint's."""

    name: str
    z: float
    ratio: float

    @property
    def oddity(self) -> float:
        """How far off it is: the larger of |z| and |log2 ratio|."""
        return max(abs(self.z), abs(math.log2(self.ratio)))


@dataclass(frozen=True)
class Comparison:
    """What was found; ``channels`` in their order, ``reasons`` say why the verdict is not :data:`COMPATIBLE`."""

    verdict: str
    reasons: tuple[str, ...]
    channels: tuple[Channel, ...]
    positions: str

    def table(self, name: str) -> str:
        """A few lines for the terminal."""
        worst = sorted(self.channels, key=lambda channel: channel.oddity, reverse=True)[:LISTED]
        width = max(len(channel.name) for channel in worst)
        lines = [f"against {name}: {self.verdict}", f"positions of the checkpoint are {self.positions}"]
        lines += [f"{reason}" for reason in self.reasons]
        lines.append(f"{'channel':<{width}}  {'z of mean':>10}  {'std ratio':>10}   (the {len(worst)} furthest off)")
        lines += [f"{channel.name:<{width}}  {channel.z:>+10.2f}  {channel.ratio:>10.3g}" for channel in worst]
        return "\n".join(lines)


def require_same_layout(layout: Representation, reference: Reference) -> None:
    """What can be told before a corpus is there.

    Raises:
        UserError: the corpus is not of the release's 201 channels, or its positions count from another point.
    """
    if not isinstance(layout, HyMotion201):
        raise UserError(
            f"--check_against {reference.name} has the {HyMotion201.channels} channels of {HyMotion201.name}, the "
            f"corpus the {layout.channels} of {layout.name}: prepare it with --representation {HyMotion201.name}"
        )
    wanted = reference.positions_relative_to
    if wanted is not None and wanted != layout.positions_relative_to:
        raise UserError(
            f"{_positions(reference)} in {reference.name}, the corpus has them relative to "
            f"{layout.positions_relative_to}: prepare it with --positions_relative_to {wanted}"
        )


def compare(mean: Tensor, std: Tensor, layout: HyMotion201, reference: Reference) -> Comparison:
    """A corpus's mean and std [201] against a checkpoint's."""
    mean, std = mean.double(), std.double()
    floor = reference.std.clamp(min=LEAST_STD)
    z, ratio = (mean - reference.mean) / floor, std.clamp(min=LEAST_STD) / floor
    channels = tuple(map(Channel, layout.channel_names(), z.tolist(), ratio.tolist()))
    refusals, remarks = [], []
    for name, part in (("translations", TRANSLATION), ("joint positions", POSITIONS)):
        scale = float(_length(mean[part], std[part]) / _length(reference.mean[part], reference.std[part]))
        words = f"{name} are {scale:.3g} times as long as the checkpoint's"
        if not 1 / ANOTHER_UNIT < scale < ANOTHER_UNIT:
            refusals.append(f"{words}: {_unit(scale)}")
        elif not 1 / ODD_LENGTHS < scale < ODD_LENGTHS:
            remarks.append(f"{words}; are both in metres, and is the ground at y = 0?")
    if _in_rows(mean, reference.mean):
        refusals.append("rotations are the first two columns of matrices here, and the first two rows there")
    far = int((z.abs() > FOREIGN_MEAN).sum())
    if not refusals and far > FOREIGN_SHARE * len(channels):
        refusals.append(
            f"{far} of {len(channels)} channels have a mean more than {FOREIGN_MEAN:g} standard deviations away: "
            "these are features of another kind"
        )
    if reference.positions_relative_to is None:
        remarks.append("it cannot be told from the checkpoint what positions count from")
    moving = int(((reference.std < LEAST_STD) & (std >= 10 * LEAST_STD)).sum())
    if moving:
        remarks.append(f"{moving} channels are constant in the checkpoint and move in the corpus: they will be lost")
    odd = sum(abs(channel.z) > FAR_MEAN or not 1 / ODD_SPREAD < channel.ratio < ODD_SPREAD for channel in channels)
    if odd:
        remarks.append(
            f"{odd} of {len(channels)} channels have |z| above {FAR_MEAN:g} or a spread more than {ODD_SPREAD:g} times "
            "larger or smaller; a small or special corpus looks like that too"
        )
    verdict = REFUSED if refusals else SUSPICIOUS if remarks else COMPATIBLE
    return Comparison(verdict, tuple(refusals + remarks), channels, _positions(reference).partition(" are ")[2])


def check_against(mean: Tensor, std: Tensor, layout: Representation, reference: Reference) -> Comparison:
    """:func:`compare`, after :func:`require_same_layout`."""
    require_same_layout(layout, reference)
    assert isinstance(layout, HyMotion201)
    return compare(mean, std, layout, reference)


def _positions(reference: Reference) -> str:
    first = ", ".join(f"{value:.4f}" for value in reference.mean[FIRST_POSITION].tolist())
    words = {
        "pelvis": "relative to the pelvis",
        "rest_root": "relative to the point that the translation moves (rest_root), the pelvis being at J0",
        None: "relative to neither the pelvis nor J0",
    }[reference.positions_relative_to]
    return f"joint positions are {words}: mean[135:138] is {first}"


def _in_rows(mean: Tensor, theirs: Tensor) -> bool:
    """Whether the rotations' means agree far better if the other's six numbers are rows, as pytorch3d has them."""
    columns = mean[ROTATIONS].unflatten(0, (-1, 3, 2))
    matrices = theirs[ROTATIONS].unflatten(0, (-1, 2, 3))[..., :2].transpose(1, 2)
    known = columns[:, :2]  # of the third row, two rows of a matrix say nothing
    return float((known - matrices).norm()) < 0.25 * float((columns.flatten() - theirs[ROTATIONS]).norm())


def _length(mean: Tensor, std: Tensor) -> Tensor:
    return (mean.square() + std.square()).sum().sqrt().clamp(min=LEAST_STD)


def _unit(scale: float) -> str:
    unit = _UNITS.get(round(abs(math.log10(scale))))
    if unit is None:
        return "the two are not in the same unit; the corpus must be in metres"
    if scale > 1:
        return f"the corpus is in {unit}, the checkpoint in metres; divide `trans` by {10 ** round(math.log10(scale))}"
    return f"the checkpoint is in {unit}, the corpus in metres (or its `trans` was divided once too often)"

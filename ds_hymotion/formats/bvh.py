"""BVH motion files: any hierarchy, any channel order, y-up or z-up, in the file's own unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.formats.bvh_writer import write_bvh
from ds_hymotion.formats.files import FormatError, read_bytes
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.skeleton import smpl24

__all__ = ["BvhMotion", "parse_bvh", "read_bvh", "write_bvh"]

MAX_VALUE = 1e6
"""Largest number accepted for an offset, a position or an angle in degrees."""
MAX_FRAME_TIME = 1.0
_AXES = "XYZ"


@dataclass(frozen=True)
class BvhMotion:
    """A motion as the file has it: joints in file order, lengths in the file's unit.

    Attributes:
        names: J joint names with their prefix.
        parents: index of each joint's parent, -1 for the root.
        offsets: [J, 3] rest offset from the parent.
        frame_time: seconds a frame, as written.
        rotations: [T, J, 3, 3] local rotations.
        positions: [T, J, 3] local positions: the position channels where a joint has them, in place of the offset.
        end_sites: (joint index, offset from that joint) of every End Site.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    offsets: Tensor
    frame_time: float
    rotations: Tensor
    positions: Tensor
    end_sites: tuple[tuple[int, tuple[float, float, float]], ...]

    @property
    def frames(self) -> int:
        return len(self.rotations)

    @property
    def fps(self) -> float:
        """1 / frame_time; a whole number where the file's rounding of frame_time explains the rest (.0083333: 120)."""
        rate = 1.0 / self.frame_time
        return float(round(rate)) if round(rate) and abs(rate / round(rate) - 1.0) < 1e-4 else rate

    @property
    def short_names(self) -> tuple[str, ...]:
        """Names without what stands before the last colon (``mixamorig:Hips``)."""
        return tuple(name.rsplit(":", 1)[-1] or name for name in self.names)

    def global_positions(self) -> Tensor:
        """Joint positions [T, J, 3] in the file's unit and axes."""
        rotations = [self.rotations[:, 0]]
        positions = [self.positions[:, 0]]
        for joint, parent in enumerate(self.parents[1:], 1):
            rotations.append(rotations[parent] @ self.rotations[:, joint])
            positions.append(positions[parent] + (rotations[parent] @ self.positions[:, joint, :, None])[..., 0])
        return torch.stack(positions, dim=1)

    def to_motion(self, metres_per_unit: float = 0.01) -> Motion:
        """The motion of a file that carries SMPL-24's joints in its rest pose, such as ``write_bvh`` makes.

        Raises:
            UserError: names or rest offsets are not SMPL-24's (no retargeting is done), or the unit is another.
        """
        skeleton = smpl24()
        names = self.short_names
        if sorted(names) != sorted(skeleton.names):
            raise UserError(
                f"the BVH's {len(names)} joints ({names[0]}, ...) are not SMPL's 24 "
                f"({skeleton.names[0]}, ...); retarget it to SMPL first"
            )
        order = [names.index(name) for name in skeleton.names]
        parents = tuple(
            -1 if self.parents[joint] < 0 else skeleton.index(names[self.parents[joint]]) for joint in order
        )
        error = (self.offsets[order] * metres_per_unit - skeleton.offsets)[1:].norm(dim=-1).max()
        if parents != skeleton.parents or error > 1e-3:
            raise UserError(
                f"the BVH's rest offsets differ from SMPL's by up to {error:.3g} m at "
                f"{metres_per_unit:g} m a unit; legal: the offsets that write_bvh writes, with its unit"
            )
        translation = self.positions[:, order[0]] * metres_per_unit - skeleton.offsets[0]
        return Motion(self.rotations[:, order], translation, self.fps)


def read_bvh(path: str | Path) -> BvhMotion:
    """Read a BVH file.

    Raises:
        FormatError: missing, unreadable or damaged; ``detail`` has the line number.
    """
    path = Path(path)
    return parse_bvh(read_bytes(path), str(path))


def parse_bvh(data: bytes, name: str) -> BvhMotion:
    """The motion of a BVH file's content; ``name`` stands in errors. See ``read_bvh``."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    lines = _Lines(name, re.split(r"\r\n|\n|\r", text))
    joints, end_sites = _hierarchy(lines)
    frame_time, rows = _rows(lines, sum(len(joint.channels) for joint in joints))
    rotations = np.tile(np.eye(3), (len(rows), len(joints), 1, 1))
    positions = np.tile([joint.offset for joint in joints], (len(rows), 1, 1))
    column = 0
    for index, joint in enumerate(joints):
        values = rows[:, column : column + len(joint.channels)]
        column += len(joint.channels)
        turns = [place for place, channel in enumerate(joint.channels) if channel.endswith("rotation")]
        if turns:
            sequence = "".join(joint.channels[place][0] for place in turns)
            rotations[:, index] = Rotation.from_euler(sequence, values[:, turns], degrees=True).as_matrix()
        for place, channel in enumerate(joint.channels):
            if channel.endswith("position"):
                positions[:, index, _AXES.index(channel[0])] = values[:, place]
    return BvhMotion(
        names=tuple(joint.name for joint in joints),
        parents=tuple(joint.parent for joint in joints),
        offsets=torch.tensor([joint.offset for joint in joints], dtype=torch.float32),
        frame_time=frame_time,
        rotations=torch.from_numpy(rotations).float(),
        positions=torch.from_numpy(positions).float(),
        end_sites=end_sites,
    )


@dataclass
class _Joint:
    name: str
    parent: int
    offset: tuple[float, float, float] | None = None
    channels: list[str] = field(default_factory=list)


@dataclass
class _EndSite:
    parent: int
    offset: tuple[float, float, float] | None = None


@dataclass
class _Lines:
    """The file's lines with the number of the one being read."""

    name: str
    lines: list[str]
    number: int = 0

    def __iter__(self) -> Iterator[str]:
        """Lines that are not blank, stripped; a second loop goes on where the first one stopped."""
        while self.number < len(self.lines):
            self.number += 1
            line = self.lines[self.number - 1].strip()
            if line:
                yield line

    def error(self, reason: str, detail: str = "") -> FormatError:
        return FormatError(self.name, reason, f"line {self.number}" + (f": {detail}" if detail else ""))

    def numbers(self, words: list[str], what: str) -> list[float]:
        try:
            values = [float(word) for word in words]
        except ValueError:
            wrong = next(word for word in words if not _is_number(word))
            raise self.error("not a number", f"{wrong[:40]!r} in {what}") from None
        if not all(abs(value) <= MAX_VALUE for value in values):
            wrong = next(word for word, value in zip(words, values, strict=True) if not abs(value) <= MAX_VALUE)
            raise self.error("NaN, Inf or absurd number", f"{wrong[:40]} in {what}; at most {MAX_VALUE:g}")
        return values


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _hierarchy(lines: _Lines) -> tuple[list[_Joint], tuple[tuple[int, tuple[float, float, float]], ...]]:
    """Joints and End Sites up to and including the line MOTION."""
    joints: list[_Joint] = []
    ends: list[_EndSite] = []
    open_nodes: list[tuple[int, _Joint | _EndSite]] = []
    announced: tuple[int, _Joint | _EndSite] | None = None
    begun = False
    for line in lines:
        for statement in re.findall(r"[{}]|[^{}]+", line):
            words = statement.split()
            if not words:
                continue
            key = words[0].upper()
            if not begun:
                if key != "HIERARCHY":
                    raise lines.error("not a BVH file", "it must begin with HIERARCHY")
                begun = True
            elif announced is not None:
                if key != "{":
                    raise lines.error("damaged hierarchy", "{ expected")
                open_nodes.append(announced)
                announced = None
            elif key == "ROOT" and not joints:
                announced = _announce(lines, joints, words, -1)
            elif key == "MOTION" and joints and not open_nodes:
                return joints, tuple((end.parent, _offset(end)) for end in ends)
            elif not open_nodes:
                raise lines.error(
                    "damaged hierarchy",
                    f"{words[0][:40]!r} outside the skeleton; " + ("MOTION expected" if joints else "ROOT expected"),
                )
            elif key == "}":
                if open_nodes.pop()[1].offset is None:
                    raise lines.error("damaged hierarchy", "a joint without OFFSET")
            elif key == "OFFSET" and open_nodes[-1][1].offset is None and len(words) == 4:
                x, y, z = lines.numbers(words[1:], "OFFSET")
                open_nodes[-1][1].offset = (x, y, z)
            elif key == "JOINT" and isinstance(open_nodes[-1][1], _Joint):
                announced = _announce(lines, joints, words, open_nodes[-1][0])
            elif key == "END" and isinstance(open_nodes[-1][1], _Joint):
                ends.append(_EndSite(open_nodes[-1][0]))
                announced = (-1, ends[-1])
            elif key == "CHANNELS" and isinstance(open_nodes[-1][1], _Joint) and not open_nodes[-1][1].channels:
                open_nodes[-1][1].channels = _channels(lines, words)
            else:
                raise lines.error("damaged hierarchy", f"unexpected {statement.strip()[:40]!r}")
    raise lines.error("ends within the hierarchy" if begun else "empty file")


def _announce(lines: _Lines, joints: list[_Joint], words: list[str], parent: int) -> tuple[int, _Joint]:
    if len(words) < 2:
        raise lines.error("damaged hierarchy", f"{words[0]} without a name")
    joints.append(_Joint(" ".join(words[1:]), parent))
    return len(joints) - 1, joints[-1]


def _offset(node: _EndSite) -> tuple[float, float, float]:
    assert node.offset is not None
    return node.offset


def _channels(lines: _Lines, words: list[str]) -> list[str]:
    channels = [word.capitalize() for word in words[2:]]
    legal = all(re.fullmatch("[XYZ](position|rotation)", channel) for channel in channels)
    if len(words) < 2 or words[1] != str(len(channels)) or not legal or len(set(channels)) != len(channels):
        raise lines.error(
            "damaged channels",
            f"{' '.join(words)[:80]!r}; legal: CHANNELS n, then n different names of "
            "Xposition, Yposition, Zposition, Xrotation, Yrotation, Zrotation",
        )
    return channels


def _rows(lines: _Lines, width: int) -> tuple[float, np.ndarray]:
    """Frame time and channel values [frames, width] of what follows MOTION."""
    iterator = iter(lines)
    line = next(iterator, "")
    match = re.fullmatch(r"frames\s*:\s*([0-9]{1,9})", line, re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise lines.error("damaged motion header", f"{line[:40]!r}; legal: 'Frames:' and a positive number")
    frames = int(match[1])
    line = next(iterator, "")
    match = re.fullmatch(r"frame\s*time\s*:\s*(\S+)", line, re.IGNORECASE)
    if match is None:
        raise lines.error("damaged motion header", f"{line[:40]!r}; legal: 'Frame Time:' and seconds")
    (frame_time,) = lines.numbers([match[1]], "Frame Time")
    if not 1e-3 <= frame_time <= MAX_FRAME_TIME:
        raise lines.error("absurd frame time", f"{frame_time:g}; legal: 0.001 to {MAX_FRAME_TIME:g} s")
    if width == 0:
        raise lines.error("no channels")
    rows: list[list[float]] = []
    for line in iterator:
        if len(rows) == frames:
            raise lines.error("more frames than stated", f"Frames: {frames}")
        words = line.split()
        if len(words) != width:
            raise lines.error("wrong number of values", f"{len(words)}; the channels need {width}")
        rows.append(lines.numbers(words, f"frame {len(rows)}"))
    if len(rows) < frames:
        raise lines.error("fewer frames than stated", f"{len(rows)} of {frames}: truncated")
    return frame_time, np.array(rows)

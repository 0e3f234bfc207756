"""A person of tapered limbs on a tiled ground, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import ImageDraw

from ds_hymotion.formats.camera import Camera
from ds_hymotion.motion.skeleton import JOINTS_24

Colour = tuple[int, int, int]

LEFT: Colour = (40, 110, 190)
RIGHT: Colour = (226, 118, 46)
MIDDLE: Colour = (92, 100, 112)
SKIN: Colour = (158, 166, 178)
BACKGROUND: Colour = (247, 248, 250)
TILES: tuple[Colour, Colour] = ((236, 239, 243), (226, 230, 236))
SHADOW: Colour = (200, 206, 215)
PATH: Colour = (176, 184, 196)
TILE = 0.5
"""Metres along a ground tile's side."""
HEAD_CENTRE = (0.0, 0.085, 0.02)
HEAD_RADIUS = 0.105
NOSE = (0.0, 0.07, 0.125)
BODY_MARGIN = 0.13
"""Metres that the drawn body may reach beyond its joints, the head apart."""

_LIMBS: tuple[tuple[str, str, float, float], ...] = (
    ("hip", "knee", 0.075, 0.055),
    ("knee", "ankle", 0.052, 0.036),
    ("ankle", "foot", 0.038, 0.034),
    ("shoulder", "elbow", 0.048, 0.040),
    ("elbow", "wrist", 0.039, 0.030),
    ("wrist", "hand", 0.034, 0.036),
)
_TRUNK = ("left_shoulder", "right_shoulder", "right_hip", "left_hip")
_INDEX = {name: joint for joint, name in enumerate(JOINTS_24)}
_OUTLINE = 0.72


@dataclass(frozen=True)
class _Part:
    depth: float
    paint: Callable[[], None]


def head_points(joints: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Centre of the head and tip of the nose [..., 2, 3] from joints [..., 24, 3] and head rotation [..., 3, 3]."""
    local = np.array([HEAD_CENTRE, NOSE])
    return joints[..., _INDEX["head"], None, :] + np.einsum("...ij,pj->...pi", head, local)


def draw_ground(draw: ImageDraw.ImageDraw, camera: Camera, low: np.ndarray, high: np.ndarray) -> None:
    """Tiles at y = 0 from ``low`` to ``high`` (x, z in metres), their borders at multiples of ``TILE``."""
    first, last = np.floor(low / TILE).astype(int), np.ceil(high / TILE).astype(int)
    step = max(1, int(np.ceil((last - first).max() / 80)))
    for x in range(first[0], last[0], step):
        for z in range(first[1], last[1], step):
            corners = np.array([(x, 0, z), (x + step, 0, z), (x + step, 0, z + step), (x, 0, z + step)]) * TILE
            pixels, depth = camera.project(corners)
            if depth.min() > 0.1:
                draw.polygon(_points(pixels), fill=TILES[(x // step + z // step) % 2])


def draw_path(draw: ImageDraw.ImageDraw, camera: Camera, points: np.ndarray, width: int) -> None:
    """A line on the ground under ``points`` [T, 3]."""
    pixels, _ = camera.project(points * np.array([1.0, 0.0, 1.0]))
    if len(pixels) > 1:
        draw.line(_points(pixels), fill=PATH, width=width, joint="curve")


def draw_body(draw: ImageDraw.ImageDraw, camera: Camera, joints: np.ndarray, head: np.ndarray) -> None:
    """One pose: joints [24, 3] in metres, the head's world rotation [3, 3]. Far parts first, near parts over them."""
    flat = joints * np.array([1.0, 0.0, 1.0])
    _shadow(draw, camera, flat)
    pixels, depth = camera.project(joints)
    parts: list[_Part] = []

    def limb(start: int, end: int, thick: float, thin: float, colour: Colour) -> None:
        radii = (thick * camera.focal / depth[start], thin * camera.focal / depth[end])
        parts.append(
            _Part(float(depth[[start, end]].mean()), lambda: _capsule(draw, pixels[start], pixels[end], radii, colour))
        )

    for side, colour in (("left", LEFT), ("right", RIGHT)):
        for start, end, thick, thin in _LIMBS:
            limb(_INDEX[f"{side}_{start}"], _INDEX[f"{side}_{end}"], thick, thin, colour)
    limb(_INDEX["neck"], _INDEX["head"], 0.052, 0.046, SKIN)
    trunk = [_INDEX[name] for name in _TRUNK]
    parts.append(_Part(float(depth[trunk].mean()), lambda: _trunk(draw, camera, pixels[trunk], depth[trunk])))
    (centre, nose), (far, near) = camera.project(head_points(joints, head))
    parts.append(_Part(float(far), lambda: _head(draw, camera, centre, nose, float(far), float(near))))
    for part in sorted(parts, key=lambda part: -part.depth):
        part.paint()


def _shadow(draw: ImageDraw.ImageDraw, camera: Camera, flat: np.ndarray) -> None:
    pixels, depth = camera.project(flat)
    for side in ("left", "right"):
        for start, end, thick, thin in _LIMBS:
            a, b = _INDEX[f"{side}_{start}"], _INDEX[f"{side}_{end}"]
            radii = (thick * camera.focal / depth[a], thin * camera.focal / depth[b])
            _tapered(draw, pixels[a], pixels[b], radii, SHADOW)
    trunk = pixels[[_INDEX[name] for name in _TRUNK]]
    width = 0.1 * camera.focal / depth[_INDEX["pelvis"]]
    draw.polygon(_points(trunk), fill=SHADOW)
    for start, end in zip(trunk, np.roll(trunk, -1, axis=0), strict=True):
        _tapered(draw, start, end, (width, width), SHADOW)


def _trunk(draw: ImageDraw.ImageDraw, camera: Camera, corners: np.ndarray, depth: np.ndarray) -> None:
    for grow, colour in ((1.0, _dark(MIDDLE)), (0.0, MIDDLE)):
        radii = np.array([0.055, 0.055, 0.075, 0.075]) * camera.focal / depth + grow * _edge(camera)
        draw.polygon(_points(corners), fill=colour)
        for start in range(4):
            end = (start + 1) % 4
            _tapered(draw, corners[start], corners[end], (radii[start], radii[end]), colour)


def _head(
    draw: ImageDraw.ImageDraw, camera: Camera, centre: np.ndarray, nose: np.ndarray, far: float, near: float
) -> None:
    radius = HEAD_RADIUS * camera.focal / far
    size = 0.026 * camera.focal / near
    if near > far:
        _disc(draw, nose, size, _dark(SKIN))
    _disc(draw, centre, radius + _edge(camera), _dark(SKIN))
    _disc(draw, centre, radius, SKIN)
    if near <= far:
        _disc(draw, nose, size, _dark(SKIN))


def _capsule(
    draw: ImageDraw.ImageDraw, start: np.ndarray, end: np.ndarray, radii: tuple[float, float], colour: Colour
) -> None:
    edge = _edge_of(radii)
    _tapered(draw, start, end, (radii[0] + edge, radii[1] + edge), _dark(colour))
    _tapered(draw, start, end, radii, colour)


def _tapered(
    draw: ImageDraw.ImageDraw, start: np.ndarray, end: np.ndarray, radii: tuple[float, float], colour: Colour
) -> None:
    along = end - start
    length = float(np.hypot(*along))
    if length > 1e-6:
        across = np.array([-along[1], along[0]]) / length
        draw.polygon(
            _points(
                np.array(
                    [
                        start + across * radii[0],
                        end + across * radii[1],
                        end - across * radii[1],
                        start - across * radii[0],
                    ]
                )
            ),
            fill=colour,
        )
    _disc(draw, start, radii[0], colour)
    _disc(draw, end, radii[1], colour)


def _disc(draw: ImageDraw.ImageDraw, centre: np.ndarray, radius: float, colour: Colour) -> None:
    x, y = float(centre[0]), float(centre[1])
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _edge(camera: Camera) -> float:
    return 0.011 * camera.focal / camera.distance


def _edge_of(radii: tuple[float, float]) -> float:
    return 0.22 * min(radii)


def _dark(colour: Colour) -> Colour:
    red, green, blue = (int(value * _OUTLINE) for value in colour)
    return red, green, blue


def _points(pixels: np.ndarray) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in pixels]

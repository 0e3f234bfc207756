"""A perspective camera that looks down on a y-up world."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

AZIMUTH = 35.0
"""Degrees from +Z (where a canonical motion faces at its start) towards +X."""
ELEVATION = 16.0
FIELD_OF_VIEW = 32.0
"""Degrees over the picture's smaller side."""
NEAR = 0.05


@dataclass(frozen=True)
class Camera:
    """A fixed direction of view.

    Attributes:
        target: [3] world point at the picture's centre.
        distance: metres from the target.
        width, height: pixels of the picture.
        centre: (x, y) pixels where the target appears.
    """

    target: np.ndarray
    distance: float
    width: int
    height: int
    centre: tuple[float, float]

    @property
    def axes(self) -> np.ndarray:
        """[3, 3] rows: right, up, forward (away from the camera)."""
        azimuth, elevation = np.radians([AZIMUTH, ELEVATION])
        forward = -np.array(
            [np.sin(azimuth) * np.cos(elevation), np.sin(elevation), np.cos(azimuth) * np.cos(elevation)]
        )
        right = np.cross(forward, [0.0, 1.0, 0.0])
        right /= np.linalg.norm(right)
        return np.stack([right, np.cross(right, forward), forward])

    @property
    def focal(self) -> float:
        """Pixels that a metre at one metre's distance covers."""
        return 0.5 * min(self.width, self.height) / float(np.tan(np.radians(FIELD_OF_VIEW / 2)))

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels [..., 2] (y down) and depths in metres [...] of world points [..., 3]."""
        local = (points - self.target) @ self.axes.T
        depth = np.maximum(local[..., 2] + self.distance, NEAR)
        scale = self.focal / depth
        return np.stack([self.centre[0] + local[..., 0] * scale, self.centre[1] - local[..., 1] * scale], -1), depth

    def moved(self, shift: np.ndarray) -> Camera:
        return replace(self, target=self.target + shift)


def fit_camera(points: np.ndarray, box: tuple[int, int, int, int], width: int, height: int) -> Camera:
    """The nearest camera that shows all ``points`` [N, 3] inside the pixel box (left, top, right, bottom)."""
    left, top, right, bottom = box
    camera = Camera(
        0.5 * (points.min(0) + points.max(0)), 1.0, width, height, (0.5 * (left + right), 0.5 * (top + bottom))
    )
    slope = np.array([right - left, bottom - top]) / (2 * camera.focal)
    for _ in range(8):
        local = (points - camera.target) @ camera.axes.T
        distance = max(float((np.abs(local[:, :2]) / slope - local[:, 2:]).max()), float(-local[:, 2].min()) + NEAR)
        seen = local[:, :2] / (local[:, 2:] + distance)
        shift = 0.5 * (seen.min(0) + seen.max(0)) * distance
        camera = replace(camera, distance=distance, target=camera.target + shift @ camera.axes[:2])
    local = (points - camera.target) @ camera.axes.T
    distance = max(float((np.abs(local[:, :2]) / slope - local[:, 2:]).max()), float(-local[:, 2].min()) + NEAR)
    return replace(camera, distance=distance)

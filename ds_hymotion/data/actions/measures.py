"""Seven measures of a clip that need no label: what the action network learns to tell from any cut of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ds_hymotion.data.actions.features import RATE, VALUES
from ds_hymotion.motion.skeleton import BODY_JOINTS, JOINTS_24

MEASURES = (
    "travel",
    "balance",
    "activity",
    "hand speed",
    "lasting change",
    "reach ahead",
    "hands apart",
)
"""Each saturates, so that no extreme clip stretches its axis: running counts little more than walking.

- travel: horizontal speed of the pelvis; tanh of 0.3 m/s.
- balance: share of the time in which one foot stays lifted through a second, or the feet keep to one line.
- activity: mean speed of the joints against the pelvis; tanh of 0.15 m/s.
- hand speed: of the busier wrist against its shoulder; tanh of 0.3 m/s.
- lasting change: how far the pose at the end is from that at the start (tanh of 12 cm a joint), or a turn on the spot.
- reach ahead: the furthest that a wrist comes before the pelvis, metres.
- hands apart: mean distance of the wrists to the side, metres.
"""

_AT = {name: number for number, name in enumerate(JOINTS_24[:BODY_JOINTS])}
_WRISTS = [_AT["left_wrist"], _AT["right_wrist"]]
_SHOULDERS = [_AT["left_shoulder"], _AT["right_shoulder"]]
_FEET = [_AT["left_foot"], _AT["right_foot"]]


def measures_of(features: Tensor) -> Tensor:
    """Action features [T, 133] -> the measures [7]."""
    frames = len(features)
    place, velocity = (features[:, part : part + VALUES].unflatten(1, (BODY_JOINTS, 3)) for part in (0, VALUES))
    travel = torch.tanh(velocity[:, 0, [0, 2]].norm(dim=-1).mean() / 0.3)
    inner = (velocity - velocity[:, :1]).norm(dim=-1)
    hands = (velocity[:, _WRISTS] - velocity[:, _SHOULDERS]).norm(dim=-1).mean(dim=0)
    end = max(1, frames // 6)
    moved = (place[-end:].mean(dim=0) - place[:end].mean(dim=0)).norm(dim=-1).mean()
    turned = (features[:, -1].sum() / RATE).abs()
    return torch.stack(
        [
            travel,
            torch.maximum(_one_foot(place[:, _FEET, 1]), _on_a_line(place)),
            torch.tanh(inner.mean() / 0.15),
            torch.tanh(hands.max() / 0.3),
            torch.tanh(moved / 0.12) + torch.tanh(turned / 0.6) * (1 - travel),
            place[:, _WRISTS, 2].max(),
            (place[:, _WRISTS[0], 0] - place[:, _WRISTS[1], 0]).abs().mean(),
        ]
    )


def _one_foot(heights: Tensor) -> Tensor:
    """Share of the time that one of two feet, heights [T, 2], stays up: 10 cm over the other through a second."""
    second = min(round(RATE), len(heights))
    lowest = -functional.max_pool1d(-heights.T[None], second, 1)[0]
    return ((lowest[0] - lowest[1]).abs() / 0.1).clamp(max=1).mean()


def _on_a_line(place: Tensor) -> Tensor:
    """How nearly the ankles of an upright body keep to one line: 1 within 4 cm, 0 from 10 cm on."""
    width = (place[:, _AT["left_ankle"], 0] - place[:, _AT["right_ankle"], 0]).abs()
    upright = torch.tanh((place[:, 0, 1].mean() - 0.6).clamp(min=0) / 0.1)
    return ((0.10 - width) / 0.06).clamp(0, 1).mean() * upright

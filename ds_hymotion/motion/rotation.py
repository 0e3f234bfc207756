"""Rotation conventions on top of pytorch3d: matrices act on column vectors, quaternions are (w, x, y, z).

``compose`` and ``rotate`` multiply element by element, so autocast and TF32 leave their precision alone.
"""

from __future__ import annotations

import math

import torch
from pytorch3d.transforms import (
    axis_angle_to_matrix,
    matrix_to_axis_angle,
    matrix_to_quaternion,
    quaternion_to_matrix,
    rotation_6d_to_matrix,
    standardize_quaternion,
)
from torch import Tensor

__all__ = [
    "axis_angle_to_matrix",
    "canonical_axis_angle",
    "compose",
    "geodesic_angle",
    "hemisphere_aligned",
    "matrix_to_axis_angle",
    "matrix_to_quaternion",
    "matrix_to_rot6d_columns",
    "project_to_rotation",
    "quaternion_to_matrix",
    "rot6d_columns_to_matrix",
    "rotate",
    "slerp",
    "standardize_quaternion",
]

_SMALLEST_SUM = 1e-3
"""Least sum of two singular values, relative to the largest, by which a projection's gradient is divided."""


def compose(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product a·b of [..., 3, 3] and [..., 3, 3]: first b, then a."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(dim=-2)


def rotate(matrix: Tensor, vector: Tensor) -> Tensor:
    """The matrices [..., 3, 3] applied to the vectors [..., 3]."""
    return (matrix * vector.unsqueeze(-2)).sum(dim=-1)


def matrix_to_rot6d_columns(matrix: Tensor) -> Tensor:
    """[..., 3, 3] -> [..., 6]: the first two columns flattened row by row, R00 R01 R10 R11 R20 R21.

    This is the convention of HY-Motion's 201 channels; pytorch3d's 6D holds the first two rows instead.
    """
    return matrix[..., :2].flatten(-2)


def rot6d_columns_to_matrix(rot6d: Tensor) -> Tensor:
    """[..., 6] in the column convention -> [..., 3, 3] by Gram-Schmidt.

    Half precision is decoded, and returned, in float32. Gradients are finite at every rotation.
    """
    columns = _wide(rot6d).unflatten(-1, (3, 2))
    return rotation_6d_to_matrix(columns.transpose(-1, -2).flatten(-2)).transpose(-1, -2)


def canonical_axis_angle(axis_angle: Tensor) -> Tensor:
    """The same rotations [..., 3] with norms in [0, pi]; vectors that are already canonical keep their bits."""
    angle = torch.linalg.vector_norm(axis_angle, dim=-1, keepdim=True)
    turns = torch.round(angle / (2 * math.pi))
    wrapped = (angle - turns * (2 * math.pi)).clamp(-math.pi, math.pi)
    scale = wrapped / torch.where(angle > 0, angle, torch.ones_like(angle))
    return torch.where(angle > math.pi, axis_angle * scale, axis_angle)


def hemisphere_aligned(quaternion: Tensor, reference: Tensor) -> Tensor:
    """``quaternion`` or its negative [..., 4], whichever is nearer to ``reference``: q and -q are one rotation."""
    dot = (quaternion * reference).sum(dim=-1, keepdim=True)
    return torch.where(dot < 0, -quaternion, quaternion)


def slerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Constant-speed interpolation of unit quaternions [..., 4] along the shorter arc; ``weight`` [...] in [0, 1].

    Shoemake 1985, "Animating rotation with quaternion curves", with sin(x)/x in place of sin(x), so that equal ends
    need no special case and have finite gradients.
    """
    end = hemisphere_aligned(end, start)
    weight = weight.unsqueeze(-1)
    apart = torch.linalg.vector_norm(end - start, dim=-1, keepdim=True)
    together = torch.linalg.vector_norm(end + start, dim=-1, keepdim=True)
    half_turns = 2 * torch.atan2(apart, together) / math.pi
    from_start = (1 - weight) * torch.sinc((1 - weight) * half_turns)
    from_end = weight * torch.sinc(weight * half_turns)
    return (from_start * start + from_end * end) / torch.sinc(half_turns)


def geodesic_angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle [...] in [0, pi] of the rotation between the matrices a and b [..., 3, 3].

    atan2 of its sine (antisymmetric part of aᵀb) and cosine (trace): about 1e-7 rad in float32 at every angle, where
    the arc cosine of the trace loses half the digits near 0 and pi. Gradients are finite everywhere.
    """
    relative = compose(a.transpose(-1, -2), b)
    sine = 0.5 * torch.linalg.vector_norm(_antisymmetric_vector(relative), dim=-1)
    cosine = 0.5 * (relative.diagonal(dim1=-2, dim2=-1).sum(dim=-1) - 1)
    return torch.atan2(sine, cosine)


def project_to_rotation(matrix: Tensor) -> Tensor:
    """The rotation nearest to ``matrix`` [..., 3, 3] in the Frobenius norm (orthogonal Procrustes, det = +1).

    The gradient is that of the projection itself, which divides by sums of singular values; backpropagating through
    the decomposition would divide by their differences, which vanish at every rotation. Where the nearest rotation is
    not unique (sums near 0) the gradient is damped. Half precision is projected, and returned, in float32. Matrices
    that are not finite give NaN.
    """
    matrix = _wide(matrix)
    finite = matrix.isfinite().all(dim=-1).all(dim=-1)[..., None, None]
    identity = torch.eye(3, dtype=matrix.dtype, device=matrix.device)
    matrix = torch.where(finite, matrix, identity)
    with torch.no_grad(), torch.autocast(device_type=matrix.device.type, enabled=False):
        u, s, vh = torch.linalg.svd(matrix)
        v = vh.transpose(-1, -2)
        sign = torch.det(compose(u, vh)).sign()
        signs = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], dim=-1)
        s = s * signs
        rotation = compose(u * signs.unsqueeze(-2), vh)
        floor = (_SMALLEST_SUM * s[..., :1]).clamp_min(_SMALLEST_SUM**2)
        opposite_sums = torch.maximum(s.sum(dim=-1, keepdim=True) - s, floor)
        solve = compose(v / opposite_sums.unsqueeze(-2), vh)
    if not (torch.is_grad_enabled() and matrix.requires_grad):
        return torch.where(finite, rotation, torch.nan)
    # dR = R·Ω with Ω antisymmetric and Ω·S + S·Ω = Rᵀ·dM - dMᵀ·R, where S = Rᵀ·M; its value here is 0.
    turn = rotate(solve, _antisymmetric_vector(compose(rotation.transpose(-1, -2), matrix)))
    turn = turn - turn.detach()
    return torch.where(finite, rotation + compose(rotation, _cross_matrix(turn)), torch.nan)


def _antisymmetric_vector(matrix: Tensor) -> Tensor:
    """The vector a with M - Mᵀ = [a]×."""
    return torch.stack(
        [
            matrix[..., 2, 1] - matrix[..., 1, 2],
            matrix[..., 0, 2] - matrix[..., 2, 0],
            matrix[..., 1, 0] - matrix[..., 0, 1],
        ],
        dim=-1,
    )


def _cross_matrix(vector: Tensor) -> Tensor:
    x, y, z = vector.unbind(dim=-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values

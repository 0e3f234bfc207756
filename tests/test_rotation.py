from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch3d.transforms import random_quaternions, random_rotations
from torch import Tensor

from ds_hymotion.motion.rotation import (
    axis_angle_to_matrix,
    canonical_axis_angle,
    compose,
    geodesic_angle,
    hemisphere_aligned,
    matrix_to_axis_angle,
    matrix_to_rot6d_columns,
    project_to_rotation,
    quaternion_to_matrix,
    rot6d_columns_to_matrix,
    rotate,
    slerp,
)

ANGLES = [0.0, 1e-8, 1e-4, 1e-2, 1.0, 3.0, math.pi - 1e-3, math.pi - 1e-6, math.pi]
unit = st.floats(-1, 1, allow_nan=False)
axes = st.tuples(unit, unit, unit).filter(lambda v: sum(x * x for x in v) > 1e-2)


def about(axis: tuple[float, float, float], angle: float, dtype: torch.dtype = torch.float64) -> Tensor:
    vector = torch.tensor(axis, dtype=torch.float64)
    return (vector / vector.norm() * angle).to(dtype)


def difference(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def test_rot6d_columns_against_golden_numbers(shared: Path) -> None:
    golden = np.load(shared / "golden/rot6d.npz", allow_pickle=False)
    matrix = torch.from_numpy(golden["matrix"])
    assert difference(rot6d_columns_to_matrix(torch.from_numpy(golden["rot6d"])), matrix) < 1e-6
    assert difference(matrix_to_rot6d_columns(matrix), torch.from_numpy(golden["rot6d_of_matrix"])) == 0


def test_rot6d_columns_order() -> None:
    matrix = torch.arange(9.0).view(3, 3)
    assert matrix_to_rot6d_columns(matrix).tolist() == [0, 1, 3, 4, 6, 7]


def test_rot6d_decodes_half_precision_in_float32() -> None:
    torch.manual_seed(0)
    six = matrix_to_rot6d_columns(random_rotations(8)).bfloat16()
    decoded = rot6d_columns_to_matrix(six)
    assert decoded.dtype == torch.float32
    assert difference(compose(decoded, decoded.mT), torch.eye(3).expand(8, 3, 3)) < 1e-6


@settings(deadline=None, max_examples=50)
@given(axis=axes, angle=st.sampled_from(ANGLES))
def test_axis_angle_survives_the_matrix_in_float32(axis: tuple[float, float, float], angle: float) -> None:
    vector = about(axis, angle, torch.float32)
    back = matrix_to_axis_angle(axis_angle_to_matrix(vector))
    same = difference(back, vector)
    if angle > math.pi - 1e-5:  # both ends of a half turn are one rotation
        same = min(same, difference(back, -vector))
    assert same < 3e-6


@settings(deadline=None, max_examples=50)
@given(axis=axes, angle=st.floats(0, 20))
def test_canonical_axis_angle_is_the_same_rotation_within_pi(axis: tuple[float, float, float], angle: float) -> None:
    vector = about(axis, angle)
    canonical = canonical_axis_angle(vector)
    assert float(canonical.norm()) <= math.pi + 1e-12
    assert difference(axis_angle_to_matrix(canonical), axis_angle_to_matrix(vector)) < 1e-12
    if float(vector.norm()) <= math.pi:
        assert torch.equal(canonical, vector)


def test_canonical_axis_angle_exactly() -> None:
    vector = torch.tensor([[0.0, 0.0, 4.54], [0.0, 2 * math.pi, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 0.0, 4.54 - 2 * math.pi], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert difference(canonical_axis_angle(vector), expected) < 1e-15


def gradient_of(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    out = function(leaf)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weights).sum(), leaf)[0]


@pytest.mark.parametrize("angle", [0.0, 1e-8, math.pi - 1e-7, math.pi])
@pytest.mark.parametrize("axis", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, -1.0), (1.0, -2.0, 0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_angle_zero_and_pi(
    angle: float, axis: tuple[float, float, float], dtype: torch.dtype
) -> None:
    vector = about(axis, angle, dtype)
    matrix = axis_angle_to_matrix(vector)
    identity = torch.eye(3, dtype=dtype)
    six = matrix_to_rot6d_columns(matrix)
    gradients = [
        gradient_of(axis_angle_to_matrix, vector),
        gradient_of(matrix_to_axis_angle, matrix),
        gradient_of(canonical_axis_angle, vector),
        gradient_of(rot6d_columns_to_matrix, six),
        gradient_of(lambda m: geodesic_angle(m, identity), matrix),
        gradient_of(lambda m: geodesic_angle(m, m.detach()), matrix),
        gradient_of(project_to_rotation, matrix),
    ]
    # A scale of ones: neither NaN and infinity nor what a guarded division leaves behind.
    assert all(float(gradient.abs().nan_to_num(nan=math.inf).max()) < 20 for gradient in gradients)
    assert all(float(gradients[i].abs().max()) > 0.1 for i in (0, 1, 2, 3, 6))


def test_axis_angle_gradient_at_zero_is_the_generator() -> None:
    gradient = torch.autograd.functional.jacobian(axis_angle_to_matrix, torch.zeros(3, dtype=torch.float64))
    expected = torch.tensor([[[0, 0, 0], [0, 0, -1], [0, 1, 0]], [[0, 0, 1], [0, 0, 0], [-1, 0, 0]]]).double()
    assert difference(gradient[..., 0], expected[0]) < 1e-12
    assert difference(gradient[..., 1], expected[1]) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", ANGLES)
def test_geodesic_angle_is_accurate_at_every_angle(angle: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    base = random_rotations(64, dtype=torch.float64)
    axis = torch.nn.functional.normalize(torch.randn(64, 3, dtype=torch.float64), dim=-1)
    turned = compose(base, axis_angle_to_matrix(axis * angle))
    measured = geodesic_angle(base.to(dtype), turned.to(dtype))
    expected = torch.full((64,), angle, dtype=torch.float64)
    assert difference(measured, expected) < (1e-6 if dtype == torch.float32 else 1e-12)


def test_slerp_goes_at_constant_speed_along_the_shorter_arc() -> None:
    half = math.pi / 6  # a turn of 60 degrees about z
    start = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    end = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)], dtype=torch.float64)
    weights = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    expected = torch.stack([torch.cos(weights * half), 0 * weights, 0 * weights, torch.sin(weights * half)], dim=-1)
    assert difference(slerp(start, end, weights), expected) < 1e-12
    assert difference(slerp(start, -end, weights), expected) < 1e-12


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31 - 1), weight=st.floats(0, 1))
def test_slerp_divides_the_angle(seed: int, weight: float) -> None:
    torch.manual_seed(seed)
    start, end = random_quaternions(2, dtype=torch.float64)
    between = slerp(start, end, torch.tensor(weight, dtype=torch.float64))
    matrices = [quaternion_to_matrix(q) for q in (start, between, end)]
    whole = float(geodesic_angle(matrices[0], matrices[2]))
    assert abs(float(between.norm()) - 1) < 1e-12
    assert abs(float(geodesic_angle(matrices[0], matrices[1])) - weight * whole) < 1e-9
    assert abs(float(geodesic_angle(matrices[1], matrices[2])) - (1 - weight) * whole) < 1e-9


def test_slerp_of_equal_ends_has_finite_gradients() -> None:
    start = random_quaternions(4, dtype=torch.float64).requires_grad_()
    out = slerp(start, start.detach(), torch.full((4,), 0.3, dtype=torch.float64))
    assert difference(out.detach(), start.detach()) < 1e-12
    (gradient,) = torch.autograd.grad(out.sum(), start)
    assert bool(gradient.isfinite().all())


def test_hemisphere_aligned() -> None:
    reference = torch.tensor([1.0, 0.0, 0.0, 0.0])
    quaternions = torch.tensor([[-0.6, 0.8, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0]])
    assert hemisphere_aligned(quaternions, reference)[0].tolist() == pytest.approx([0.6, -0.8, 0.0, 0.0])
    assert torch.equal(hemisphere_aligned(quaternions, reference)[1], quaternions[1])


def test_projection_returns_the_factor_of_a_polar_decomposition() -> None:
    torch.manual_seed(2)
    rotation = random_rotations(32, dtype=torch.float64)
    root = torch.randn(32, 3, 3, dtype=torch.float64)
    stretch = root @ root.mT + 0.1 * torch.eye(3, dtype=torch.float64)
    assert difference(project_to_rotation(rotation @ stretch), rotation) < 1e-9


def test_projection_of_a_reflection_is_a_rotation() -> None:
    matrix = torch.diag(torch.tensor([3.0, 2.0, -1.0]))
    assert difference(project_to_rotation(matrix), torch.eye(3)) < 1e-6


def test_projection_gradient_matches_finite_differences() -> None:
    torch.manual_seed(3)
    generic = torch.randn(6, 3, 3, dtype=torch.float64)
    rotations = random_rotations(4, dtype=torch.float64)
    reflected = torch.diag(torch.tensor([3.0, 2.0, -1.0], dtype=torch.float64))[None]
    matrix = torch.cat([generic, rotations, reflected])
    direction = torch.randn_like(matrix)
    weight = torch.randn_like(matrix)
    leaf = matrix.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((project_to_rotation(leaf) * weight).sum(), leaf)
    step = 1e-6
    ahead, behind = (project_to_rotation(matrix + sign * step * direction) for sign in (1, -1))
    numeric = ((ahead - behind) / (2 * step) * weight).sum(dim=(1, 2))
    torch.testing.assert_close((gradient * direction).sum(dim=(1, 2)), numeric, rtol=1e-5, atol=1e-6)


def test_projection_has_the_same_value_with_and_without_gradients() -> None:
    torch.manual_seed(4)
    matrix = torch.randn(16, 3, 3)
    assert torch.equal(project_to_rotation(matrix), project_to_rotation(matrix.clone().requires_grad_()).detach())


def test_projection_of_zero_and_of_nan() -> None:
    matrix = torch.stack([torch.zeros(3, 3), torch.full((3, 3), math.nan), torch.eye(3)]).requires_grad_()
    out = project_to_rotation(matrix)
    assert bool(out[1].isnan().all())
    value = out.detach()
    assert difference(value[2], torch.eye(3)) < 1e-6
    assert difference(value[0] @ value[0].T, torch.eye(3)) < 1e-6
    (gradient,) = torch.autograd.grad(out[[0, 2]].sum(), matrix)
    assert bool(gradient.isfinite().all())


def test_products_keep_float32_under_autocast() -> None:
    torch.manual_seed(5)
    a, b = random_rotations(16), random_rotations(16)
    vector = torch.randn(16, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product, turned = compose(a, b), rotate(a, vector)
    assert product.dtype == torch.float32
    assert difference(product, a.double() @ b.double()) < 1e-6
    assert difference(turned, (a.double() @ vector.double()[..., None])[..., 0]) < 1e-6

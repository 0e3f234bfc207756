from __future__ import annotations

import pytest
import torch
from pytorch3d.transforms import axis_angle_to_matrix, quaternion_to_matrix
from scipy.ndimage import gaussian_filter1d
from scipy.signal import savgol_filter
from torch import Tensor

from ds_hymotion.flow.postprocess import align_hemispheres, smooth_motion, smooth_rotations, smooth_translation
from ds_hymotion.motion.motion import Motion


def turning(frames: int, per_frame: float) -> Tensor:
    """[T, 24, 3, 3]: every joint turns about z by ``per_frame`` radians a frame."""
    angles = torch.zeros(frames, 24, 3)
    angles[..., 2] = (per_frame * torch.arange(frames))[:, None]
    return axis_angle_to_matrix(angles)


def angles(rotations: Tensor) -> Tensor:
    return torch.atan2(rotations[..., 1, 0], rotations[..., 0, 0])


def test_even_turning_is_kept_inside_and_through_the_half_turn() -> None:
    rotations = turning(120, 0.1)
    smooth = smooth_rotations(rotations)
    assert torch.allclose(smooth[5:-5], rotations[5:-5], atol=1e-5)
    assert torch.allclose(smooth @ smooth.transpose(-1, -2), torch.eye(3).expand_as(smooth), atol=1e-5)


def test_small_angles_are_filtered_like_numbers() -> None:
    noise = 0.01 * torch.randn(30, generator=torch.Generator().manual_seed(0))
    rotations = axis_angle_to_matrix(torch.stack([0 * noise, 0 * noise, noise], -1))[:, None].expand(-1, 24, -1, -1)
    expected = torch.from_numpy(gaussian_filter1d(noise.numpy(), 1.0, mode="nearest"))
    assert torch.allclose(angles(smooth_rotations(rotations))[:, 3], expected, atol=1e-5)


def test_quaternion_signs_do_not_matter() -> None:
    random = torch.Generator().manual_seed(0)
    steps = torch.nn.functional.normalize(
        torch.tensor([1.0, 0, 0, 0]) + 0.1 * torch.randn(40, 3, 4, generator=random), dim=-1
    )
    signs = torch.where(torch.rand(40, 3, 1, generator=random) < 0.5, -1.0, 1.0)
    signs[0] = 1
    aligned = align_hemispheres(steps * signs)
    assert torch.equal(aligned, steps)
    assert torch.equal(quaternion_to_matrix(aligned), quaternion_to_matrix(steps * signs))


def test_translation_keeps_polynomials_of_order_five() -> None:
    t = torch.linspace(-1, 1, 40)
    path = torch.stack([t**5 - t, 2 * t**4, t**3 + 1], 1)
    assert torch.allclose(smooth_translation(path), path, atol=1e-5)
    noisy = path + 0.01 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.from_numpy(savgol_filter(noisy.numpy(), 11, 5, axis=0))
    assert torch.allclose(smooth_translation(noisy), expected.float(), atol=1e-5)


@pytest.mark.parametrize(
    ("frames", "window"), [(1, 0), (2, 0), (6, 0), (7, 7), (8, 7), (9, 9), (10, 9), (11, 11), (12, 11)]
)
def test_short_clips_take_the_largest_window(frames: int, window: int) -> None:
    path = torch.randn(frames, 3, generator=torch.Generator().manual_seed(frames))
    smooth = smooth_translation(path)
    if window:
        expected = torch.from_numpy(savgol_filter(path.double().numpy(), window, 5, axis=0)).float()
        assert torch.allclose(smooth, expected, atol=1e-6) and not torch.allclose(smooth, path)
    else:
        assert torch.equal(smooth, path)


@pytest.mark.parametrize("frames", [1, 3, 60])
def test_a_motion_stays_a_motion(frames: int) -> None:
    random = torch.Generator().manual_seed(0)
    jitter = axis_angle_to_matrix(0.02 * torch.randn(frames, 24, 3, generator=random))
    motion = Motion(turning(frames, 0.05) @ jitter, torch.randn(frames, 3, generator=random), 30.0)
    smooth = smooth_motion(motion)
    assert (smooth.frames, smooth.fps, smooth.rotations.dtype) == (frames, 30.0, torch.float32)
    assert smooth.rotations.isfinite().all() and smooth.translation.isfinite().all()
    if frames > 3:
        rough, even = (m.joints().diff(3, dim=0).norm(dim=-1).mean() for m in (motion, smooth))
        assert even < 0.5 * rough

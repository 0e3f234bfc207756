"""Moving and still pictures of a motion: GIF, MP4, and a strip of poses as PNG."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import imageio_ffmpeg
import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from ds_hymotion.errors import UserError
from ds_hymotion.formats.camera import Camera, fit_camera
from ds_hymotion.formats.figure import BACKGROUND, BODY_MARGIN, draw_body, draw_ground, draw_path, head_points
from ds_hymotion.formats.files import replace_file
from ds_hymotion.motion.kinematics import global_rotations
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.skeleton import JOINTS_24, smpl24

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

GIF_FPS = 15.0
MP4_FPS = 30.0
SMOOTHING = 2
"""Pictures are drawn this many times larger and averaged down."""
_INK = (40, 44, 52)
_FAINT = (120, 128, 140)
_GROUND_MARGIN = 1.5
_WIDE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
    "Arial Unicode MS",
)


def write_gif(
    path: str | Path, motion: Motion, caption: str | None = None, fps: float | None = None, size: int = 480
) -> None:
    """Write an endless GIF of ``size`` × ``size`` pixels, in real time.

    Args:
        fps: pictures per second, at most 50; the motion's own rate but at most 15 unless given.

    Raises:
        UserError: the place cannot be written.
        ValueError: the motion is empty or not finite, or ``fps`` is not in 1..50.
    """
    rate = min(GIF_FPS, motion.fps) if fps is None else fps
    if not 1 <= rate <= 50:
        raise ValueError(f"fps {rate:g} is not in 1..50")
    pictures = list(_pictures(motion, caption, rate, size))
    palette = pictures[len(pictures) // 2].quantize(128, dither=Image.Dither.NONE)
    paletted = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    ends = [round(100 * (index + 1) / rate) for index in range(len(paletted))]
    durations = [10 * (end - start) for start, end in zip([0, *ends], ends, strict=False)]
    replace_file(
        path,
        lambda temporary: paletted[0].save(
            temporary, format="GIF", save_all=True, append_images=paletted[1:], duration=durations, loop=0
        ),
    )


def write_mp4(
    path: str | Path, motion: Motion, caption: str | None = None, fps: float | None = None, size: int = 480
) -> None:
    """Write an H.264 video of ``size`` × ``size`` pixels, in real time.

    Args:
        fps: pictures per second; the motion's own rate but at most 30 unless given.
        size: an even number.

    Raises:
        UserError: the place cannot be written or there is no ffmpeg.
        ValueError: the motion is empty or not finite, ``fps`` is not in 1..240 or ``size`` is odd.
    """
    rate = min(MP4_FPS, motion.fps) if fps is None else fps
    if not 1 <= rate <= 240 or size % 2:
        raise ValueError(f"fps {rate:g} must be in 1..240 and size {size} even")

    pictures = _pictures(motion, caption, rate, size)
    first = next(pictures)

    def write(temporary: Path) -> None:
        video = imageio_ffmpeg.write_frames(
            str(temporary),
            (size, size),
            fps=rate,
            codec="libx264",
            quality=None,
            macro_block_size=2,
            output_params=["-crf", "20", "-preset", "veryfast", "-movflags", "+faststart", "-f", "mp4"],
        )
        video.send(None)
        try:
            for picture in chain([first], pictures):
                video.send(picture.tobytes())
        finally:
            video.close()

    try:
        replace_file(path, write)
    except RuntimeError as error:
        raise UserError(
            f"{path}: no video could be made ({' '.join(str(error).split())[:120]}); "
            "install imageio-ffmpeg or write a .gif"
        ) from None


def filmstrip(
    path: str | Path, motion: Motion, frames: int = 8, caption: str | None = None, panel: tuple[int, int] = (200, 300)
) -> None:
    """Write a PNG of ``frames`` poses side by side, evenly spaced in time, the first and the last among them.

    The view follows the pelvis; the ground's tiles (0.5 m) show the way covered.

    Raises:
        UserError: the place cannot be written.
        ValueError: the motion is empty or not finite, or ``frames`` is under 1.
    """
    if frames < 1:
        raise ValueError(f"frames {frames} must be at least 1")
    joints, heads = _poses(motion)
    chosen = np.unique(np.round(np.linspace(0, len(joints) - 1, frames)).astype(int))
    width, height = (SMOOTHING * side for side in panel)
    ground = joints[:, 0] * np.array([1.0, 0.0, 1.0])
    camera = fit_camera(
        _outline(joints[chosen] - ground[chosen, None], heads[chosen]),
        (width // 20, height // 20, width - width // 20, height - height // 10),
        width,
        height,
    )
    strip = Image.new("RGB", (width * len(chosen), height), BACKGROUND)
    for place, frame in enumerate(chosen):
        follow = camera.moved(ground[frame])
        picture = Image.new("RGB", (width, height), BACKGROUND)
        draw = ImageDraw.Draw(picture)
        middle = ground[frame][[0, 2]]
        draw_ground(draw, follow, middle - 2, middle + 2)
        draw_path(draw, follow, joints[:, 0], SMOOTHING)
        draw_body(draw, follow, joints[frame], heads[frame])
        draw.line([(0, 0), (0, height)], fill=BACKGROUND, width=2 * SMOOTHING)
        strip.paste(picture, (place * width, 0))
    strip = strip.reduce(SMOOTHING)
    lines = _wrapped(caption, _font(caption, 15), strip.width - 16) if caption else []
    top = 8 + 20 * len(lines) if lines else 0
    page = Image.new("RGB", (strip.width, strip.height + top), BACKGROUND)
    page.paste(strip, (0, top))
    draw = ImageDraw.Draw(page)
    _write_lines(draw, lines, caption or "", 15, 20)
    for place, frame in enumerate(chosen):
        draw.text(
            (place * panel[0] + 8, page.height - 20), f"{frame / motion.fps:.2f} s", fill=_FAINT, font=_font("", 12)
        )
    replace_file(path, lambda temporary: page.save(temporary, format="PNG"))


def _pictures(motion: Motion, caption: str | None, fps: float, size: int) -> Iterator[Image.Image]:
    """RGB pictures of the motion at ``fps``, one fixed camera on all of it."""
    joints, heads = _poses(motion)
    font_size, line_height = max(size // 30, 11), max(size // 22, 15)
    lines = _wrapped(caption, _font(caption, font_size), size - 24) if caption else []
    large, margin = SMOOTHING * size, SMOOTHING * size // 20
    top = SMOOTHING * (12 + line_height * len(lines))
    some = np.unique(np.linspace(0, len(joints) - 1, min(len(joints), 600)).astype(int))
    outline = _outline(joints[some], heads[some])
    camera = fit_camera(outline, (margin, top + margin // 2, large - margin, large - margin), large, large)
    stage = _stage(camera, outline, joints)
    for index in _frame_choice(len(joints), motion.fps, fps):
        picture = stage.copy()
        draw_body(ImageDraw.Draw(picture), camera, joints[index], heads[index])
        picture = picture.reduce(SMOOTHING)
        draw = ImageDraw.Draw(picture)
        _write_lines(draw, lines, caption or "", font_size, line_height)
        draw.text((12, size - line_height - 4), f"{index / motion.fps:.1f} s", fill=_FAINT, font=_font("", font_size))
        yield picture


def _poses(motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """Joint positions [T, 24, 3] and the head's world rotations [T, 3, 3] in float64."""
    skeleton = smpl24()
    joints = motion.joints(skeleton).detach().double().cpu().numpy()
    heads = global_rotations(motion.rotations, skeleton)[:, JOINTS_24.index("head")].detach().double().cpu().numpy()
    if not len(joints):
        raise ValueError("the motion has no frames")
    if not (np.isfinite(joints).all() and np.isfinite(heads).all()):
        raise ValueError("the motion holds NaN or Inf")
    return joints, heads


def _outline(joints: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Points [N, 3] that enclose the drawn bodies and the ground beneath them."""
    points = np.concatenate([joints, head_points(joints, heads)], axis=1).reshape(-1, 3)
    corners = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * BODY_MARGIN
    return np.concatenate([(points[:, None] + corners).reshape(-1, 3), points * np.array([1.0, 0.0, 1.0])])


def _stage(camera: Camera, outline: np.ndarray, joints: np.ndarray) -> Image.Image:
    picture = Image.new("RGB", (camera.width, camera.height), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    flat = outline[:, [0, 2]]
    draw_ground(draw, camera, flat.min(0) - _GROUND_MARGIN, flat.max(0) + _GROUND_MARGIN)
    draw_path(draw, camera, joints[:, 0], 2 * SMOOTHING)
    return picture


def _frame_choice(frames: int, source: float, fps: float) -> list[int]:
    """Source frames nearest to the times of pictures at ``fps``."""
    count = max(1, math.ceil(frames * fps / source - 1e-6))
    return [min(round(index * source / fps), frames - 1) for index in range(count)]


@lru_cache(maxsize=32)
def _font_file(wide: bool) -> str:
    if wide:
        known = {font.name: font.fname for font in font_manager.fontManager.ttflist}
        for name in _WIDE_FONTS:
            if name in known:
                return known[name]
    return font_manager.findfont("DejaVu Sans")


def _font(text: str | None, size: int) -> Font:
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in text or "")
    return ImageFont.truetype(_font_file(wide), size)


def _wrapped(text: str, font: Font, width: int, most: int = 2) -> list[str]:
    """Lines no wider than ``width`` pixels; what does not fit in ``most`` lines ends in an ellipsis."""
    lines: list[str] = []
    rest = " ".join(text[:1000].split())
    while rest and len(lines) < most:
        fitting = len(rest)
        while fitting > 1 and font.getlength(rest[:fitting]) > width:
            fitting -= 1
        space = rest.rfind(" ", 0, fitting + 1) if fitting < len(rest) else -1
        cut = space if space > 0 else fitting
        lines.append(rest[:cut])
        rest = rest[cut:].lstrip()
    if rest:
        last = lines[-1]
        while last and font.getlength(last + "…") > width:
            last = last[:-1]
        lines[-1] = last.rstrip() + "…"
    return lines


def _write_lines(draw: ImageDraw.ImageDraw, lines: list[str], text: str, size: int, height: int) -> None:
    for row, line in enumerate(lines):
        draw.text((12, 10 + row * height), line, fill=_INK, font=_font(text, size))

"""From a recording to the features of its samples: read, cut, resample, face forward, encode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from ds_hymotion.data.drops import (
    GLITCH,
    NOT_A_MOTION,
    NOT_FINITE,
    TOO_FAR,
    TOO_LONG,
    TOO_SHORT,
    UNREADABLE,
    WRONG_WINDOW,
    Drop,
)
from ds_hymotion.data.hints import hints_of
from ds_hymotion.data.sources import Clip, Recording, lies_in
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import AmassClip, FormatError, NotAMotion, read_amass, velocity_outliers
from ds_hymotion.formats.humanml3d import INDEX_FPS, Caption, source_window
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import Representation
from ds_hymotion.motion.skeleton import JOINTS_24
from ds_hymotion.motion.transforms import canonical, face_forward, mirror, resample
from ds_hymotion.text.mirror import mirror_caption

END_TOLERANCE = 0.2
"""Seconds by which a caption may end past its clip: times are rounded, and were counted at 20 fps or less."""
_FAR = 1000.0  # metres; no capture room is that large, and one such clip would ruin mean and std


@dataclass(frozen=True)
class ClipSettings:
    """How recordings become samples; see the flags of ``launch/prepare.py``."""

    representation: Representation
    fps: float
    min_frames: int
    max_frames: int | None
    long_clips: str
    mirror: bool
    rates: tuple[tuple[str, float], ...]
    max_joint_speed: float
    outliers: str


@dataclass(frozen=True)
class PreparedSample:
    """One sample; ``features`` is [T, C] float32, ``span`` in seconds of the recording."""

    id: str
    clip: str
    captions: tuple[str, ...]
    hints: tuple[str, ...]
    span: tuple[float, float]
    mirrored: bool
    features: np.ndarray


@dataclass(frozen=True)
class Glitch:
    """The fastest turn of a joint between two frames of a clip, where it is faster than bodies move."""

    file: str
    source: str
    id: str
    joint: str
    frame: int
    degrees_per_second: float


@dataclass(frozen=True)
class Outcome:
    """All that one recording gave."""

    recording: Recording
    samples: tuple[PreparedSample, ...]
    drops: tuple[Drop, ...]
    glitches: tuple[Glitch, ...]
    cropped: tuple[str, ...]


@dataclass(frozen=True)
class _Piece:
    """Frames [first, last) of a resampled clip; ``captions`` and ``mirrored`` as texts."""

    name: str
    first: int
    last: int
    captions: tuple[str, ...]
    mirrored: tuple[str, ...]


class _Left(Exception):
    """A clip is left out: reason, detail."""


def prepare_recording(recording: Recording, settings: ClipSettings) -> Outcome:
    """Read one recording and make its samples. Whatever is wrong with it ends in ``drops``, never in an exception."""
    work = _Work(recording, settings)
    try:
        motion, stated_rate = _read(recording, settings)
    except _Left as left:
        for clip in recording.clips:
            work.drop(clip.id, len(clip.captions), *left.args)
        return work.outcome()
    for clip in recording.clips:
        with work.dropping(clip.id, len(clip.captions)):
            work.clip(motion, stated_rate, clip)
    return work.outcome()


class _Work:
    """One recording's results as they come."""

    def __init__(self, recording: Recording, settings: ClipSettings) -> None:
        self.recording = recording
        self.settings = settings
        self.samples: list[PreparedSample] = []
        self.drops: list[Drop] = []
        self.glitches: list[Glitch] = []
        self.cropped: list[str] = []

    def outcome(self) -> Outcome:
        found = (self.samples, self.drops, self.glitches, self.cropped)
        return Outcome(self.recording, *map(tuple, found))  # type: ignore[arg-type]

    def drop(self, name: str, captions: int, reason: str, detail: str) -> None:
        self.drops.append(Drop(self.recording.file, self.recording.source, name, reason, detail, captions))

    @contextmanager
    def dropping(self, name: str, captions: int) -> Iterator[None]:
        """What goes wrong inside costs ``name`` alone."""
        try:
            yield
        except _Left as left:
            self.drop(name, captions, *left.args)
        except Exception as error:  # one clip that nobody foresaw must not end the work on thousands
            self.drop(name, captions, UNREADABLE, f"{type(error).__name__}: {error}")

    def clip(self, motion: Motion, stated_rate: float, clip: Clip) -> None:
        first, last = 0, motion.frames
        if clip.row is not None:
            try:
                first, last = source_window(clip.row, stated_rate, motion.frames)
            except UserError as error:
                raise _Left(WRONG_WINDOW, str(error)) from None
        window = motion.crop(first, last)
        farthest = float(window.translation.abs().max())
        if farthest > _FAR:
            raise _Left(TOO_FAR, f"{farthest:.4g} m")
        self._look_for_glitches(window, clip.id, first)
        whole = canonical(resample(window, self.settings.fps))
        motions = [whole, canonical(mirror(whole))] if self.settings.mirror else [whole]
        start = first / motion.fps
        # The index's captions count seconds of 20 frames, each a stride of int(fps / 20) source frames.
        pace = int(stated_rate / INDEX_FPS) * INDEX_FPS / motion.fps if clip.row is not None else 1.0
        for piece in self._pieces(clip, whole.frames, pace):
            with self.dropping(piece.name, len(piece.captions)):
                features = [_features(motion, piece, self.settings.representation) for motion in motions]
                self._add(clip, piece, start, features)

    def _add(self, clip: Clip, piece: _Piece, start: float, features: list[np.ndarray]) -> None:
        begin, end = (round(start + frame / self.settings.fps, 6) for frame in (piece.first, piece.last))
        for mirrored, values in enumerate(features):
            self.samples.append(
                PreparedSample(
                    id="M" + piece.name if mirrored else piece.name,
                    clip=clip.id,
                    captions=piece.mirrored if mirrored else piece.captions,
                    hints=hints_of(self.recording.labels, begin, end, bool(mirrored)),
                    span=(begin, end),
                    mirrored=bool(mirrored),
                    features=values,
                )
            )

    def _look_for_glitches(self, window: Motion, clip: str, first: int) -> None:
        outliers = velocity_outliers(window, self.settings.max_joint_speed)
        if not outliers:
            return
        frame, joint, degrees = max(outliers, key=lambda outlier: outlier[2])
        speed = round(degrees * window.fps, 1)
        glitch = Glitch(self.recording.file, self.recording.source, clip, JOINTS_24[joint], first + frame, speed)
        self.glitches.append(glitch)
        if self.settings.outliers == "drop":
            raise _Left(GLITCH, f"{glitch.joint}, {glitch.degrees_per_second:g} degrees/s at frame {glitch.frame}")

    def _pieces(self, clip: Clip, frames: int, pace: float) -> Iterator[_Piece]:
        """The whole clip for captions without times, and a piece for every distinct pair of times.

        ``pace`` is the length of a caption's second in seconds.
        """
        settings = self.settings
        seconds = frames / settings.fps
        published = _by_span(clip.mirrored_captions or ())
        for times, captions in _by_span(clip.captions).items():
            first, last, name = 0, frames, clip.id
            if times is not None:
                if times != (0.0, clip.duration):
                    name = f"{clip.id}_{times[0]!r}-{times[1]!r}"
                begin, end = (second * pace for second in times)
                if begin >= seconds or end > seconds + END_TOLERANCE:
                    words = f"{begin:g} to {end:g} s of {seconds:.4g} s"
                    self.drop(name, len(captions), WRONG_WINDOW, words)
                    continue
                first, last = (min(round(second * settings.fps), frames) for second in (begin, end))
            mirrored = published.get(times) or tuple(mirror_caption(text) for text in captions)
            length, limit = last - first, settings.max_frames or last - first
            if length < settings.min_frames:
                self.drop(name, len(captions), TOO_SHORT, f"{length} frames at {settings.fps:g} fps")
            elif length <= limit:
                yield _Piece(name, first, last, captions, mirrored)
            elif settings.long_clips == "drop":
                self.drop(name, len(captions), TOO_LONG, f"{length} frames at {settings.fps:g} fps")
            elif settings.long_clips == "crop":
                self.cropped.append(name)
                yield _Piece(name, first, first + limit, captions, mirrored)
            else:
                for part, start in enumerate(range(first, last, limit)):
                    end_frame = min(start + limit, last)
                    if end_frame - start < settings.min_frames:
                        words = f"the last {end_frame - start} of {length} frames at {settings.fps:g} fps"
                        self.drop(f"{name}_part{part}", 0, TOO_SHORT, words)
                        continue
                    yield _Piece(f"{name}_part{part}", start, end_frame, captions, mirrored)


def _features(motion: Motion, piece: _Piece, representation: Representation) -> np.ndarray:
    if (piece.first, piece.last) != (0, motion.frames):
        motion = face_forward(motion.crop(piece.first, piece.last))
    features = representation.encode(motion).to(torch.float32)
    if not bool(features.isfinite().all()):
        raise _Left(NOT_FINITE, "after encoding")
    return np.ascontiguousarray(features.numpy())


def _read(recording: Recording, settings: ClipSettings) -> tuple[Motion, float]:
    """The motion at its right rate, and the rate that the file states (which HumanML3D's index counts by)."""
    deepest = sorted(settings.rates, key=lambda entry: entry[0].count("/"))
    rate = next((wanted for folder, wanted in reversed(deepest) if lies_in(recording.source, folder)), None)
    try:
        clip = _read_at(recording, rate)
    except NotAMotion as error:
        raise _Left(NOT_A_MOTION, error.detail) from None
    except FormatError as error:
        raise _Left(error.reason, error.detail) from None
    except Exception as error:
        raise _Left(UNREADABLE, f"{type(error).__name__}: {error}") from None
    return replace(clip.motion, fps=rate or clip.rate), clip.rate


def _read_at(recording: Recording, rate: float | None) -> AmassClip:
    try:
        return read_amass(recording.path)
    except FormatError:
        if rate is None:
            raise
        return read_amass(recording.path, fps=rate)


def _by_span(captions: tuple[Caption, ...]) -> dict[tuple[float, float] | None, tuple[str, ...]]:
    """Caption texts by (start, end) in seconds, None for the whole clip; in the order of first appearance."""
    spans: dict[tuple[float, float] | None, tuple[str, ...]] = {}
    for caption in captions:
        times = (caption.start_s, caption.end_s)
        key = None if times == (0.0, 0.0) else times
        spans[key] = (*spans.get(key, ()), caption.text.strip())
    return spans

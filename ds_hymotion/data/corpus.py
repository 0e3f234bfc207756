"""The prepared corpus: motions as features, with captions and splits, checked on opening and read memory-mapped."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ds_hymotion.data.splits import SPLITS
from ds_hymotion.errors import UserError
from ds_hymotion.formats.humanml3d import Caption
from ds_hymotion.formats.tensors import TensorFiles, read_json
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.motion.skeleton import Skeleton

FORMAT = "ds_hymotion.corpus"
VERSION = 2
READABLE = (1, 2)
"""Version 1 has no action hints."""
HEADER, SAMPLES, STATISTICS, REPORT = "corpus.json", "samples.jsonl", "statistics.safetensors", "report.json"
TEXT = "text"
ACTION_TYPES_FILE, ACTION_REPORT, ACTION_PICTURE = "actions.safetensors", "actions.json", "actions.png"
PREPARE_AGAIN = "prepare the corpus again with launch/prepare.py --overwrite"


class UnreadableSample(UserError):
    """The features of one sample cannot be read or are damaged; the other samples may be whole."""


@dataclass(frozen=True)
class Sample:
    """One motion with its captions.

    Attributes:
        index: position in ``Corpus.samples``.
        id: unique name; a mirrored copy is "M" + the original's.
        source: the recording that it was cut from; samples of one recording share a split.
        frames: length at the corpus's frame rate.
        captions: at least one, each describing the whole sample (the text "" for a motion without words).
        span: first and last moment in the recording, in seconds of its own time.
        split: "train", "val" or "test".
        mirrored: whether left and right were exchanged.
        action: the action type, if one was given.
        hints: words of action labels, such as BABEL's categories; may be empty.
    """

    index: int
    id: str
    source: str
    frames: int
    captions: tuple[Caption, ...]
    span: tuple[float, float]
    split: str
    mirrored: bool
    action: str | None
    hints: tuple[str, ...] = ()


class Corpus:
    """A folder that ``launch/prepare.py`` made; see :class:`ds_hymotion.data.writer.CorpusWriter` for its files.

    Attributes:
        folder: where it lies.
        header: ``corpus.json``.
        representation: what the channels mean.
        fps: frames per second.
        skeleton: the rest skeleton the features were computed with.
        samples: all samples.
        mean, std: [C] over the training split.
        joint_variance: [J] rad², over the training split.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.folder = folder
        self.header = dict(header)
        self.representation = _representation(header, folder / HEADER)
        self.fps = float(header["fps"])
        if not 0 < self.fps < math.inf:
            raise UserError(f"{folder / HEADER} has fps = {self.fps}, not a rate such as 30: {PREPARE_AGAIN}")
        self._files = TensorFiles(folder, PREPARE_AGAIN)
        skeleton = header["skeleton"]
        offsets = torch.tensor(skeleton["offsets"], dtype=torch.float32)
        self.skeleton = Skeleton(tuple(skeleton["names"]), tuple(skeleton["parents"]), offsets)
        self.samples, self._places = _read_samples(folder / SAMPLES, int(header["counts"]["samples"]))
        self.mean, self.std, self.joint_variance = self._read_statistics()
        self._check_shards()

    @classmethod
    def open(cls, path: Path | str) -> Corpus:
        """Open and check a corpus: format, version, sample list, and every shard's names, shapes and length.

        Raises:
            UserError: naming the file and what to do.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise UserError(f"no corpus at {folder}: make one with launch/prepare.py --data_dir DIR --out {folder}")
        header = read_json(folder / HEADER, f"{folder} is no prepared corpus; make one with launch/prepare.py")
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise UserError(f"{folder / HEADER} does not describe a prepared corpus: {PREPARE_AGAIN}")
        if header.get("version") not in READABLE:
            raise UserError(
                f"{folder / HEADER} is of version {header.get('version')}, this program reads versions "
                f"{' and '.join(map(str, READABLE))}: {PREPARE_AGAIN}"
            )
        try:
            return cls(folder, header)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / HEADER} lacks or misnames {error}: {PREPARE_AGAIN}") from None

    def __len__(self) -> int:
        return len(self.samples)

    def split(self, name: str) -> list[Sample]:
        """The samples of "train", "val" or "test", in corpus order."""
        if name not in SPLITS:
            raise UserError(f"unknown split {name!r}: choose one of {', '.join(SPLITS)}")
        return [sample for sample in self.samples if sample.split == name]

    def features(self, sample: Sample) -> Tensor:
        """The sample's features [T, C] float32, not normalised. Only this tensor is read.

        Raises:
            UnreadableSample: the shard is gone or damaged, or the values are not those that were written.
        """
        shard, checksum = self._places[sample.index]
        path = self.folder / shard
        try:
            features = self._files.open(shard).get_tensor(sample.id)
        except Exception as error:  # safetensors raises its own kind, the operating system others
            words = f"sample {sample.id!r} in {path} cannot be read ({error}): {PREPARE_AGAIN}"
            raise UnreadableSample(words) from None
        wanted = (sample.frames, self.representation.channels)
        if tuple(features.shape) != wanted or features_checksum(features) != checksum:
            raise UnreadableSample(f"sample {sample.id!r} in {path} is damaged: {PREPARE_AGAIN}")
        return features

    def motion(self, sample: Sample) -> Motion:
        """The sample as a motion of the corpus's frame rate."""
        return self.representation.to_motion(self.features(sample), self.fps)

    def text_cache_folder(self, encoder_name: str) -> Path:
        """Where the features of that text encoder lie, or would lie."""
        return text_cache_folder(self.folder, encoder_name)

    def _read_statistics(self) -> tuple[Tensor, Tensor, Tensor]:
        handle = self._files.open(STATISTICS)
        wanted = {
            "mean": (self.representation.channels,),
            "std": (self.representation.channels,),
            "joint_variance": (self.representation.joints,),
        }
        found = {name: handle.get_tensor(name) for name in wanted if name in handle.keys()}  # noqa: SIM118
        for name, shape in wanted.items():
            if name not in found or tuple(found[name].shape) != shape or not bool(found[name].isfinite().all()):
                raise UserError(f"{self.folder / STATISTICS} has no finite {name!r} of shape {shape}: {PREPARE_AGAIN}")
        return found["mean"], found["std"], found["joint_variance"]

    def _check_shards(self) -> None:
        names = {shard: set(self._files.open(shard).keys()) for shard in {place[0] for place in self._places}}
        for sample, (shard, _) in zip(self.samples, self._places, strict=True):
            path = self.folder / shard
            if sample.id not in names[shard]:
                raise UserError(f"{path} lacks sample {sample.id!r}: {PREPARE_AGAIN}")
            entry = self._files.open(shard).get_slice(sample.id)
            shape, wanted = list(entry.get_shape()), [sample.frames, self.representation.channels]
            if shape != wanted or entry.get_dtype() != "F32":
                raise UserError(
                    f"{path} holds sample {sample.id!r} as {entry.get_dtype()} {shape}, {SAMPLES} says F32 {wanted}: "
                    + PREPARE_AGAIN
                )


def text_cache_folder(corpus: Path, encoder_name: str) -> Path:
    """The folder of an encoder's features inside a corpus."""
    return corpus / TEXT / encoder_name


def features_checksum(features: Tensor) -> int:
    """CRC-32 of the float32 values, row by row."""
    return zlib.crc32(features.contiguous().numpy().data)


def _representation(header: Mapping[str, Any], path: Path) -> Representation:
    found = representation(str(header["representation"]), **header["representation_options"])
    if header["channel_names"] != found.channel_names():
        raise UserError(f"{path} lists other channels than {found.name!r} has in this version: {PREPARE_AGAIN}")
    return found


def _read_samples(path: Path, count: int) -> tuple[list[Sample], list[tuple[str, int]]]:
    """The samples, and for each its shard and checksum."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): {PREPARE_AGAIN}") from None
    if len(lines) != count:
        raise UserError(f"{path} has {len(lines)} lines, {HEADER} counts {count} samples: {PREPARE_AGAIN}")
    samples: list[Sample] = []
    places: list[tuple[str, int]] = []
    for index, line in enumerate(lines):
        try:
            row = json.loads(line)
            sample = Sample(
                index=index,
                id=str(row["id"]),
                source=str(row["source"]),
                frames=int(row["frames"]),
                captions=tuple(Caption(str(text), 0.0, 0.0) for text in row["captions"]),
                span=(float(row["span"][0]), float(row["span"][1])),
                split=str(row["split"]),
                mirrored=bool(row["mirrored"]),
                action=None if row["action"] is None else str(row["action"]),
                hints=tuple(str(word) for word in row.get("hints", ())),
            )
            places.append((str(row["shard"]), int(row["crc32"])))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"{path} line {index + 1} is damaged ({error!r}): {PREPARE_AGAIN}") from None
        if sample.split not in SPLITS or not sample.captions or sample.frames < 1:
            raise UserError(f"{path} line {index + 1} has a wrong split, no caption or no frame: {PREPARE_AGAIN}")
        samples.append(sample)
    if len({sample.id for sample in samples}) != len(samples):
        raise UserError(f"{path} names a sample twice: {PREPARE_AGAIN}")
    return samples, places

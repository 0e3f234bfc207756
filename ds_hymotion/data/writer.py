"""Writes a prepared corpus: streamed into ``OUT.partial``, resumable at any point, published by one rename."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ds_hymotion.data.chunks import Chunks
from ds_hymotion.data.corpus import HEADER, REPORT, SAMPLES, STATISTICS, features_checksum
from ds_hymotion.data.corpus_statistics import corpus_statistics
from ds_hymotion.data.header import corpus_header
from ds_hymotion.data.publishing import (
    PLAN,
    already_made,
    clear,
    difference,
    fingerprint_of,
    finish_replacement,
    is_foreign,
    partial_folder,
    publish,
    replaced_folder,
)
from ds_hymotion.data.splits import SPLITS
from ds_hymotion.data.summary import Counts
from ds_hymotion.data.workers import Workers
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import read_json, remove_temporary_files, save_tensors, write_atomically, write_json
from ds_hymotion.motion.representation import Representation

_JOBS = 5000
"""So many jobs without a full shard are remembered all the same: thousands of bad files are not read twice."""


class CorpusWriter:
    """Samples in, a folder that :class:`ds_hymotion.data.corpus.Corpus` opens out.

    ``corpus.json`` says what the features are and how they were made; ``samples.jsonl`` has a line per sample;
    ``motion-00000.safetensors`` … hold one float32 tensor [T, C] per sample; ``statistics.safetensors`` has mean, std
    and joint variance of the training split; ``report.json`` what was kept and what was not.

    Work comes in jobs, numbered from 0 and always in the same order. After a kill, a writer of the same ``fingerprint``
    starts at ``next_job`` and ends with the same bytes. Use it as a context manager.

    Args:
        out: the folder to make.
        representation: what the features are.
        fps: their frame rate.
        arguments: what the corpus was made from, for ``corpus.json``.
        fingerprint: equal for two preparations that must give the same bytes; by default from the arguments.
        shard_mb: a shard is closed once it holds this much.
        overwrite: replace a corpus at ``out`` (its text features are kept), and an unfinished one beside it.

    Raises:
        UserError: ``out`` or ``out.partial`` is something else; nothing is deleted then.
    """

    def __init__(
        self,
        out: Path | str,
        representation: Representation,
        fps: float,
        arguments: Mapping[str, Any],
        fingerprint: str = "",
        shard_mb: float = 64,
        overwrite: bool = False,
    ) -> None:
        self.out = Path(os.path.normpath(out))
        if not self.out.name or self.out.name == "..":
            raise UserError(f"--out {out} is not the name of a folder to make: give one, such as corpus")
        self.folder = partial_folder(self.out)
        self.representation = representation
        self.fps = float(fps)
        self.arguments = dict(arguments)
        self.fingerprint = fingerprint or fingerprint_of(self.arguments)
        self.next_job = 0
        self.finished = False
        self._limit = shard_mb * 2**20
        self._shards = 0
        self._chunks = Chunks(self.folder)
        self._last_job = 0
        self._ids: set[str] = set()
        self._pending: dict[str, Tensor] = {}
        self._pending_rows: list[dict[str, Any]] = []
        self._pending_notes: list[dict[str, Any]] = []
        self._lock = -1
        self._claim(overwrite)

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._lock >= 0 and not self.finished and not self._shards:
                with suppress(OSError):  # what went wrong before says more
                    clear(self.folder)  # nothing that another run could go on from
                    self.folder.rmdir()
        finally:
            self.close()

    @property
    def samples(self) -> int:
        """How many there are so far, those of an interrupted run included."""
        return len(self._ids)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The samples so far, as lines of ``samples.jsonl``; read from the disk, so that they need no memory."""
        yield from self._chunks.rows()
        yield from self._pending_rows

    def notes(self) -> Iterator[dict[str, Any]]:
        """What :meth:`note` was given so far."""
        yield from self._chunks.notes()
        yield from self._pending_notes

    def bytes_present(self) -> int:
        """What lies on the disk of it."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def __contains__(self, sample: str) -> bool:
        return sample in self._ids

    def add(
        self,
        id: str,
        source: str,
        features: Tensor,
        captions: Sequence[str],
        span: tuple[float, float] | None = None,
        split: str = "train",
        mirrored: bool = False,
        action: str | None = None,
        hints: Sequence[str] = (),
    ) -> None:
        """Add one sample to the current job; ``features`` are [T, C] float32, finite and not normalised."""
        if features.ndim != 2 or features.shape[1] != self.representation.channels or features.dtype != torch.float32:
            raise ValueError(
                f"sample {id!r} is {features.dtype} {tuple(features.shape)}, "
                f"not float32 [T, {self.representation.channels}]"
            )
        if len(features) < 1 or not np.isfinite(features.numpy()).all():  # torch would start threads
            raise ValueError(f"sample {id!r} has no frame, or values that are not finite")
        if id in self._ids or not captions or split not in SPLITS:
            raise ValueError(f"sample {id!r} occurs twice, has no caption, or a split other than {SPLITS}: {split!r}")
        self._ids.add(id)
        self._pending[id] = features
        self._pending_rows.append(
            {
                "id": id,
                "source": source,
                "frames": len(features),
                "captions": list(captions),
                "span": list(span or (0.0, len(features) / self.fps)),
                "split": split,
                "mirrored": mirrored,
                "action": action,
                "hints": list(hints),
                "shard": f"motion-{self._shards:05d}.safetensors",
                "crc32": features_checksum(features),
            }
        )

    def note(self, kind: str, value: Any) -> None:
        """Remember something about the current job, such as a file that was left out."""
        self._pending_notes.append({"kind": kind, "value": value})

    def end_job(self) -> None:
        """Close the current job; the shard is written once it is full."""
        self.next_job += 1
        full = sum(features.nbytes for features in self._pending.values()) >= self._limit
        if full or self.next_job - self._last_job >= _JOBS:
            self._flush()

    def finish(
        self,
        split_of: Callable[[Mapping[str, Any]], str] | None = None,
        report: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        workers: Workers | None = None,
        before_publishing: Callable[[Path], object] | None = None,
    ) -> Path:
        """Write what belongs to the whole corpus and rename it into place; return its folder.

        Args:
            split_of: the split of a sample's row, where it was not known before.
            report: the counts of all samples to ``report.json``.
            workers: processes for mean, std and joint variance; this one by default.
            before_publishing: adds files of its own to the folder that is then published.

        Raises:
            UserError: there is no training sample.
        """
        if self._pending_rows or self._pending_notes:
            self._flush()
        train: dict[str, list[str]] = {}
        counts = Counts(self.fps)

        def write_samples(path: Path) -> None:
            with path.open("w", encoding="ascii", newline="\n") as file:
                for row in self.rows():
                    row["split"] = split_of(row) if split_of is not None else row["split"]
                    counts.add(row)
                    if row["split"] == "train":
                        train.setdefault(row["shard"], []).append(row["id"])
                    # Escaped, so that a line separator inside a caption is no line of the file.
                    file.write(json.dumps(row) + "\n")

        write_atomically(self.folder / SAMPLES, write_samples)
        if not train:
            raise UserError(
                f"no sample of {self.out} is in the training split, which mean and std come from: "
                "name its clips in train.txt, or give --split a larger first share"
            )
        statistics = corpus_statistics(self.folder, train, self.representation, workers or Workers(1))
        save_tensors(self.folder / STATISTICS, statistics)
        write_json(self.folder / REPORT, {} if report is None else report(counts.values()))
        if before_publishing is not None:
            before_publishing(self.folder)
        header = corpus_header(self.representation, self.fps, counts.values(), self.arguments, self.fingerprint)
        write_json(self.folder / HEADER, header)
        self._publish()
        return self.out

    def close(self) -> None:
        """Give up the lock; an unfinished corpus stays for the next run."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _flush(self) -> None:
        """Write the pending shard, then the chunk marker that makes it count."""
        if self._pending:
            save_tensors(self.folder / f"motion-{self._shards:05d}.safetensors", self._pending)
            self._shards += 1
        self._chunks.append(self.next_job, self._pending_rows, self._pending_notes)
        self._last_job = self.next_job
        self._pending, self._pending_rows, self._pending_notes = {}, [], []

    def _claim(self, overwrite: bool) -> None:
        finish_replacement(self.out)
        if overwrite and self.out.exists() and replaced_folder(self.out).exists():
            raise UserError(
                f"{replaced_folder(self.out)} holds files that an earlier --overwrite found in {self.out} and left "
                "there: move them away first"
            )
        if already_made(self.out, self.fingerprint, self.arguments, overwrite):
            self.finished = True
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UserError(f"{self.folder} cannot be made ({error.strerror}): choose another --out") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UserError(f"{self.folder} is in use by another preparation: wait until that has ended") from None
        try:
            self._resume(overwrite)
        except BaseException:
            self.close()
            raise

    def _resume(self, overwrite: bool) -> None:
        foreign = is_foreign(self.folder)
        if foreign is not None:
            raise UserError(
                f"{self.folder} holds other files ({foreign}), where the unfinished corpus has to go: "
                "move them, or choose another --out"
            )
        remove_temporary_files(self.folder)
        done = (self.folder / HEADER).exists()
        if not done and not (self.folder / PLAN).exists():
            write_json(self.folder / PLAN, {"fingerprint": self.fingerprint, "arguments": self.arguments})
        plan = read_json(self.folder / (HEADER if done else PLAN), f"delete {self.folder}")
        if plan.get("fingerprint") == self.fingerprint:
            if done:
                self._publish()
            else:
                self._read_chunks()
            return
        if not overwrite:
            raise UserError(
                f"{self.folder} holds an unfinished corpus made differently ({difference(plan, self.arguments)}): "
                "finish it with its own arguments, give --overwrite to start anew, or choose another --out"
            )
        clear(self.folder)
        self._resume(overwrite=False)

    def _read_chunks(self) -> None:
        for chunk in self._chunks.take_up():
            self._ids.update(row["id"] for row in chunk["rows"])
            self.next_job = self._last_job = int(chunk["next_job"])
            self._shards += bool(chunk["rows"])

    def _publish(self) -> None:
        publish(self.out)
        self.finished = True

"""The work behind ``launch/prepare.py``: from motion files and captions to a prepared corpus."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ds_hymotion.data.check_against import REFUSED, Reference, check_against, require_same_layout
from ds_hymotion.data.clips import Outcome, prepare_recording
from ds_hymotion.data.corpus import REPORT, SAMPLES, Corpus, text_cache_folder
from ds_hymotion.data.disk_space import corpus_bytes, require_disk_space
from ds_hymotion.data.drops import EXCLUDED, INTENDED, NAME_TAKEN, NO_CAPTION, Drop
from ds_hymotion.data.hints import with_labels
from ds_hymotion.data.joins import join_with_annotations, join_with_index, join_with_texts
from ds_hymotion.data.names import Exclusions, Labels, read_actions, read_exclusions
from ds_hymotion.data.preparation import Preparation
from ds_hymotion.data.publishing import fingerprint_of, replaced_folder
from ds_hymotion.data.sources import Joined, MotionFiles, Recording, lies_in, source_of
from ds_hymotion.data.splits import read_split_lists, split_by_hash, straddling
from ds_hymotion.data.summary import report_of, table
from ds_hymotion.data.workers import Workers
from ds_hymotion.data.writer import CorpusWriter
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import TEMPORARY, read_json, write_json
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.encoder import TextEncoder
from ds_hymotion.text.encoders import text_encoder
from ds_hymotion.text.encoding import encode_captions, text_lines
from ds_hymotion.text.sources import PRECISIONS

USUAL_TOKENS = 30
"""Tokens of a caption, about."""
__all__ = ["Preparation", "check_corpus", "prepare"]


def prepare(task: Preparation, say: Callable[[str], None] = print, reference: Reference | None = None) -> Path:
    """Make the corpus, or the part of it that an earlier run did not reach; return its folder.

    Args:
        reference: a checkpoint's mean and std that the corpus must fit.

    Raises:
        UserError: a wrong argument, nothing usable, a full disk, with ``strict`` the first thing that would be left
            out, or a corpus (then finished) that does not fit the reference.
    """
    try:
        if reference is not None:
            require_same_layout(task.layout(), reference)
        folder = _prepare(task, say)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or task.out}: {error.strerror or error}; put that right and run the command again, "
            "it goes on where it stopped"
        ) from None
    if reference is not None:
        check_corpus(folder, reference, say)
    return folder


def check_corpus(folder: Path, reference: Reference, say: Callable[[str], None] = print) -> None:
    """Compare a finished corpus with a checkpoint and print what is furthest off.

    Raises:
        UserError: the two cannot go together.
    """
    corpus = Corpus.open(folder)
    found = check_against(corpus.mean, corpus.std, corpus.representation, reference)
    say(found.table(reference.name))
    if found.verdict == REFUSED:
        raise UserError(f"{folder} does not fit {reference.name}: {'; '.join(found.reasons)}")


def _prepare(task: Preparation, say: Callable[[str], None]) -> Path:
    encoder = text_encoder(task.encode_text, sources=task.text_sources) if task.encode_text else None
    lists = Labels(read_split_lists(task.split_lists)) if task.split_lists else None
    actions = read_actions(task.actions_file)
    excluded = read_exclusions(task.exclude)
    joined = _joined(task, lists, excluded)
    fingerprint = fingerprint_of(
        task.arguments(), _inputs(joined), lists and lists.labels, actions.labels, excluded.lines
    )
    place = (task.out, task.layout(), task.fps, task.arguments(), fingerprint, task.shard_mb, task.overwrite)
    with Workers(task.workers) as workers, CorpusWriter(*place) as writer:
        if writer.finished:
            say(f"{task.out} is already prepared with these arguments; --overwrite makes it again")
            for line in text_lines(_encode_text(task, encoder, task.out)):
                say(f"text      {line}")
            return task.out
        if task.strict:
            _stop_at([*joined.drops, *_drops(writer)])
        needed = corpus_bytes(joined.recordings, task.bytes_per_second()) + _text_bytes(joined, encoder, task)
        require_disk_space(task.out, needed, writer.bytes_present())
        if writer.next_job:
            say(f"going on after {writer.next_job:,} of {len(joined.recordings):,} recordings")
        _Writing(writer, lists, actions, excluded, task).run(joined.recordings, workers)
        if not writer.samples:
            drops = [*joined.drops, *_drops(writer)]
            hint = "; captions come from name.txt beside name.npz, --texts, --index or --annotations"
            wordless = any(drop.reason == NO_CAPTION for drop in drops)
            raise UserError(f"nothing usable in {task.data_dir}: {_reasons(drops)}{hint if wordless else ''}")
        if actions.labels and not any(row["action"] for row in writer.rows()):
            raise UserError(f"{task.actions_file} names {next(iter(actions.labels))!r} but no usable clip")
        writer.finish(
            split_of=None if lists is not None else _by_hash(writer, task),
            report=lambda counts: report_of(counts, joined.given, _notes(joined, writer, lists, excluded)),
            workers=workers,
            before_publishing=partial(_encode_text, task, encoder),
        )
    say(table(read_json(task.out / REPORT, "prepare the corpus again")))
    say(f"{task.out} is ready; {REPORT} in it names everything that was left out")
    if replaced_folder(task.out).exists():
        say(f"files that were not the replaced corpus's own are in {replaced_folder(task.out)}")
    return task.out


def _joined(task: Preparation, lists: Labels | None, excluded: Exclusions) -> Joined:
    """All that is to be prepared, and what was left out before any motion was read."""
    files = MotionFiles(task.data_dir)
    if task.annotations is not None:
        joined = join_with_annotations(files, task.annotations)
    elif task.index is not None:
        assert task.texts is not None
        joined = join_with_index(files, task.index, task.texts, task.unconditional)
    else:
        joined = join_with_texts(files, task.texts, task.unconditional, task.mirror)
    _require_folders(task, files)
    joined = excluded.without(joined)
    if lists is not None:
        joined = lists.only(joined)
    return with_labels(joined, files, task.babel) if task.babel else joined


def _require_folders(task: Preparation, files: MotionFiles) -> None:
    for folder, fps in task.folder_rates():
        if not any(lies_in(source_of(files.file(path)), folder) for path in files.sizes):
            raise UserError(f"--rates {folder}={fps:g} names no folder below {task.data_dir} that holds motions")


def _inputs(joined: Joined) -> Iterator[Any]:
    """All that the samples depend on besides the arguments; files by their size, so that copies are the same."""
    for recording in joined.recordings:
        yield {**asdict(recording), "path": None}
    yield [[drop.row() for drop in joined.drops], list(joined.bad_lines), dict(joined.given)]


class _Writing:
    """Outcomes into the writer, in order."""

    def __init__(
        self, writer: CorpusWriter, lists: Labels | None, actions: Labels, excluded: Exclusions, task: Preparation
    ) -> None:
        self.writer = writer
        self.lists = lists
        self.actions = actions
        self.excluded = excluded
        self.task = task

    def run(self, recordings: tuple[Recording, ...], workers: Workers) -> None:
        """Prepare the recordings that the writer lacks."""
        missing = recordings[self.writer.next_job :]
        outcomes = workers.map(partial(prepare_recording, settings=self.task.clip_settings()), missing)
        for outcome in tqdm(
            outcomes,
            desc="motions",
            unit="file",
            total=len(recordings),
            initial=self.writer.next_job,
            disable=not self.task.progress,
        ):
            self._write(outcome)
            self.writer.end_job()

    def _write(self, outcome: Outcome) -> None:
        source, writer = outcome.recording.source, self.writer
        drops = list(outcome.drops)
        for sample in outcome.samples:
            reason = EXCLUDED if sample.id in self.excluded else NAME_TAKEN if sample.id in writer else None
            if reason is not None:
                captions = 0 if sample.mirrored else len(sample.captions)
                drops.append(Drop(outcome.recording.file, source, sample.id, reason, "", captions))
                continue
            writer.add(
                sample.id,
                source,
                torch.from_numpy(sample.features),
                sample.captions,
                sample.span,
                split=(self.lists and self.lists.of(sample.clip, source)) or "train",
                mirrored=sample.mirrored,
                action=self.actions.of(sample.id, source) or self.actions.of(sample.clip, source),
                hints=sample.hints,
            )
        if self.task.strict:
            _stop_at(drops)
        for drop in drops:
            writer.note("dropped", drop.row())
        for glitch in outcome.glitches:
            writer.note("glitch", asdict(glitch))
        for name in outcome.cropped:
            writer.note("cropped", name)


def _by_hash(writer: CorpusWriter, task: Preparation) -> Callable[[Mapping[str, Any]], str]:
    split = split_by_hash({row["source"] for row in writer.rows()}, task.split, task.seed)
    return lambda row: split[row["source"]]


def _notes(
    joined: Joined, writer: CorpusWriter, lists: Labels | None, excluded: Exclusions
) -> Iterator[Mapping[str, Any]]:
    """Everything for the report."""
    yield from ({"kind": "dropped", "value": drop.row()} for drop in joined.drops)
    yield from ({"kind": "bad_line", "value": line} for line in joined.bad_lines)
    if lists is not None:
        crossing = straddling((row["source"], row["split"]) for row in writer.rows())
        yield from ({"kind": "straddling", "value": source} for source in crossing)
    lines = excluded.unmatched([*joined.drops, *_drops(writer)])
    yield from ({"kind": "unmatched", "value": line} for line in lines)
    yield from writer.notes()


def _stop_at(drops: Iterable[Drop]) -> None:
    for drop in drops:
        if drop.reason not in INTENDED:
            raise UserError(f"--strict: {drop}")


def _reasons(drops: list[Drop]) -> str:
    counts = Counter(drop.reason for drop in drops).most_common()
    words = ", ".join(f"{count} {reason}" for reason, count in counts)
    return f"{words}; the first is {drops[0].file} ({drops[0].detail or drops[0].reason})"


def _drops(writer: CorpusWriter) -> Iterator[Drop]:
    return (Drop(**note["value"]) for note in writer.notes() if note["kind"] == "dropped")


def _text_bytes(joined: Joined, encoder: TextEncoder | None, task: Preparation) -> int:
    """About how large the features of all distinct captions will be."""
    if encoder is None:
        return 0
    texts = {caption.text for recording in joined.recordings for clip in recording.clips for caption in clip.captions}
    width = PRECISIONS[task.text_dtype].itemsize
    return len(texts) * (1 + task.mirror) * (USUAL_TOKENS * encoder.token_dim + encoder.pooled_dim) * width


def _encode_text(task: Preparation, encoder: TextEncoder | None, folder: Path) -> dict[str, Any]:
    """Give the corpus in ``folder`` the text features it lacks; return their summary, which its report gets."""
    if encoder is None:
        return {}
    lines = (folder / SAMPLES).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    captions = [caption for line in lines for caption in json.loads(line)["captions"]]
    place, earlier = (text_cache_folder(each, encoder.name) for each in (folder, task.out))
    taken_over = folder != task.out and not place.exists() and earlier.is_dir()
    if taken_over:
        half = place.with_name(place.name + TEMPORARY)
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(earlier, half)
        os.replace(half, place)

    def encode() -> dict[str, Any]:
        return encode_captions(TextCache(place), captions, encoder, PRECISIONS[task.text_dtype], task.progress)

    try:
        found = {encoder.name: encode()}
    except UserError:
        if not taken_over:
            raise
        shutil.rmtree(place)  # features of another kind: the corpus that they belong to is being replaced
        found = {encoder.name: encode()}
    report = read_json(folder / REPORT, "prepare the corpus again")
    write_json(folder / REPORT, {**report, "text": {**report.get("text", {}), **found}})
    return found

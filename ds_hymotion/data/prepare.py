"""The work behind ``launch/prepare.py``: from motion files and captions to a prepared corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ds_hymotion.data.clips import prepare_recording
from ds_hymotion.data.corpus import REPORT, SAMPLES, text_cache_folder
from ds_hymotion.data.drops import Drop
from ds_hymotion.data.preparation import ENCODERS, Preparation
from ds_hymotion.data.publishing import replaced_folder
from ds_hymotion.data.sources import (
    NOT_A_MOTION,
    Joined,
    Recording,
    find_motion_files,
    join_with_index,
    join_with_texts,
)
from ds_hymotion.data.splits import read_split_lists, split_by_hash, straddling
from ds_hymotion.data.summary import counts_of, report_of, table
from ds_hymotion.data.workers import Workers
from ds_hymotion.data.writer import CorpusWriter, fingerprint_of
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import read_json
from ds_hymotion.text.cache import TextCache

__all__ = ["Preparation", "prepare"]
NOT_LISTED, NAME_TAKEN = "not in the split lists", "another sample has this name"


def prepare(task: Preparation, say: Callable[[str], None] = print) -> Path:
    """Make the corpus, or the part of it that an earlier run did not reach; return its folder.

    Raises:
        UserError: a wrong argument, nothing usable, a full disk, or with ``strict`` the first thing that would be left
            out.
    """
    try:
        return _prepare(task, say)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or task.out}: {error.strerror or error}; put that right and run the command again, "
            "it goes on where it stopped"
        ) from None


def _prepare(task: Preparation, say: Callable[[str], None]) -> Path:
    lists = _Labels(read_split_lists(task.split_lists)) if task.split_lists else None
    actions = _Labels(_read_actions(task.actions_file))
    joined = _join(task)
    if lists is not None:
        joined = _only_listed(joined, lists)
    fingerprint = fingerprint_of(task.arguments(), _inputs(joined), lists and lists.labels, actions.labels)
    place = (task.out, task.layout(), task.fps, task.arguments(), fingerprint, task.shard_mb, task.overwrite)
    with Workers(task.workers) as workers, CorpusWriter(*place) as writer:
        if writer.finished:
            say(f"{task.out} is already prepared with these arguments; --overwrite makes it again")
            _encode_text(task, task.out)
            return task.out
        if task.strict:
            _stop_at([*joined.drops, *(Drop(**row) for row in _values(writer, "dropped"))])
        if writer.next_job:
            say(f"going on after {writer.next_job:,} of {len(joined.recordings):,} recordings")
        _write_recordings(writer, joined.recordings, lists, actions, task, workers)
        dropped = [drop.row() for drop in joined.drops] + _values(writer, "dropped")
        if not writer.rows:
            raise UserError(f"nothing usable in {task.data_dir}: {_reasons(dropped)}")
        if actions.labels and not any(row["action"] for row in writer.rows):
            raise UserError(f"{task.actions_file} names {next(iter(actions.labels))!r} but no usable clip")
        notes = [{"kind": "dropped", "value": drop.row()} for drop in joined.drops]
        notes += [{"kind": "bad_line", "value": line} for line in joined.bad_lines]
        if lists is None:
            split = split_by_hash({row["source"] for row in writer.rows}, task.split, task.seed)
        else:
            crossing = straddling((row["source"], row["split"]) for row in writer.rows)
            notes += [{"kind": "straddling", "value": source} for source in crossing]
        writer.finish(
            split_of=None if lists is not None else lambda row: split[row["source"]],
            report=lambda rows: report_of(counts_of(rows, task.fps), [*notes, *writer.notes]),
            workers=workers,
            before_publishing=partial(_encode_text, task),
        )
    say(table(read_json(task.out / REPORT, "prepare the corpus again")))
    say(f"{task.out} is ready; {REPORT} in it names everything that was left out")
    if replaced_folder(task.out).exists():
        say(f"files that were not the replaced corpus's own are in {replaced_folder(task.out)}")
    return task.out


def _join(task: Preparation) -> Joined:
    files = find_motion_files(task.data_dir)
    if task.index is None:
        return join_with_texts(files, task.data_dir, task.texts, task.unconditional)
    assert task.texts is not None
    return join_with_index(files, task.data_dir, task.index, task.texts, task.unconditional)


def _only_listed(joined: Joined, lists: _Labels) -> Joined:
    """Without the clips that no list names."""
    kept: list[Recording] = []
    drops = list(joined.drops)
    for recording in joined.recordings:
        listed = tuple(clip for clip in recording.clips if lists.of(clip.id, recording.source) is not None)
        drops += [Drop(recording.source, clip.id, NOT_LISTED, "") for clip in recording.clips if clip not in listed]
        if listed:
            kept.append(replace(recording, clips=listed))
    return replace(joined, recordings=tuple(kept), drops=tuple(drops))


class _Labels:
    """Labels by name, where a clip may be named by its id, its path below the data folder, or its file name."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)

    def of(self, clip: str, source: str) -> str | None:
        names = (clip, source, source.rsplit("/", 1)[-1])
        return next((self.labels[name] for name in names if name in self.labels), None)


def _read_actions(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    actions = read_json(path, 'give a file of names and action types, such as {"000001": "LOCOMOTION"}')
    if not isinstance(actions, dict) or not all(isinstance(action, str) and action for action in actions.values()):
        raise UserError(f'{path} is not a JSON object of names and action types, such as {{"000001": "LOCOMOTION"}}')
    return actions


def _inputs(joined: Joined) -> list[Any]:
    """All that the samples depend on besides the arguments; files by their size, so that copies are the same."""
    recordings = [
        [recording.source, recording.path.stat().st_size, [asdict(clip) for clip in recording.clips]]
        for recording in joined.recordings
    ]
    return [recordings, [drop.row() for drop in joined.drops], len(joined.bad_lines)]


def _write_recordings(
    writer: CorpusWriter,
    recordings: tuple[Recording, ...],
    lists: _Labels | None,
    actions: _Labels,
    task: Preparation,
    workers: Workers,
) -> None:
    """Prepare the recordings that the writer lacks, in order."""
    missing = recordings[writer.next_job :]
    outcomes = workers.map(partial(prepare_recording, settings=task.clip_settings()), missing)
    bar = tqdm(
        zip(missing, outcomes, strict=True),
        desc="motions",
        unit="file",
        total=len(recordings),
        initial=writer.next_job,
        disable=not task.progress,
    )
    for _, outcome in bar:
        if task.strict:
            _stop_at(outcome.drops)
        for sample in outcome.samples:
            source = outcome.source
            if sample.id in writer:
                writer.note("dropped", Drop(source, sample.id, NAME_TAKEN, "").row())
                continue
            writer.add(
                sample.id,
                source,
                torch.from_numpy(sample.features),
                sample.captions,
                sample.span,
                split=(lists and lists.of(sample.clip, source)) or "train",
                mirrored=sample.mirrored,
                action=actions.of(sample.id, source) or actions.of(sample.clip, source),
            )
        for drop in outcome.drops:
            writer.note("dropped", drop.row())
        for glitch in outcome.glitches:
            writer.note("glitch", asdict(glitch))
        for name in outcome.cropped:
            writer.note("cropped", name)
        writer.end_job()


def _stop_at(drops: Iterable[Drop]) -> None:
    for drop in drops:
        if drop.reason != NOT_A_MOTION:
            raise UserError(f"--strict: {drop}")


def _reasons(dropped: list[dict[str, Any]]) -> str:
    counts = Counter(drop["reason"] for drop in dropped).most_common()
    words = ", ".join(f"{count} {reason}" for reason, count in counts)
    first = dropped[0]
    return f"{words}; the first is {first['source']} ({first['detail'] or first['reason']})"


def _values(writer: CorpusWriter, kind: str) -> list[dict[str, Any]]:
    return [note["value"] for note in writer.notes if note["kind"] == kind]


def _encode_text(task: Preparation, folder: Path) -> None:
    """Give the corpus in ``folder`` the text features it lacks."""
    if task.encode_text is None:
        return
    lines = (folder / SAMPLES).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    captions = [caption for line in lines for caption in json.loads(line)["captions"]]
    cache = TextCache(text_cache_folder(folder, task.encode_text))
    cache.write(captions, ENCODERS[task.encode_text](), progress=task.progress)

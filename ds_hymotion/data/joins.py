"""Motion files joined with their captions: by file, by HumanML3D's index, or by annotations with seconds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ds_hymotion.data.captions import caption_file, read_captions, require_texts_folder
from ds_hymotion.data.drops import MIRRORED, NAME_TAKEN, NO_CAPTION, NOT_A_MOTION, NOT_FOUND, Drop
from ds_hymotion.data.lookup import Lookup, bare, comparable
from ds_hymotion.data.sources import Clip, Joined, MotionFiles, mirrored_originals, source_of
from ds_hymotion.formats.annotations import is_mirrored_id, read_annotations
from ds_hymotion.formats.humanml3d import Caption, IndexRow, read_index

_BODY_FILE = re.compile(r"^((neutral|male|female)_)?shape\.npz$|_stagei\.npz$|^(neutral|male|female)_stageii\.npz$")
RESERVED = "__metadata__"
_NO_WORDS = (Caption(""),)
_ORPHAN = "only the mirrored copy has captions, not the clip itself"
_MADE = "of {}, which --mirror makes itself"


def join_with_texts(files: MotionFiles, texts: Path | None, unconditional: bool, mirror: bool) -> Joined:
    """One clip per file. Captions come from ``texts`` (by relative path, else by name) or from beside the file.

    With ``mirror``, files that are mirrored copies by their names are left out: the copies are made anew.
    """
    require_texts_folder(texts, "the folder that holds the caption .txt files")
    stems = Counter(bare(path.stem) for path in files.sizes)
    names = _unique_names([source_of(files.file(path)) for path in files.sizes])
    copies = mirrored_originals([source_of(files.file(path)) for path in files.sizes]) if mirror else {}
    clips: dict[Path, list[Clip]] = {}
    drops: list[Drop] = []
    bad_lines: list[str] = []
    for path, name in zip(files.sizes, names, strict=True):
        file = files.file(path)
        source = source_of(file)
        if _BODY_FILE.search(path.name):
            drops.append(Drop(file, source, None, NOT_A_MOTION, "a body shape"))
        elif source in copies:
            drops.append(Drop(file, source, name, MIRRORED, _MADE.format(copies[source])))
        else:
            shared = stems[bare(path.stem)] > 1
            place, problem = caption_file(path, source, texts, shared)
            captions = read_captions(place, bad_lines) if place else ()
            published = (
                caption_file(path, source, texts, shared, mark="M")[0] if is_mirrored_id("M" + path.stem) else None
            )
            mirrored = read_captions(published, bad_lines) if published else ()
            if captions or (unconditional and not problem):
                clips[path] = [Clip(name, captions or _NO_WORDS, mirrored_captions=mirrored or None)]
            else:
                drops.append(Drop(file, source, name, NO_CAPTION, problem))
    return _joined(files, clips, drops, bad_lines, given={})


def join_with_index(files: MotionFiles, index: Path, texts: Path, unconditional: bool) -> Joined:
    """The clips that a HumanML3D index cuts from the files.

    Raises:
        UserError: the index cannot be read.
    """
    require_texts_folder(texts, "HumanML3D's folder of NNNNNN.txt files")
    lookup = Lookup(files)
    rows = read_index(index)
    clips: dict[Path, list[Clip]] = defaultdict(list)
    drops: list[Drop] = []
    bad_lines = list(rows.problems)
    first: dict[str, IndexRow] = {}
    for row in rows:
        first.setdefault(row.name, row)
    for row in rows:
        problem = _name_problem(row.name, first[row.name] is row, first)
        if problem is not None:
            drops.append(Drop(row.source, row.recording, row.name, *problem))
            continue
        captions = read_captions(texts / f"{row.name}.txt", bad_lines, plain=False)
        mirrored = read_captions(texts / f"M{row.name}.txt", bad_lines, plain=False)
        path, why = lookup.find(row.recording)
        if path is None:
            drops.append(Drop(row.source, row.recording, row.name, NOT_FOUND, why, len(captions)))
        elif captions or unconditional:
            clips[path].append(Clip(row.name, captions or _NO_WORDS, row, mirrored or None))
        else:
            drops.append(Drop(row.source, row.recording, row.name, NO_CAPTION))
    return _joined(files, clips, drops, bad_lines, given={"clips": len(rows)})


def join_with_annotations(files: MotionFiles, annotations: Path) -> Joined:
    """The clips that annotations with seconds describe, one per entry.

    An entry ``M00001`` at ``M/<path>`` has the captions of the mirrored copy of entry ``00001``.

    Raises:
        UserError: the file of annotations cannot be read.
    """
    lookup = Lookup(files)
    entries = read_annotations(annotations)
    clips: dict[Path, list[Clip]] = defaultdict(list)
    drops: list[Drop] = []
    bad_lines = list(entries.problems)
    first = {entry.id: entry for entry in entries}
    mirrored = {entry.id[1:]: entry for entry in entries if is_mirrored_id(entry.id)}
    originals = [entry for entry in entries if not (is_mirrored_id(entry.id) and entry.id[1:] in first)]
    for entry in originals:
        problem = _name_problem(entry.id, True, first)
        path, why = lookup.find(entry.path) if problem is None else (None, "")
        if problem is None and path is None:
            problem = (NOT_FOUND, why)
        if problem is not None:
            drops.append(Drop(entry.path, entry.path, entry.id, *problem, captions=len(entry.captions)))
            continue
        assert path is not None
        copy = mirrored.get(entry.id)
        if copy is not None and comparable(copy.path.removeprefix("M/")) != comparable(entry.path):
            bad_lines.append(f"{annotations} entry {copy.id!r}: {copy.path} is no mirrored copy of {entry.path}")
            copy = None
        clips[path].append(Clip(entry.id, entry.captions, None, copy.captions if copy else None, entry.duration))
    captions = sum(len(entry.captions) for entry in originals)
    given = {
        "clips": len(originals),
        "captions": captions,
        "mirrored_captions": sum(len(entry.captions) for entry in entries) - captions,
    }
    return _joined(files, clips, drops, bad_lines, given)


def _joined(
    files: MotionFiles,
    clips: Mapping[Path, Sequence[Clip]],
    drops: list[Drop],
    bad_lines: list[str],
    given: Mapping[str, int],
) -> Joined:
    recordings = tuple(files.recording(path, clips[path]) for path in files.sizes if clips.get(path))
    counted = {"files": len(files.sizes) + len(files.refused)}
    if given:
        counted["files_not_named"] = len(files.sizes) - len(recordings)
    else:
        counted["clips"] = counted["files"]
    found = [clip for recording in recordings for clip in recording.clips]
    counted["captions"] = sum(len(clip.captions) for clip in found) + sum(drop.captions for drop in drops)
    counted["mirrored_captions"] = sum(len(clip.mirrored_captions or ()) for clip in found)
    return Joined(recordings, (*files.refused, *drops), tuple(bad_lines), {**counted, **given})


def _name_problem(name: str, is_first: bool, names: Mapping[str, object]) -> tuple[str, str] | None:
    """Why a list's clip cannot have its name: reason and detail."""
    if not is_first:
        return NAME_TAKEN, "an earlier line of the list"
    if name == RESERVED:
        return NAME_TAKEN, "the file format of the corpus keeps this name for itself"
    if is_mirrored_id(name):
        return (MIRRORED, _MADE.format(name[1:])) if name[1:] in names else (NO_CAPTION, _ORPHAN)
    return None


def _unique_names(sources: list[str]) -> list[str]:
    """A clip name without slashes for every recording: its path joined by "__"."""
    taken = {RESERVED}
    names = []
    for source in sources:
        name = plain = source.replace("/", "__").encode("utf-8", "backslashreplace").decode("utf-8")
        count = 1
        while name in taken:
            count += 1
            name = f"{plain}-{count}"
        taken.add(name)
        names.append(name)
    return names

"""Training on a folder of motion files as it is: the first rank prepares it once, the others wait for the corpus."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ds_hymotion.data.corpus import HEADER
from ds_hymotion.data.preparation import Preparation
from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.formats.tensors import write_text
from ds_hymotion.training.checkpoint_folder import checkpoint_folders
from ds_hymotion.training.log import announce
from ds_hymotion.training.run_folder import make_folder

FEW_FILES = 20
POLL_S = 0.2
BEAT_S = 5.0
PATIENCE_S = 120.0  # without another beat of the first rank: it has ended
START_S = 1800.0  # without a first beat: it has not started, or its disk is another one


def corpus_of(data_dir: str, output: Path, representation: str, encoder: str) -> Path:
    """The prepared corpus to train on: ``data_dir`` itself, or ``output/corpus`` made of the motion files in it.

    The ranks have no process group yet: they meet at a file beside the corpus that says what it was made of. All must
    see the same ``output``.

    Args:
        representation: what to prepare motion files as.
        encoder: what to encode captions with; ``null`` takes motions without captions too.

    Raises:
        UserError: nothing to train on there, captions that this command cannot encode, a corpus of other motions that
            a run in ``output`` was trained on, or the first rank has ended.
    """
    folder = Path(data_dir)
    if (folder / HEADER).is_file() or not folder.is_dir():
        return folder
    first = next(folder.rglob("*.npz"), None)
    if first is None:
        return folder
    if encoder not in ("hashed", "null"):
        raise UserError(
            f"--data_dir {data_dir} holds motion files, and the network's text features ({encoder}) need settings of "
            "their own: prepare it with launch/prepare.py --encode_text qwen_clip, or give --unconditional"
        )
    corpus, marker = output / "corpus", output / "corpus-made-of.json"
    made_of = {"data_dir": str(folder.resolve()), "representation": representation, "encoder": encoder}
    if _is_made(corpus, marker, made_of):
        announce(f"{corpus}: prepared from {data_dir} before")
    elif os.environ.get("RANK", "0") == "0":
        _require_replaceable(corpus, marker, data_dir, output)
        announce(f"--data_dir {data_dir} holds motion files: preparing them in {corpus}")
        with _beating(marker):
            _prepare(folder, corpus, representation, encoder)
        _note(marker, made_of)
    else:
        _wait(corpus, marker, made_of)
    return corpus


def _is_made(corpus: Path, marker: Path, made_of: dict[str, str]) -> bool:
    return _content(marker) == made_of and (corpus / HEADER).is_file()


def _require_replaceable(corpus: Path, marker: Path, data_dir: str, output: Path) -> None:
    """A corpus that is there must be one that this command made, for a run that has not begun."""
    if not (corpus / HEADER).is_file():
        return
    before = _content(marker)
    if not before or checkpoint_folders(output):
        source = before.get("data_dir", "something else")
        raise UserError(
            f"--data_dir {data_dir}: {corpus} was made of {source}; give that, --data_dir {corpus}, or another "
            "--output_dir"
        )


@contextmanager
def _beating(marker: Path) -> Iterator[None]:
    """While this lasts, the marker tells every few seconds that the first rank works; in the end, if it failed."""
    done, before, existed = threading.Event(), _content(marker), marker.parent.exists()

    def beat() -> None:
        for count in itertools.count():
            if done.wait(BEAT_S):
                return
            with suppress(UserError):
                _note(marker, {"preparing": count})

    make_folder(marker.parent)
    _note(marker, {"preparing": -1})
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        done.set()
        thread.join()
        with suppress(OSError, UserError):
            if os.environ.get("WORLD_SIZE", "1") != "1":
                _note(marker, {"failed": str(error) or type(error).__name__, "at": time.time()})
            elif before:
                _note(marker, before)
            else:
                marker.unlink(missing_ok=True)
                if not existed:
                    marker.parent.rmdir()  # only where it is empty
        raise
    done.set()
    thread.join()


def _wait(corpus: Path, marker: Path, made_of: dict[str, str]) -> None:
    """Until the corpus is there. What lies there at first may be of an earlier attempt: it counts once it changes."""
    last, since, beats = _content(marker), time.monotonic(), 0
    while not _is_made(corpus, marker, made_of):
        now = _content(marker)
        if now != last:
            last, since, beats = now, time.monotonic(), beats + 1
        if beats and "failed" in now:
            raise UserError(f"{corpus}: not prepared by rank 0: {now['failed']}")
        limit = PATIENCE_S if beats else START_S
        if time.monotonic() - since > limit:
            raise UserError(
                f"{corpus}: rank 0 has not been heard of for {limit:.0f} s; give all ranks the same --output_dir on a "
                "disk that they share, or prepare the motions first with launch/prepare.py"
            )
        time.sleep(POLL_S)


def _note(marker: Path, content: dict[str, Any]) -> None:
    replace_file(marker, lambda temporary: write_text(temporary, json.dumps(content)))


def _prepare(folder: Path, corpus: Path, representation: str, encoder: str) -> None:
    from ds_hymotion.data.prepare import prepare

    few = sum(1 for _ in zip(range(FEW_FILES), folder.rglob("*.npz"))) < FEW_FILES
    task = Preparation(
        folder,
        corpus,
        representation=representation,
        unconditional=encoder == "null",
        split=(1.0, 0.0, 0.0) if few else Preparation.split,
        encode_text=None if encoder == "null" else encoder,
        workers=1,
        overwrite=True,
        progress=False,
    )
    try:
        prepare(task, say=announce)
    except UserError as error:
        if "no caption" in str(error) and encoder != "null":
            raise UserError(f"{error}; to train without captions, give --unconditional") from None
        raise


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

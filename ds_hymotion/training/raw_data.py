"""Training on a folder of motion files as it is: the first rank prepares it once, the others wait for the corpus."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ds_hymotion.data.corpus import HEADER
from ds_hymotion.data.preparation import Preparation
from ds_hymotion.errors import UserError
from ds_hymotion.training.log import announce

FEW_FILES = 20
POLL_S = 0.2


def corpus_of(data_dir: str, output: Path, representation: str, encoder: str) -> Path:
    """The prepared corpus to train on: ``data_dir`` itself, or ``output/corpus`` made of the motion files in it.

    The ranks have no process group yet: they meet at a file beside the corpus that says what it was made of. All must
    see the same ``output``.

    Args:
        representation: what to prepare motion files as.
        encoder: what to encode captions with; ``null`` takes motions without captions too.

    Raises:
        UserError: nothing to train on there, or captions that this command cannot encode.
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
    made_of = json.dumps({"data_dir": str(folder.resolve()), "representation": representation, "encoder": encoder})
    if _text(marker) == made_of and (corpus / HEADER).is_file():
        announce(f"{corpus}: prepared from {data_dir} before")
    elif os.environ.get("RANK", "0") == "0":
        marker.unlink(missing_ok=True)
        announce(f"--data_dir {data_dir} holds motion files: preparing them in {corpus}")
        _prepare(folder, corpus, representation, encoder)
        temporary = marker.with_name(marker.name + ".part")
        temporary.write_text(made_of, encoding="utf-8")
        os.replace(temporary, marker)
    else:
        while _text(marker) != made_of:
            time.sleep(POLL_S)
    return corpus


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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

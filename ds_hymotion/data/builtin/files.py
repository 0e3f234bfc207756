"""A built-in set on disk, as AMASS and HumanML3D lay out theirs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ds_hymotion.data.builtin.clip import BuiltinClip
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.formats.files import replace_file
from ds_hymotion.formats.humanml3d import Caption, IndexRow, write_index, write_texts
from ds_hymotion.motion.transforms import resample

# Three times HumanML3D's 20 fps, so that its stride int(60 / 20) keeps real time, and twice the clips' 30, so that
# every frame of a clip is a frame of its file and resampling back gives exactly the clip.
FILE_FPS = 60.0


def write_set(folder: str | Path, clips: Sequence[BuiltinClip]) -> None:
    """Write clips so that the readers of AMASS and HumanML3D give them back whole.

    ``amass/<TYPE>/<id>_poses.npz`` at 60 fps; ``texts/<id>.txt``, every caption of the whole clip (times 0.0, 0.0);
    ``index.csv`` with rows ``./pose_data/<TYPE>/<id>_poses.npy``, 0, −1 (to the end); ``actions.json`` {id: type}.

    Raises:
        UserError: the folder is not empty or cannot be written, or two clips share an id.
    """
    folder = Path(folder)
    shared = [name for name, count in Counter(clip.id for clip in clips).items() if count > 1]
    if shared:
        raise UserError(f"{folder}: {len(shared)} ids are not unique, {shared[0]!r} among them; give each clip its own")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; name a new or an empty folder for the set")
    except OSError as error:
        raise UserError(f"{folder} cannot be a folder ({error.strerror}); name one that you can write to") from None
    for clip in clips:
        write_amass(folder / "amass" / clip.action / f"{clip.id}_poses.npz", resample(clip.motion, FILE_FPS))
        write_texts(folder / "texts" / f"{clip.id}.txt", [Caption(text) for text in clip.captions])
    rows = [IndexRow(f"./pose_data/{clip.action}/{clip.id}_poses.npy", 0, -1, clip.id) for clip in clips]
    write_index(folder / "index.csv", rows)
    actions = json.dumps({clip.id: clip.action for clip in clips}, indent=1) + "\n"
    replace_file(folder / "actions.json", lambda temporary: _write(temporary, actions))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

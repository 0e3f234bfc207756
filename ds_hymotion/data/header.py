"""``corpus.json``: what a prepared corpus holds and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ds_hymotion.data.corpus import FORMAT, VERSION
from ds_hymotion.motion.representation import HyMotion201, Representation
from ds_hymotion.motion.skeleton import smpl24

CONVENTIONS = {
    "features": "float32 [frames, channels], not normalised",
    "units": "metres, seconds, radians",
    "world": "y up, lowest joint of the clip at y = 0, frame 0 at x = z = 0 with the body facing +z",
    "rotations": "local, parent to child, joint 0 = orientation of the body in the world",
    "translation": "pelvis in the world = translation + skeleton.offsets[0]",
}


def corpus_header(
    representation: Representation,
    fps: float,
    counts: Mapping[str, Any],
    arguments: Mapping[str, Any],
    fingerprint: str,
) -> dict[str, Any]:
    """The content of ``corpus.json``; nothing in it depends on when, where or by how many processes it was made."""
    skeleton = smpl24()
    return {
        "format": FORMAT,
        "version": VERSION,
        "package_version": package_version(),
        "representation": representation.name,
        "representation_options": representation_options(representation),
        "channels": representation.channels,
        "channel_names": representation.channel_names(),
        "fps": fps,
        "skeleton": {
            "names": list(skeleton.names),
            "parents": list(skeleton.parents),
            "offsets": [[round(value, 7) for value in joint] for joint in skeleton.offsets.tolist()],
        },
        "conventions": CONVENTIONS,
        "counts": dict(counts),
        "arguments": dict(arguments),
        "fingerprint": fingerprint,
    }


def package_version() -> str:
    """The installed version of this package; "unknown" where it runs from a checkout without installation."""
    try:
        return version("ds-hymotion")
    except PackageNotFoundError:
        return "unknown"


def representation_options(used: Representation) -> dict[str, str]:
    """The options that :func:`representation` needs besides the name."""
    return {"positions_relative_to": used.positions_relative_to} if isinstance(used, HyMotion201) else {}

"""What ``--model_name`` means: a preset, a folder in the release's format, or a release on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds_hymotion.config.model import SIZES
from ds_hymotion.errors import UserError
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.release_config import CONFIG, released_sizes
from ds_hymotion.model.released import RELEASED, load_released
from ds_hymotion.training.legal_files import PATTERNS

QWEN_DIM = 4096
LEGAL = f"give {', '.join(PRESETS)}, a folder with {CONFIG} and {RELEASED}, or a hub name such as tencent/HY-Motion-1.0"


@dataclass(frozen=True)
class NamedModel:
    """A network to train: a preset or explicit sizes, and the weights it starts from, if any.

    Attributes:
        preset: name of the preset with these sizes; of the one that ``sizes`` changes where none has them.
        sizes: settings of ``hymotion.model``, all of them where there are weights.
        weights: the released checkpoint; None for a preset.
        channels: motion channels of those weights.
    """

    preset: str
    sizes: dict[str, Any]
    weights: Path | None = None
    channels: int | None = None

    @property
    def reads_qwen(self) -> bool:
        """Whether its text inputs are as wide as Qwen3-8B's."""
        return self.sizes.get("ctxt_input_dim", PRESETS[self.preset].ctxt_input_dim) == QWEN_DIM

    def overrides(self) -> dict[str, Any]:
        """Configuration values by dotted key."""
        values: dict[str, Any] = {f"hymotion.model.{name}": value for name, value in self.sizes.items()}
        values["hymotion.model.preset"] = self.preset
        if self.weights is not None:
            values["hymotion.model.init_from"] = str(self.weights)
        return values


def named_model(name: str) -> NamedModel:
    """The network called ``name``.

    Raises:
        UserError: no preset, folder or release of that name can be had, or the folder's files contradict each other.
    """
    if name in PRESETS:
        return NamedModel(name, {})
    folder = Path(name)
    if folder.name == RELEASED and folder.is_file():
        folder = folder.parent
    if not _is_folder(folder):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise UserError(f"--model_name {name}: no such preset or folder; {LEGAL}")
        folder = _from_hub(name)
    if not (folder / RELEASED).is_file():
        raise UserError(f"--model_name {name}: {folder} has no {RELEASED}; {LEGAL}")
    config = released_sizes(load_released(folder / RELEASED)).network
    sizes = {size: value for size, value in asdict(config).items() if size in SIZES}
    alike = (name for name, known in PRESETS.items() if all(getattr(known, size) == sizes[size] for size in SIZES))
    return NamedModel(next(alike, "tiny"), sizes, folder / RELEASED, config.input_dim)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long for any file
        return False


def _from_hub(name: str) -> Path:
    """The folder of a release in the hub's local cache, downloaded where it is not there yet."""
    from huggingface_hub import snapshot_download

    short = name.rpartition("/")[2]
    # The two networks of the release lie in one repository, each in a folder of its name.
    repositories = [name, name.removesuffix("-Lite")]
    problem: Exception = FileNotFoundError("not there")
    for local in (True, False):
        for repository in dict.fromkeys(repositories):
            try:
                files = [f"{short}/*", CONFIG, RELEASED, *PATTERNS]
                found = Path(snapshot_download(repository, allow_patterns=files, local_files_only=local))
            except Exception as error:  # the hub's client raises errors of half a dozen libraries
                problem = error
                continue
            for folder in (found / short, found):
                if (folder / RELEASED).is_file():
                    return folder
    line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    raise UserError(f"--model_name {name}: neither in the hub's local cache nor to be downloaded ({line}); {LEGAL}")

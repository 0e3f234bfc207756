"""What ``--model_name`` means: a preset, a folder in the release's format, or a release on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.released import load_released

CONFIG, CHECKPOINT = "config.yml", "latest.ckpt"
SIZES = ("feat_dim", "num_layers", "num_heads", "mlp_ratio", "ctxt_input_dim", "vtxt_input_dim", "band_frames")
CONFIG_FPS = 30.0
QWEN_DIM = 4096
LEGAL = (
    f"give {', '.join(PRESETS)}, a folder with {CONFIG} and {CHECKPOINT}, or a hub name such as tencent/HY-Motion-1.0"
)


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
    if folder.is_file() and folder.name == CHECKPOINT:
        folder = folder.parent
    if not folder.is_dir():
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise UserError(f"--model_name {name}: no such preset or folder; {LEGAL}")
        folder = _from_hub(name)
    if not (folder / CHECKPOINT).is_file():
        raise UserError(f"--model_name {name}: {folder} has no {CHECKPOINT}; {LEGAL}")
    config = released_sizes(folder)
    sizes = {size: value for size, value in asdict(config).items() if size in SIZES}
    alike = (name for name, known in PRESETS.items() if all(getattr(known, size) == sizes[size] for size in SIZES))
    return NamedModel(next(alike, "tiny"), sizes, folder / CHECKPOINT, config.input_dim)


def released_sizes(folder: Path) -> ModelConfig:
    """Sizes of the network in a released folder: from its tensors' shapes, and what those do not tell from its config.

    Raises:
        UserError: tensors are missing, or ``config.yml`` tells other sizes.
    """
    state = load_released(folder / CHECKPOINT).state

    def shape(name: str) -> Tensor:
        if (tensor := state.get("motion_transformer." + name)) is None:
            raise UserError(f"{folder / CHECKPOINT}: lacks motion_transformer.{name}; give a release's checkpoint")
        return tensor

    def blocks(kind: str) -> int:
        found = {key.split(".")[2] for key in state if key.startswith(f"motion_transformer.{kind}_blocks.")}
        return len(found)

    width, channels = shape("input_encoder.weight").shape
    sizes: dict[str, Any] = {
        "feat_dim": width,
        "num_layers": blocks("double") + blocks("single"),
        "num_heads": width // len(shape("double_blocks.0.motion_q_norm.weight")),
        "input_dim": channels,
        "ctxt_input_dim": shape("ctxt_encoder.weight").shape[1],
        "vtxt_input_dim": shape("vtxt_encoder.linears.0.weight").shape[1],
        "mlp_ratio": len(shape("double_blocks.0.motion_mlp.fc1.weight")) / width,
    }
    told = _network_arguments(folder / CONFIG)
    for name in sizes:
        if name in told and told[name] != sizes[name]:
            raise UserError(
                f"{folder / CONFIG}: {name} = {told[name]!r}, the tensors of {CHECKPOINT} have {sizes[name]}; give the "
                "two files of one release"
            )
    if "narrowband_length" in told:
        sizes["band_frames"] = round(float(told["narrowband_length"]) * CONFIG_FPS)
    return ModelConfig(**sizes)


def _network_arguments(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        arguments = content.get("network_module_args", {})
        return {key: value for key, value in arguments.items() if value is not None}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as error:
        line = str(error).splitlines()[0]
        raise UserError(
            f"{path}: not a release's configuration ({line}); leave it out, or take the release's"
        ) from None


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
                files = [f"{short}/*", CONFIG, CHECKPOINT]
                found = Path(snapshot_download(repository, allow_patterns=files, local_files_only=local))
            except Exception as error:  # the hub's client raises errors of half a dozen libraries
                problem = error
                continue
            for folder in (found / short, found):
                if (folder / CHECKPOINT).is_file():
                    return folder
    line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    raise UserError(f"--model_name {name}: neither in the hub's local cache nor to be downloaded ({line}); {LEGAL}")

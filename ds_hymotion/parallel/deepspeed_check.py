"""DeepSpeed's own reading of its part of a JSON, as one line of a run instead of a traceback."""

from __future__ import annotations

import copy
import difflib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh, quiet_cpu_setup

# The JSON key of each section, by the class that DeepSpeed reads it with.
SECTIONS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
    "CommsConfig": "comms_logger",
    "CommsLoggerConfig": "comms_logger",
    "DeepSpeedFlopsProfilerConfig": "flops_profiler",
    "TensorBoardConfig": "tensorboard",
    "WandbConfig": "wandb",
    "CSVConfig": "csv_monitor",
    "CometConfig": "comet",
}


def check_json(config: RunConfig) -> None:
    """Let DeepSpeed parse its part before a process group starts.

    Raises:
        UserError: DeepSpeed refuses the file.
    """
    quiet_cpu_setup()
    micro, accumulation = (
        config.deepspeed[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    # Without a process group DeepSpeed counts one rank.
    _parse({**config.deepspeed, "train_batch_size": micro * accumulation}, config.name, None)


def check_with_deepspeed(settings: dict[str, Any], name: str, mesh: Mesh) -> None:
    """Let DeepSpeed parse what it will be given, and try what only the first rank opens: monitors (collective).

    Raises:
        UserError: on every rank alike, where DeepSpeed would end in a traceback.
    """
    _parse(settings, name, mesh.mpu)
    mesh.on_first(lambda: _try_monitors(settings, name))


def _parse(settings: dict[str, Any], name: str, mpu: Any) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig(copy.deepcopy(settings), mpu)
    except ValidationError as error:
        raise UserError(f"{name}: DeepSpeed refuses {_described(error)}") from None
    except Exception as error:  # whatever it raises, it is about the JSON
        raise UserError(f"{name}: DeepSpeed refuses this file: {error}") from None


def _described(error: ValidationError) -> str:
    """Key, value, what is wrong, and for an unknown key the legal ones."""
    first = error.errors()[0]
    key = ".".join(map(str, [*filter(None, [SECTIONS.get(error.title)]), *first["loc"]]))
    if first["type"] != "extra_forbidden":
        return f"{key} = {first['input']!r}: {first['msg']}"
    legal = _legal_keys(error.title, [str(part) for part in first["loc"][:-1]])
    close = difflib.get_close_matches(str(first["loc"][-1]), legal, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{key} = {first['input']!r}: unknown key; {hint}legal keys: {', '.join(legal)}"


def _legal_keys(title: str, path: list[str]) -> list[str]:
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    model: Any = next((kind for kind in _kinds(DeepSpeedConfigModel) if kind.__name__ == title), None)
    for part in path:
        field = model.model_fields.get(part) if model is not None else None
        options = [field.annotation, *get_args(field.annotation)] if field is not None else []
        model = next((kind for kind in options if hasattr(kind, "model_fields")), None)
    return sorted(field.alias or key for key, field in model.model_fields.items()) if model is not None else []


def _kinds(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _try_monitors(settings: dict[str, Any], name: str) -> None:
    packages = {"tensorboard": "tensorboard", "csv_monitor": "", "wandb": "wandb", "comet": "comet_ml"}
    for key, package in packages.items():
        section = settings.get(key, {})
        if not section.get("enabled"):
            continue
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"{name}: {key}.enabled = true needs the package {package}; install it with pip install {package}"
            )
        if folder := section.get("output_path"):
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"{name}: {key}.output_path = {folder!r} cannot be made ({error.strerror}); give a writable folder"
                ) from None

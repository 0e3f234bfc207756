"""The ``hymotion`` section as a whole, and its validation."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import Field, ValidationError

from ds_hymotion.config.data import DataSection
from ds_hymotion.config.evaluation import EvaluationSection
from ds_hymotion.config.experts import ExpertsSection
from ds_hymotion.config.flow import FlowSection
from ds_hymotion.config.gradient_sync import GradientSyncSection
from ds_hymotion.config.lora import LoraSection
from ds_hymotion.config.model import ModelSection
from ds_hymotion.config.parallel import ParallelSection
from ds_hymotion.config.pipeline import PipelineSection
from ds_hymotion.config.section import Section
from ds_hymotion.config.text import TextSection
from ds_hymotion.config.training import TrainingSection
from ds_hymotion.errors import UserError


class HymotionSection(Section):
    """The ``hymotion`` section of a DeepSpeed JSON."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    text: TextSection = TextSection()
    flow: FlowSection = FlowSection()
    training: TrainingSection = TrainingSection()
    pipeline: PipelineSection = PipelineSection()
    evaluation: EvaluationSection = EvaluationSection()
    gradient_sync: GradientSyncSection = GradientSyncSection()
    experts: ExpertsSection = ExpertsSection()
    parallel: ParallelSection = ParallelSection()
    lora: LoraSection | None = None
    watchdog_s: float = Field(
        600.0,
        ge=0,
        description="longest time from step to step in s (ten times as long for the first step, saves and "
        "evaluations): then every rank's state is printed and the run ends with code 86; 0 = never",
    )


def parse_section(section: Any, name: str) -> HymotionSection:
    """Validate the ``hymotion`` section; the first mistake becomes a one-line :class:`UserError`."""
    if not isinstance(section, dict):
        raise UserError(f"{name}: hymotion = {section!r} must be a JSON object")
    try:
        return HymotionSection.model_validate(section, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        key = ".".join(["hymotion", *path])
        if first["type"] == "extra_forbidden":
            legal = _legal_keys(path[:-1])
            close = difflib.get_close_matches(path[-1], legal, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(
                f"{name}: unknown key {key} = {first['input']!r}; {hint}legal keys: {', '.join(legal)}"
            ) from None
        raise UserError(f"{name}: {key} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}") from None


def _legal_keys(path: list[str]) -> list[str]:
    model: Any = HymotionSection
    for part in path:
        if not part.isdigit():
            model = model.model_fields[part].annotation
            model = next((kind for kind in get_args(model) if hasattr(kind, "model_fields")), model)
    return sorted(model.model_fields)

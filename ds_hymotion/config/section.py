"""What all parts of the ``hymotion`` section have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A part of the ``hymotion`` section: unknown keys are errors; a number may also be given as a string of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic would take ``true`` for 1."""
        field, values = cls.model_fields[info.field_name or ""], value if isinstance(value, list) else [value]
        if field.annotation is not bool and any(isinstance(one, bool) for one in values):
            usual = "" if field.is_required() else f"; {field.default!r} is the default"
            raise ValueError(f"true and false are not legal here{usual}")
        return value

"""What all parts of the ``hymotion`` section have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the ``hymotion`` section: unknown keys are errors; a number may also be given as a string of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

"""``hymotion.parallel``: how the network is spread over ranks."""

from __future__ import annotations

from pydantic import Field

from ds_hymotion.config.section import Section


class ParallelSection(Section):
    """How the network is spread over ranks; the data axis takes the ranks that are left."""

    model: int = Field(1, ge=1, description="tensor ranks: heads, MLPs and the motion head are cut over so many")
    pipeline: int = Field(1, ge=1, description="pipeline stages that the layers are divided over")
    memory_steps: int = Field(500, ge=0, description="steps between lines on each rank's memory; 0 = only at the start")

"""A run's configuration: one DeepSpeed JSON with its ``hymotion`` section, checked as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ds_hymotion.config.deepspeed_keys import check_deepspeed_keys
from ds_hymotion.config.experts import check_experts
from ds_hymotion.config.gradient_sync import check_selective_sync
from ds_hymotion.config.hymotion import parse_section
from ds_hymotion.config.json_files import read_json, set_by_path
from ds_hymotion.config.lora import check_lora
from ds_hymotion.config.mesh_shape import MeshShape
from ds_hymotion.config.offload import check_offload
from ds_hymotion.config.pipeline import check_pipeline, check_temporal
from ds_hymotion.errors import UserError


class RunConfig:
    """One DeepSpeed JSON, checked: ``deepspeed`` is what DeepSpeed gets, ``hymotion`` our section.

    Args:
        raw: the parsed JSON.
        name: how messages call it.
        overrides: values by dotted key, such as ``{"hymotion.training.max_steps": 100}``; None values are ignored.
        ranks: number of processes, which the mesh's axes divide; None where they are not known, for a check alone.

    Raises:
        UserError: an unknown key, an illegal value or an illegal combination, with a legal value.
    """

    def __init__(
        self,
        raw: dict[str, Any],
        name: str = "config",
        overrides: dict[str, Any] | None = None,
        ranks: int | None = None,
    ) -> None:
        merged = json.loads(json.dumps(raw))
        for key, value in (overrides or {}).items():
            if value is not None:
                set_by_path(merged, key, value)
        self.name = name
        self.hymotion = parse_section(merged.pop("hymotion", {}), name)
        model, pipe = self.hymotion.parallel.model, self.hymotion.parallel.pipeline
        self.ranks = ranks
        self.shape = MeshShape.of(ranks or model * pipe, model, pipe)
        self.deepspeed = check_deepspeed_keys(merged, name, self.shape.data)
        self._cross_checks()

    @classmethod
    def load(cls, path: str | Path, overrides: dict[str, Any] | None = None, ranks: int | None = None) -> RunConfig:
        """Read a JSON file."""
        return cls(read_json(path), str(path), overrides, ranks)

    @property
    def dtype(self) -> str:
        """``fp32``, ``bf16`` or ``fp16``: what the weights are computed in."""
        for kind in ("bf16", "fp16"):
            if self.deepspeed.get(kind, {}).get("enabled"):
                return kind
        return "fp32"

    def as_dict(self) -> dict[str, Any]:
        """The whole configuration as one JSON-able object, defaults filled in."""
        return {**self.deepspeed, "hymotion": self.hymotion.model_dump()}

    def _cross_checks(self) -> None:
        check_pipeline(self)
        check_temporal(self)
        check_experts(self)
        check_lora(self)
        check_offload(self)
        data = self.hymotion.data
        text = self.hymotion.text
        if text.mode == "live" and text.encoder != "qwen_clip":
            raise UserError(
                f"{self.name}: hymotion.text.mode = live with hymotion.text.encoder = {text.encoder!r}; use qwen_clip"
            )
        if text.train_upper_layers and text.mode != "live":
            raise UserError(
                f"{self.name}: hymotion.text.train_upper_layers = true needs the encoders in the run; set "
                "hymotion.text.mode to live"
            )
        if text.encoder == "null" and self.hymotion.flow.condition_drop < 1:
            raise UserError(
                f"{self.name}: hymotion.text.encoder = null needs hymotion.flow.condition_drop = 1, not "
                f"{self.hymotion.flow.condition_drop:g}; --unconditional sets both"
            )
        bad = [t for t in self.hymotion.evaluation.times if not 0 <= t <= 1]
        if bad:
            raise UserError(f"{self.name}: hymotion.evaluation.times holds {bad[0]}; use values in 0..1")
        for number, entry in enumerate(data.mix):
            if entry.weight is not None and entry.repeats is not None:
                raise UserError(
                    f"{self.name}: hymotion.data.mix.{number} gives weight = {entry.weight:g} and repeats = "
                    f"{entry.repeats}; give one of them"
                )
        if data.bucket_lr_factors and len(data.bucket_lr_factors) != len(data.bucket_bounds) + 1:
            raise UserError(
                f"{self.name}: hymotion.data.bucket_lr_factors has {len(data.bucket_lr_factors)} values; "
                f"{len(data.bucket_bounds)} bounds make {len(data.bucket_bounds) + 1} buckets"
            )
        if self.hymotion.gradient_sync.others_every > 1:
            check_selective_sync(self.deepspeed, self.name, self.hymotion.gradient_sync.others_every)

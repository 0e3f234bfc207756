"""Networks with a name."""

from __future__ import annotations

import dataclasses
from typing import Any

from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig

PRESETS: dict[str, ModelConfig] = {
    "hy-motion-1.0": ModelConfig(feat_dim=1280, num_layers=27, num_heads=20),
    "hy-motion-1.0-lite": ModelConfig(feat_dim=1024, num_layers=18, num_heads=16),
    "tiny": ModelConfig(feat_dim=256, num_layers=3, num_heads=4, ctxt_input_dim=128, vtxt_input_dim=128),
}


def preset(name: str, **overrides: Any) -> ModelConfig:
    """The sizes called ``name``, with single fields changed, such as ``input_dim=219``.

    Raises:
        UserError: an unknown name or field, or sizes that do not go together.
    """
    if name not in PRESETS:
        raise UserError(f"model preset {name!r} is unknown; use one of {', '.join(PRESETS)}")
    legal = [field.name for field in dataclasses.fields(ModelConfig)]
    for field in overrides:
        if field not in legal:
            raise UserError(f"model setting {field!r} is unknown; use one of {', '.join(legal)}")
    return dataclasses.replace(PRESETS[name], **overrides)

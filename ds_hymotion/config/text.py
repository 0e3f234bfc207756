"""``hymotion.text``: where text features come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ds_hymotion.config.section import Section


class TextSection(Section):
    """Where text features come from."""

    mode: Literal["cached", "live"] = Field(
        "cached", description="features from the corpus's cache, or encoders kept in the run"
    )
    encoder: str = Field(
        "hashed",
        description="name of the feature cache in the corpus: hashed or qwen_clip; live needs qwen_clip; null = "
        "no captions",
    )
    qwen: str = Field("Qwen/Qwen3-8B", description="live: folder or hub name of Qwen3")
    clip: str = Field("openai/clip-vit-large-patch14", description="live: folder or hub name of CLIP")
    release_dir: str | None = Field(None, description="live: clone of the release, whose system prompt is read")
    system_prompt_file: str | None = Field(None, description="live: file that is the system prompt")
    encoder_dtype: Literal["bf16", "fp16", "fp32"] = Field(
        "bf16", description="live: what frozen layers of Qwen3 compute in"
    )
    frozen_layers: int = Field(
        12, ge=0, description="live: lower layers of Qwen3 that train_upper_layers leaves frozen"
    )
    train_upper_layers: bool = Field(False, description="live: train the layers above; false freezes all of Qwen3")

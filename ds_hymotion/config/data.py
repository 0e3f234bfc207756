"""``hymotion.data``: clips, buckets and batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ds_hymotion.config.section import Section


class MixedCorpus(Section):
    """Another prepared corpus whose training clips join every epoch."""

    corpus: str = Field(min_length=1, description="folder of a prepared corpus like that of --data_dir")
    weight: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="visits of each of its clips per epoch, on average: 0.25 = another quarter of its clips each epoch",
    )
    repeats: int | None = Field(
        None, ge=1, le=1000, description="instead of weight, in whole visits; 1 where neither is given"
    )


class Replay(Section):
    """A base corpus that fine-tuning goes on seeing, so that the network does not forget it."""

    corpus: str = Field(min_length=1, description="folder of the prepared base corpus")
    share: float = Field(0.2, gt=0, le=0.95, description="share of its clips among all clips of an epoch")


class DataSection(Section):
    """Clips, buckets and batches."""

    repeats: int = Field(1, ge=1, le=1000, description="visits of each clip of --data_dir per epoch")
    mix: list[MixedCorpus] = Field([], description="further corpora whose training clips join every epoch")
    replay: Replay | None = Field(None, description="a base corpus that takes a share of every epoch")
    allow_other_data: bool = Field(
        False, description="resume although clips, mix, seed or buckets changed: with the next epoch, from its start"
    )
    bucket_bounds: list[Annotated[int, Field(ge=1)]] = Field(
        [60, 120, 180, 240, 300],
        min_length=1,
        description="lower ends of the frame buckets; the last is the canvas: longer clips are cropped",
    )
    short: Literal["keep", "pad", "drop"] = Field(
        "keep", description="clips below the first bound: a bucket of their own, part of the first bucket, or left out"
    )
    frames_per_gpu: int = Field(
        0,
        ge=0,
        description="fill a micro-batch up to this many padded frames, all rows of its clips counted; at least the "
        "canvas times flow.timesteps_per_sample; 0 = train_micro_batch_size_per_gpu clips",
    )
    length_jitter: float = Field(
        5.0, ge=0, description="jitter in frames on the order by length, so that epochs differ"
    )
    bucket_lr_factors: list[Annotated[float, Field(ge=0)]] = Field(
        [], description="learning-rate factor per bucket, the one below the first bound first; [] = 1 for all"
    )
    max_clips: int = Field(0, ge=0, description="use only the first n training clips of --data_dir; 0 = all")

    @field_validator("bucket_bounds")
    @classmethod
    def _rising(cls, bounds: list[int]) -> list[int]:
        if any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("each bound must be above the one before it, such as [60, 120, 180, 240, 300]")
        return bounds

"""Batches: the tensors of a planned micro-batch, every random number counted from the row's own key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from ds_hymotion.data.corpus import Corpus, Sample
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.data.plan import Row
from ds_hymotion.errors import UserError
from ds_hymotion.motion.statistics import normalise
from ds_hymotion.motion.transforms import face_forward
from ds_hymotion.randomness import generator, sample_noise
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.cache_group import CacheGroup
from ds_hymotion.text.caption_tokens import CaptionTokens
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.null import NullTextEncoder
from ds_hymotion.text.qwen_clip import QwenClipEncoder


@dataclass
class Batch:
    """Rows of one micro-batch; B rows, L padded frames, C channels, T text tokens. Padding is zero.

    Attributes:
        motion: normalised data [B, L, C].
        noise: standard normal [B, L, C].
        t: times in [0, 1], [B]; 0 is noise, 1 is data.
        lengths: valid frames [B].
        text, text_lengths, pooled: text features [B, T, D], [B], [B, V]; without tokens (T = 0) where ``captions``
            travel.
        drop: rows trained without condition [B].
        clips: each row's position in the training list.
        captions: the rows' captions as token ids, for encoders inside the run.
        experts: each row's expert number [B]; zeros where there are no experts.
    """

    motion: torch.Tensor
    noise: torch.Tensor
    t: torch.Tensor
    lengths: torch.Tensor
    text: torch.Tensor
    text_lengths: torch.Tensor
    pooled: torch.Tensor
    drop: torch.Tensor
    clips: list[int] = field(default_factory=list)
    captions: CaptionTokens | None = None
    experts: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        moved = {
            item.name: getattr(self, item.name).to(device, non_blocking=True)
            for item in fields(self)
            if item.name not in ("clips", "captions")
        }
        return Batch(**moved, clips=self.clips, captions=self.captions and self.captions.to(device))

    @property
    def rows(self) -> int:
        """Number of rows B; 0 for a rank without clips."""
        return self.motion.shape[0]


def equal_shapes(batches: Sequence[Batch]) -> list[Batch]:
    """Batches padded to the same rows, frames and text tokens, at least one of each.

    What is missing becomes rows without a valid frame and tokens that are not valid.
    """
    rows = max([1, *(batch.rows for batch in batches)])
    frames = max([1, *(batch.motion.shape[1] for batch in batches)])
    tokens = max([1, *(batch.text.shape[1] for batch in batches)])
    padded = []
    for batch in batches:
        short = rows - batch.rows
        changed: dict[str, Any] = {
            item.name: torch.cat([value, value.new_zeros(short, *value.shape[1:])])
            for item in fields(batch)
            if isinstance(value := getattr(batch, item.name), torch.Tensor)
        }
        for name, length in (("motion", frames), ("noise", frames), ("text", tokens)):
            changed[name] = torch.nn.functional.pad(changed[name], (0, 0, 0, length - changed[name].shape[1]))
        padded.append(replace(batch, **changed))
    return padded


class BatchMaker:
    """Turns planned rows into batches.

    A clip that cannot be read becomes a row without valid frames, is counted and named in ``failed``, and never
    changes what other ranks do.

    Args:
        corpus: the prepared corpus or corpora.
        samples: the clips that rows count in.
        text: their captions' features, or the encoder inside the run that the captions are tokenised for.
        statistics: mean and std [C] that the network's input is normalised with.
        draw_time: a time in [0, 1] from a generator, the row's stratum and the number of strata.
        condition_drop: share of rows trained without condition.
        seed: the run's seed.
        canvas: longer clips are cropped to this many frames, by a window drawn per epoch.
        experts: every sample's expert number, where the network has experts.
    """

    def __init__(
        self,
        corpus: Corpus | Mixture,
        samples: Sequence[Sample],
        text: TextCache | CacheGroup | QwenClipEncoder | NullTextEncoder,
        statistics: tuple[torch.Tensor, torch.Tensor],
        draw_time: Callable[[torch.Generator, int, int], float],
        condition_drop: float,
        seed: int,
        canvas: int,
        experts: Sequence[int] = (),
    ) -> None:
        self.corpus = corpus
        self.samples = samples
        self.text = text
        self.mean, self.std = statistics
        self.draw_time = draw_time
        self.condition_drop = condition_drop
        self.seed = seed
        self.canvas = canvas
        self.experts = tuple(experts)
        self.failed: dict[str, str] = {}

    def make(self, epoch: int, rows: Sequence[Row], strata: int, padded: int) -> Batch:
        """The batch of one micro-batch of a training step."""
        times, drops = [], []
        for row in rows:
            key = (epoch, self.samples[row.clip].id, row.visit, row.timestep)
            times.append(self.draw_time(generator(self.seed, "time", *key), row.stratum, strata))
            drops.append(bool(torch.rand((), generator=generator(self.seed, "drop", *key)) < self.condition_drop))
        return self._assemble(epoch, rows, padded, times, drops, self.seed)

    def held_out(self, rows: Sequence[Row], padded: int, time: float) -> Batch:
        """An evaluation batch at one fixed time, with noise that no training step draws."""
        return self._assemble(
            0, rows, padded, [time] * len(rows), [self.condition_drop == 1] * len(rows), self.seed, "held-out "
        )

    def _assemble(
        self,
        epoch: int,
        rows: Sequence[Row],
        padded: int,
        times: list[float],
        drops: list[bool],
        seed: int,
        use: str = "",
    ) -> Batch:
        channels = self.corpus.representation.channels
        motion = torch.zeros(len(rows), padded, channels)
        noise = torch.zeros(len(rows), padded, channels)
        lengths = torch.zeros(len(rows), dtype=torch.long)
        captions = []
        for i, row in enumerate(rows):
            sample = self.samples[row.clip]
            # A first visit has no number here, as where clips are visited once.
            later = [row.visit] if row.visit else []
            captions.append(self._caption(sample, generator(self.seed, use + "caption", epoch, sample.id, *later)))
            clip = self._clip(sample, generator(self.seed, use + "crop", epoch, sample.id, *later))
            if clip is None:
                continue
            frames = len(clip)
            motion[i, :frames] = clip
            noise[i, :frames] = sample_noise(seed, epoch, use + sample.id, row.visit, row.timestep, frames, channels)
            lengths[i] = frames
        tokens, features = self._text(captions)
        return Batch(
            motion=motion,
            noise=noise,
            t=torch.tensor(times, dtype=torch.float32),
            lengths=lengths,
            text=features.tokens,
            text_lengths=features.lengths,
            pooled=features.pooled,
            drop=torch.tensor(drops, dtype=torch.bool),
            clips=[row.clip for row in rows],
            captions=tokens,
            experts=torch.tensor([self.experts[row.clip] if self.experts else 0 for row in rows], dtype=torch.long),
        )

    def _clip(self, sample: Sample, random: torch.Generator) -> torch.Tensor | None:
        try:
            features = self.corpus.features(sample)
        except UserError as error:
            self.failed[sample.id] = str(error)
            return None
        if not torch.isfinite(features).all():
            self.failed[sample.id] = "NaN or Inf in its features"
            return None
        extra = len(features) - self.canvas
        if extra > 0:
            draw = torch.randint(extra + 1, (), generator=random)
            features = self._window(features, int(draw))
        return normalise(features, self.mean, self.std)

    def _window(self, features: torch.Tensor, start: int) -> torch.Tensor:
        """The canvas from frame ``start`` on, moved to the origin and turned to +Z as every prepared clip is."""
        representation, fps = self.corpus.representation, self.corpus.fps
        if start == 0:
            return features[: self.canvas]
        motion = representation.to_motion(features[start : start + self.canvas], fps)
        return representation.encode(face_forward(motion))

    def _caption(self, sample: Sample, random: torch.Generator) -> str:
        if not sample.captions:
            return ""
        draw = torch.randint(len(sample.captions), (), generator=random)
        return sample.captions[int(draw)].text

    def _text(self, captions: list[str]) -> tuple[CaptionTokens | None, TextFeatures]:
        """Token ids for encoders inside the run with features still to be made, or features alone."""
        if isinstance(self.text, QwenClipEncoder):
            tokens = self.text.tokenizer(captions)
            shape = (len(captions), 0, self.text.token_dim)
            return tokens, TextFeatures(torch.zeros(shape), tokens.lengths, torch.zeros(len(captions), 0))
        if captions:
            return None, self.text.lookup(captions)
        return None, TextFeatures(
            tokens=torch.zeros(0, 1, self.text.token_dim),
            lengths=torch.zeros(0, dtype=torch.long),
            pooled=torch.zeros(0, self.text.pooled_dim),
        )

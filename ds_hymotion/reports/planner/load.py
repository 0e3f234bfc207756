"""The largest micro-batch that a configuration can meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.motion.representation import Representation, representation
from ds_hymotion.text.cache import TextCache

RELEASED = "hy-motion"
# Where no corpus tells: as many tokens as qwen_clip keeps of a caption; hashed ones are as long as their text.
LONGEST_TEXT = {"qwen_clip": 128}
USUAL_TEXT = 32
SHORTEST = 20


@dataclass(frozen=True, order=True)
class Shape:
    """Rows of one micro-batch, its padded frames and text tokens."""

    rows: int
    frames: int
    tokens: int

    @property
    def weight(self) -> int:
        """Tokens of both streams: what activations grow with."""
        return self.rows * (self.frames + self.tokens)

    def __str__(self) -> str:
        return f"{self.rows} row(s) x ({self.frames} frames + {self.tokens} text tokens)"


@dataclass(frozen=True)
class Load:
    """What is known of the data.

    Attributes:
        space: the representation of the motions.
        frames: frames of the training clips, those of mixed corpora too; empty without a corpus.
        tokens: text tokens of the longest caption.
        source: where that comes from, for people.
        main: frames of the training clips of the main corpus, by which a run divides its stages.
    """

    space: Representation
    frames: tuple[int, ...]
    tokens: int
    source: str
    main: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, corpus: Corpus | None = None) -> Load:
        """Clips and captions of the corpus and of those mixed in, or without one the longest that may come.

        Raises:
            UserError: a mixed corpus that a run would refuse.
        """
        encoder = config.hymotion.text.encoder
        if corpus is None:
            released = config.hymotion.model.preset.startswith(RELEASED)
            space = representation("hymotion-201" if released else "smpl24-rotmat")
            return cls(space, (), LONGEST_TEXT.get(encoder, USUAL_TEXT), "any clip of the configured buckets")
        mixture = Mixture.open(corpus, config.hymotion.data)
        lengths: list[int] = []
        for part in mixture.parts:
            cache = TextCache(part.corpus.text_cache_folder(encoder))
            captions = [caption.text for sample in part.samples for caption in sample.captions]
            lengths += cache.lengths([text for text in captions if text in cache])
        tokens = max(lengths, default=LONGEST_TEXT.get(encoder, USUAL_TEXT))
        without = "" if lengths else f" (without {encoder} features: {tokens} tokens assumed)"
        return cls(
            corpus.representation,
            tuple(sample.frames for sample in mixture.samples),
            tokens,
            " + ".join(str(part.corpus.folder) for part in mixture.parts) + without,
            tuple(sample.frames for sample in corpus.split("train")),
        )

    def mean_frames(self, canvas: int) -> float:
        """Mean length of a clip of the main corpus on the canvas; the canvas itself where no clip is known."""
        seen = [min(length, canvas) for length in self.main or self.frames] or [canvas]
        return sum(seen) / len(seen)

    def shapes(self, config: RunConfig) -> list[Shape]:
        """Micro-batches among which the largest is: with a budget of frames, short clips make many rows of text."""
        data, flow = config.hymotion.data, config.hymotion.flow
        canvas = data.bucket_bounds[-1]
        longest = min(max(self.frames), canvas) if self.frames else canvas
        if not data.frames_per_gpu:
            rows = config.deepspeed["train_micro_batch_size_per_gpu"] * flow.timesteps_per_sample
            return [Shape(rows, longest, self.tokens)]
        lengths = [longest, *self._lower_ends(BucketSettings(tuple(data.bucket_bounds), data.short))]
        budget = data.frames_per_gpu // flow.timesteps_per_sample
        return sorted(
            {Shape(max(1, budget // length) * flow.timesteps_per_sample, length, self.tokens) for length in lengths},
            key=lambda shape: shape.weight,
        )

    def _lower_ends(self, buckets: BucketSettings) -> Sequence[int]:
        """The shortest clip of every bucket that has one."""
        # "pad" too pads to the longest of a micro-batch, which short clips may fill alone.
        shortest = 1 if self.frames else SHORTEST
        bounds = (buckets.bounds[0] if buckets.short == "drop" else shortest, *buckets.bounds)
        if not self.frames:
            return bounds
        seen = [min(length, buckets.canvas) for length in self.frames]
        return [min(inside) for low in bounds if (inside := [length for length in seen if length >= low])]

"""What a run reads: the plan of its clips, batches made ahead of the steps, and the clips it evaluates on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from torch import Tensor

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch, BatchMaker
from ds_hymotion.data.corpus import Sample
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.data.plan import Position, Step
from ds_hymotion.errors import UserError
from ds_hymotion.flow.times import draw_time
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.qwen_clip import QwenClipEncoder
from ds_hymotion.training.evaluation import Evaluation
from ds_hymotion.training.plan import expert_plan, run_planner
from ds_hymotion.training.text import TextSource


class Feed:
    """The clips of a run in the order of its plan.

    Args:
        config: checked configuration.
        mixture: the corpora.
        text: their captions' features, or the encoder inside the run.
        network: the network that reads the batches.
        statistics: mean and std [C] that its input is normalised with.
        mesh: this rank's place.

    Attributes:
        planner, maker: which clips a step has, and their tensors.
        evaluation: the evaluation, if the run has one.
        evaluates_training_clips: whether those are training clips.
        unreadable: the clips that this rank could not read so far, with the reason.

    Raises:
        UserError: nothing to train or evaluate on, captions without features, or a canvas beyond the network's.
    """

    def __init__(
        self,
        config: RunConfig,
        mixture: Mixture,
        text: TextSource,
        network: ModelConfig,
        statistics: tuple[Tensor, Tensor],
        mesh: Mesh,
    ) -> None:
        self.config = config
        self.settings = config.hymotion
        self.mixture = mixture
        self.text = text
        self.statistics = statistics
        self.mesh = mesh
        canvas = config.hymotion.data.bucket_bounds[-1]
        if canvas > network.text_position:
            raise UserError(
                f"hymotion.data.bucket_bounds ends at {canvas}, beyond hymotion.model.text_position = "
                f"{network.text_position}; use at most {network.text_position}"
            )
        self.planner = run_planner(config, mixture)
        self.maker = self._maker(mixture.samples)
        self.notes: list[str] = []
        self.evaluates_training_clips = False
        self.evaluation = self._evaluation()
        self.unreadable: dict[str, str] = {}

    def _maker(self, samples: list[Sample]) -> BatchMaker:
        flow = self.settings.flow
        if not isinstance(self.text, QwenClipEncoder):
            # Looked up here, where all ranks find the same; inside the run one rank alone would stop.
            captions = ((sample, caption.text) for sample in samples for caption in sample.captions)
            missing = next((each for each in captions if each[1] not in self.text), None)
            if missing is not None:
                folder = self.mixture.corpus_of(missing[0]).text_cache_folder(self.settings.text.encoder)
                TextCache(folder).lookup([missing[1]])
        return BatchMaker(
            self.mixture,
            samples,
            self.text,
            self.statistics,
            partial(draw_time, flow.time),
            flow.condition_drop,
            self.settings.training.seed,
            self.planner.buckets.settings.canvas,
            expert_ids(samples, self.settings.experts.types, self.mixture.action_of),
        )

    def _evaluation(self) -> Evaluation | None:
        settings, main = self.settings.evaluation, self.mixture.parts[0]
        if not settings.eval_steps:
            return None
        samples = main.samples if settings.split == "train" else main.corpus.split(settings.split)
        if not samples and "split" not in settings.model_fields_set:
            self.notes.append(f"{main.corpus.folder} has no val split: evaluating on training clips with other noise")
            samples = main.samples
        self.evaluates_training_clips = samples is main.samples
        if not samples:
            raise UserError(
                f"{main.corpus.folder}: no clip in the {settings.split} split to evaluate on; set "
                "hymotion.evaluation.split to train (other noise) or eval_steps to 0"
            )
        maker = self._maker(list(samples))
        plan = expert_plan(self.settings.experts, samples, self.mixture.action_of)
        return Evaluation(maker, settings, self.config.deepspeed["train_micro_batch_size_per_gpu"], plan)

    def batches(
        self, position: Position, count: int, reads: bool, prefetcher: ThreadPoolExecutor
    ) -> Iterator[tuple[Step, list[Batch]]]:
        """The next ``count`` steps from ``position`` on with this rank's batches, made while the step before computes.

        Args:
            reads: whether this rank needs batches; without, it gets the steps alone.
        """
        walk = self.planner.walk(Position(position.epoch, list(position.segments), position.first))
        pending = None
        for number in range(count + 1):
            following = None
            if number < count:
                step = next(walk)
                following = (step, prefetcher.submit(self._make, step) if reads else None)
            if pending is not None:
                yield pending[0], pending[1].result() if pending[1] else []
            pending = following

    def _make(self, step: Step) -> list[Batch]:
        rank = self.mesh.data_rank
        return [self.maker.make(step.epoch, rows, step.strata, step.padded[rank]) for rows in step.micro_batches[rank]]

    def newly_unreadable(self) -> list[str]:
        """Lines that name the clips which this rank could not read since it was last asked."""
        makers = [self.maker, *([self.evaluation.maker] if self.evaluation else [])]
        failed = {clip: reason for maker in makers for clip, reason in maker.failed.copy().items()}
        new = [clip for clip in failed if clip not in self.unreadable]
        self.unreadable.update({clip: failed[clip] for clip in new})
        return [f"warning: clip {clip} is not used: {failed[clip]}" for clip in new]

    def describe(self) -> list[str]:
        """The tables that a run prints at its start, and a warning where steps are much smaller than asked for."""
        tables = [self.planner.buckets.table(self.planner.steps_per_bucket())]
        if len(self.mixture.parts) > 1 or self.settings.data.repeats > 1:
            tables.insert(0, self.mixture.table(self.planner))
        tables.extend(self.notes)
        layout, mean = self.planner.layout, self.planner.clips_per_step
        asked = layout.ranks * layout.accumulation * layout.clips
        if mean < asked / 2:
            tables.append(
                f"warning: steps hold {mean:.1f} clips on average, not the {asked} asked for: buckets are too small "
                "for more; lower the batch size, or give fewer hymotion.data.bucket_bounds"
            )
        return tables

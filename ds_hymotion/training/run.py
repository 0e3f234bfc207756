"""A training run from a checked configuration to exported weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import Batch
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.expert_ids import keep_action_types
from ds_hymotion.data.expert_owners import owned_experts
from ds_hymotion.data.fingerprint import fingerprint
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.data.plan import Position, Step
from ds_hymotion.data.steps import Layout
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import write_json
from ds_hymotion.model.experts import ExpertGenerator, expert_of
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.parallel.engine import DataEngine
from ds_hymotion.parallel.gradient_sync import OutOfSync, assert_synced
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.parameter_groups import SyncGroups, sync_groups
from ds_hymotion.training.adapters import adapt, require_same_adapters
from ds_hymotion.training.checkpoint import (
    FIXED,
    MASTER,
    Checkpoint,
    NoRoom,
    read_kind,
    restore_fixed,
)
from ds_hymotion.training.ema import WeightAverage
from ds_hymotion.training.expert_log import ExpertLog
from ds_hymotion.training.export import export_weights
from ds_hymotion.training.feed import Feed
from ds_hymotion.training.joints import JointPlan
from ds_hymotion.training.log import RunLog, announce
from ds_hymotion.training.memory import MemoryWatch
from ds_hymotion.training.network import (
    build_engine,
    build_generator,
    build_objective,
    network_config,
    stage_plan,
    starting_weights,
)
from ds_hymotion.training.nonfinite import finite_step, require_finite
from ds_hymotion.training.resumption import agreed_checkpoint, batch_note, require_same_network, resumed_position
from ds_hymotion.training.save_requests import SaveRequests
from ds_hymotion.training.schedule import rate_factor
from ds_hymotion.training.signals import StopRequest
from ds_hymotion.training.slow_rows import SlowRows
from ds_hymotion.training.text import require_same_text, text_provenance, text_source, text_tower
from ds_hymotion.training.values import StepValues
from ds_hymotion.training.watchdog import Watchdog
from ds_hymotion.training.weights import Provenance

VOTES = 3  # to stop, to save, to save and quit


class TrainingRun:
    """Owns the pieces of a run and the order they work in.

    Args:
        config: checked configuration.
        corpus: the prepared corpus, the main one if others are mixed in.
        output: the run's folder; made if missing.
        mesh: this rank's place.
        resume: continue from the newest intact checkpoint in this folder.
        mixture: the corpus with those that ``config`` mixes in, where they are open already.
    """

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        output: Path,
        mesh: Mesh,
        resume: Path | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        self.config = config
        self.settings = config.hymotion
        self.corpus = corpus
        self.mixture = mixture or Mixture.open(corpus, self.settings.data)
        self.fingerprint = fingerprint(self.mixture, self.settings)
        self.output = output
        self.mesh = mesh
        self.model_config = network_config(self.settings, corpus)
        self.text = text_source(self.settings.text, self.mixture, self.model_config, str(mesh.device))
        self.joints = JointPlan(self.settings.training, corpus.representation, mesh.model_size)
        checkpoint = agreed_checkpoint(resume, mesh)
        start = self.settings.model.init_from
        self.base = str(Path(start).absolute()) if start else ""
        self.stages = stage_plan(config, self.model_config, corpus)
        experts = self.settings.experts
        self.own = owned_experts(mesh.data_rank, experts.number, experts.size)
        whole = mesh.pipe_size == 1 and experts.size == 1
        held = None if whole else self._holds
        weights = starting_weights(self.settings, resumed=checkpoint is not None)
        generator = build_generator(self.settings, self.model_config, corpus, held, weights)
        if checkpoint:
            restore_fixed(checkpoint, dict(generator.named_buffers()))
        self.lora = adapt(generator, self.settings, weights, held, mesh) if weights and self.settings.lora else {}
        del weights
        statistics = generator.mean.clone(), generator.std.clone()
        self.feed = Feed(config, self.mixture, self.text, self.model_config, statistics, mesh)
        self.untrained = {name: value.clone() for name, value in generator.named_buffers()}
        names = tuple(name for name, parameter in generator.named_parameters() if parameter.requires_grad)
        self.sync_groups = SyncGroups(names) if self.lora else sync_groups(self.settings.gradient_sync, names)
        for name in self.sync_groups.frozen:
            parameter = generator.get_parameter(name).requires_grad_(False)
            here = torch.empty(0) if parameter.is_meta else parameter.detach().to(mesh.device, copy=True)
            self.untrained[name] = mesh.bring_to_first(here, parameter.shape, self.stages.stage_of(name)).cpu()
        self.engine = self._engine(generator)
        self.values = StepValues(self.engine, self.feed.maker, self.joints)
        planner = self.feed.planner
        self.experts = ExpertLog(self.engine, planner, experts, planner.buckets.frames) if experts.number else None
        self.average = (
            WeightAverage(self.engine.states, self.settings.training.ema_decay)
            if self.settings.training.ema_decay
            else None
        )
        self.slow_rows = SlowRows(
            self.engine.states, self.average, self.joints.every[self.joints.rank_channels[mesh.model_rank]]
        )
        self.memory = MemoryWatch(self.engine, self.average, self.joints.suggestion())
        self.checkpoint = Checkpoint(
            output,
            self.engine.states,
            self.engine.sync,
            self.average,
            self.untrained,
            mesh,
            self.settings.training.keep_last,
            self.settings.training.keep_every,
        )
        self.watchdog = Watchdog(self.engine, self.settings.watchdog_s)
        self.step = 0
        self.position = Position()
        if checkpoint:
            self._resume(checkpoint)

    def _holds(self, name: str) -> bool:
        """Whether this rank holds a parameter, by its released name."""
        return self.stages.holds(self.mesh.pipe_rank, name) and expert_of(name) in (None, *self.own)

    def _engine(self, generator: MotionGenerator) -> DataEngine:
        tower = text_tower(self.settings.text, self.text, self.settings.model.init_from)
        objective, plan = build_objective(generator, self.settings, self.corpus, self.joints, self.mesh, tower)
        where = None
        if isinstance(generator, ExpertGenerator) and self.settings.experts.size > 1:
            where = {n: (self.stages.stage_of(n), tuple(p.shape)) for n, p in generator.named_parameters()}
            generator.keep(self.own)
        return build_engine(objective, self.config, self.mesh, self.sync_groups, self.stages, plan, where)

    def _resume(self, checkpoint: Path) -> None:
        state = self.checkpoint.load(checkpoint)
        require_same_network(state["provenance"]["model"], asdict(self.model_config), checkpoint)
        require_same_text(state["provenance"].get("text", {}), self.provenance.text, checkpoint)
        self.base = self.base or state["provenance"].get("base", "")
        require_same_adapters(state["provenance"].get("lora", {}), self.lora, self.base, checkpoint)
        self.step = int(state["step"])
        self.position = resumed_position(state, self.fingerprint, self.settings.data.allow_other_data, checkpoint)
        if note := "layout" in state and batch_note(Layout(**state["layout"]), self.feed.planner.layout):
            announce(note)
        self.engine.restore_scaler(state["scaler"])
        if self.experts:
            self.experts.restore(state["experts"])
        with torch.no_grad():
            for name, value in read_kind(checkpoint, FIXED):
                if name in self.sync_groups.frozen:
                    self.untrained[name] = value
                    self.engine.put_frozen(name, value)
        if self.step > self.settings.training.max_steps:
            raise UserError(
                f"{checkpoint} stands at step {self.step}, hymotion.training.max_steps = "
                f"{self.settings.training.max_steps}; use at least {self.step}"
            )

    def train(self) -> None:
        """Run to ``max_steps``, or to a signal, and leave a checkpoint and the exported weights behind."""
        training = self.settings.training
        log = RunLog(self.output, self.engine, self.step, training.max_steps)
        self._introduce(log)
        self.watchdog.step = self.step
        requests = SaveRequests(self.output, self.mesh.is_first)
        with StopRequest() as stop, ThreadPoolExecutor(1) as prefetcher, self.engine.traffic, self.watchdog:
            left = training.max_steps - self.step
            for step, batches in self.feed.batches(self.position, left, self.engine.reads_batches, prefetcher):
                votes = self._train_step(step, batches, stop, requests, log)
                self._check_ranks()
                require_finite(self.engine, self.step, votes[:-VOTES], batches, step.valid_frames, self.config.dtype)
                if self.feed.evaluation and self.step % self.settings.evaluation.eval_steps == 0:
                    self._evaluate(log)
                stopping, asked, leaving = (vote > 0 for vote in votes[-VOTES:].tolist())
                if asked:
                    requests.take()
                due = asked or bool(training.save_steps) and self.step % training.save_steps == 0
                last = self.step == training.max_steps
                saved = False
                if due or stopping or last:
                    saved = self._save(log, must=stopping or last)
                if stopping or (leaving and saved):
                    log.say(f"stopped on request at step {self.step}; continue with --resume")
                    break
        if self.step == training.max_steps:
            self._export(log)
        self._conclude(log)
        log.close()

    def _train_step(
        self, step: Step, batches: list[Batch], stop: StopRequest, requests: SaveRequests, log: RunLog
    ) -> torch.Tensor:
        """One optimizer step; returns the loss parts of all ranks, and last the votes to stop, save, and quit."""
        training = self.settings.training
        factor = rate_factor(self.step, training) * step.lr_factor
        with (
            finite_step(self.engine, self.step, batches, step.valid_frames),
            self.slow_rows.held(self.step),
            self.memory.counting(self.step, self.settings.parallel.memory_steps),
        ):
            self.engine.choose(step)
            parts = self.engine.train_step(self.step, batches, step.valid_frames, factor)
            if self.average and not self.engine.skipped:
                self.average.update(self.engine.moved)
        wishes = torch.tensor([float(stop.reason is not None), *requests.votes()], device=parts.device)
        votes = torch.cat([parts, wishes])
        self.mesh.sum_over_all(votes)
        self.step += 1
        self.watchdog.beat(self.step)
        self._advance(step)
        warnings = self.experts.count(self.step, step) if self.experts else []
        logged = self.step % training.log_steps == 0 or self.step in (1, training.max_steps)
        loss = None
        if logged:
            values = self.values.of(votes[:-VOTES].cpu(), step, factor)
            values |= self.experts.values() if self.experts else {}
            loss = float(values["loss"])
            log.record(self.step, values)
        for line in [*self.memory.lines(), *warnings]:
            log.say(line)
        for line in self.feed.newly_unreadable():
            log.warn(line)
        log.tick(step.valid_frames, loss)
        return votes

    def _advance(self, step: Step) -> None:
        """Move the saved position behind ``step``: the walk itself runs one step ahead."""
        if step.epoch != self.position.epoch:
            self.position = Position(step.epoch, first=self.step - 1)
        self.position.advance(self.feed.planner.layout)

    def _check_ranks(self) -> None:
        """Every ``check_steps``: ranks that should hold the same weights do, or all ranks end with an error."""
        every = self.settings.gradient_sync.check_steps
        if every and self.step % every == 0:
            assert_synced(self.mesh, self.engine.parameters, f"step {self.step}")
            if drift := self.engine.replica_difference():
                raise OutOfSync(
                    f"step {self.step}: weights that several ranks hold alike differ by {drift:.1e} in their sums; go "
                    "back to the last checkpoint with --resume"
                )

    def _evaluate(self, log: RunLog) -> None:
        assert self.feed.evaluation is not None
        with self.engine.traffic.paused(), self.watchdog.patient():
            held_out = self.feed.evaluation.run(self.engine)
        values = {f"loss_t{time:g}": loss for time, loss in zip(held_out.times, held_out.losses)}
        log.record(self.step, {"loss": held_out.mean, **values}, kind="eval")
        clips = "training clips, other noise" if self.feed.evaluates_training_clips else "held-out clips"
        log.say(f"step {self.step}: loss {held_out.mean:.4f} ({clips})")

    def _save(self, log: RunLog, must: bool) -> bool:
        """Save and say so; where the disk has no room, say that and go on, unless the run ``must`` not."""
        state = {
            "position": self.position.state(),
            "layout": asdict(self.feed.planner.layout),
            "config": self.config.as_dict(),
            "scaler": self.engine.scaler_state(),
            "provenance": asdict(self.provenance),
            "fingerprint": self.fingerprint,
            "experts": self.experts.state() if self.experts else None,
        }
        try:
            with self.watchdog.patient():
                log.say(f"step {self.step}: saved {self.checkpoint.save(self.step, state)}")
        except NoRoom as error:
            if must:
                raise
            log.say(f"warning: {error}; the run goes on")
            return False
        if drift := self.engine.replica_difference():
            log.say(f"warning: weights that several ranks hold alike differ by {drift:.1e} in their sums")
        return True

    @property
    def provenance(self) -> Provenance:
        """What the run's weights are for."""
        return Provenance(
            model=asdict(self.model_config),
            representation=self.corpus.representation.name,
            fps=self.corpus.fps,
            text_encoder=self.settings.text.encoder,
            preset=self.settings.model.preset,
            steps=self.step,
            base=self.base,
            text=text_provenance(self.settings.text, self.text),
            lora=self.lora,
        )

    def _export(self, log: RunLog) -> None:
        """Whole weights under the released names: the average where one is kept."""
        pieces = self.average.pieces() if self.average else self.engine.states.pieces(MASTER)
        tensors = dict(self.untrained)
        for name in self.engine.states.names:
            whole = self.engine.states.gather(name, pieces)
            if self.mesh.is_first:
                tensors[name] = whole.cpu()
        self.mesh.on_first(lambda: export_weights(self.output, tensors, self.provenance, self.position.epoch, log.say))

    def _introduce(self, log: RunLog) -> None:
        self.mesh.on_first(lambda: write_json(self.output / "config.json", self.config.as_dict()))
        if self.experts:
            self.mesh.on_first(lambda: keep_action_types(self.corpus, self.output))
        log.say(
            f"{self.settings.model.preset}: {self.engine.states.describe()}, {self.config.dtype}, "
            f"{self.mesh.data_size} data rank(s) x {self.engine.accumulation} micro-batch(es), "
            f"{self.corpus.representation.name}, from step {self.step} to {self.settings.training.max_steps}"
        )
        for line in self.engine.notes:
            log.say(line)
        if self.engine.stage_table:
            log.say(self.engine.stage_table)
        if self.experts:
            log.say(self.experts.table())
        if self.mesh.model_size > 1:
            log.say(self.joints.describe(self.settings.flow))
        for table in self.feed.describe():
            log.say(table)

    def _conclude(self, log: RunLog) -> None:
        """Name the clips that could not be read, of all ranks, and what was sent (collective)."""
        self.feed.newly_unreadable()
        failed = self.mesh.gather_objects(self.feed.unreadable)
        for names in failed:
            for clip, reason in names.items():
                log.say(f"not used: clip {clip}: {reason}")
        log.say(self.engine.traffic.summary(self.engine.trained_elements))

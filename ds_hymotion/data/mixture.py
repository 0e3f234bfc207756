"""A mixture: the corpus of a run and those mixed into its epochs, as one list of training clips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from torch import Tensor

from ds_hymotion.config.data import DataSection
from ds_hymotion.data.actions.types import ActionTypes
from ds_hymotion.data.corpus import ACTION_TYPES_FILE, Corpus, Sample
from ds_hymotion.data.plan import Planner
from ds_hymotion.data.visits import Ration
from ds_hymotion.errors import UserError

MAIN = "--data_dir"


@dataclass(frozen=True)
class Part:
    """One corpus of a mixture.

    Attributes:
        name: ``--data_dir``, ``mix.0``, ``mix.1`` … or ``replay``, as in the configuration.
        corpus: the corpus.
        samples: its training clips.
        times: visits of each of them per epoch, on average.
        share: where it is not 0, instead of ``times``: share of all clips of an epoch.
    """

    name: str
    corpus: Corpus
    samples: list[Sample]
    times: Fraction = Fraction(1)
    share: Fraction = Fraction(0)

    @property
    def amount(self) -> str:
        """How much of it an epoch takes, in words."""
        if self.share:
            return f"{100 * float(self.share):.12g} % of clips"
        return f"x {float(self.times):.12g}"


class Mixture:
    """Training clips of several corpora, beside each other.

    Attributes:
        parts: the corpora; the first is the main one, whose mean and std, validation and test clips are the run's.
        samples: all training clips. Outside the main corpus an id is ``mix.0:`` or ``replay:`` and the clip's own, so
            that equal ids neither share random numbers nor look alike in messages.
        representation, fps: what all corpora have.
    """

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.main = parts[0].corpus
        self.representation = self.main.representation
        self.fps = self.main.fps
        self.samples = list(parts[0].samples)
        self._others: dict[str, tuple[Corpus, Sample]] = {}
        self._types: dict[Path, ActionTypes] = {}
        for part in parts[1:]:
            for sample in part.samples:
                named = replace(sample, index=len(self.samples), id=f"{part.name}:{sample.id}")
                self.samples.append(named)
                self._others[named.id] = (part.corpus, sample)
        if taken := next((sample.id for sample in self.main.samples if sample.id in self._others), None):
            raise UserError(
                f"{self.main.folder}: clip id {taken!r} names a mixed corpus; prepare it under another name"
            )

    @classmethod
    def open(cls, main: Corpus, settings: DataSection) -> Mixture:
        """The main corpus with those that the settings mix in.

        Raises:
            UserError: a corpus is missing, damaged, given twice, without training clips, or unlike the main one.
        """
        clips = main.split("train")
        parts = [Part(MAIN, main, clips[: settings.max_clips or None], Fraction(settings.repeats))]
        folders = [*(entry.corpus for entry in settings.mix), *([settings.replay.corpus] if settings.replay else [])]
        names = [*(f"mix.{number}" for number in range(len(settings.mix))), "replay"]
        _refuse_twice({MAIN: str(main.folder), **dict(zip(names, folders))})
        for name, entry in zip(names, settings.mix):
            # As written: 0.1 of ten clips is one clip, whatever binary fraction stands for 0.1.
            times = Fraction(str(entry.weight)) if entry.weight is not None else Fraction(entry.repeats or 1)
            corpus = Corpus.open(entry.corpus)
            parts.append(Part(name, corpus, corpus.split("train"), times))
        if settings.replay:
            corpus = Corpus.open(settings.replay.corpus)
            parts.append(Part("replay", corpus, corpus.split("train"), share=Fraction(str(settings.replay.share))))
        for part in parts:
            _require_alike(part, main)
            if not part.samples:
                raise UserError(f"{part.corpus.folder}: no clip in the train split; prepare it with another --split")
        return cls(parts)

    @property
    def corpora(self) -> list[Corpus]:
        """All corpora, the main one first."""
        return [part.corpus for part in self.parts]

    @property
    def rations(self) -> list[Ration]:
        """What a :class:`Planner` needs to know; positions of clips are those in ``samples``."""
        return [Ration(part.name, len(part.samples), part.times, part.share) for part in self.parts]

    def corpus_of(self, sample: Sample) -> Corpus:
        """The corpus of a clip in ``samples``, or of any clip of the main one."""
        return self._others[sample.id][0] if sample.id in self._others else self.main

    def action_of(self, sample: Sample) -> str | None:
        """The action type of a clip in ``samples`` or of the main corpus: as sorted, else as given, else None.

        Raises:
            UserError: the file of a corpus's types is damaged or made for other samples.
        """
        corpus, own = self._others.get(sample.id, (self.main, sample))
        if not (corpus.folder / ACTION_TYPES_FILE).is_file():
            return own.action
        if corpus.folder not in self._types:
            self._types[corpus.folder] = ActionTypes.open(corpus)
        return self._types[corpus.folder].name_of(own)

    def features(self, sample: Sample) -> Tensor:
        """Features [T, C] of a clip in ``samples``, or of any clip of the main corpus; as :meth:`Corpus.features`."""
        corpus, own = self._others.get(sample.id, (self.main, sample))
        return corpus.features(own)

    def table(self, planner: Planner) -> str:
        """The table a run prints at its start: what a mean epoch has of every corpus; dropped clips are left out."""
        frames = planner.buckets.frames
        rows = []
        for part, members, visits in zip(self.parts, planner.visits.members, planner.visits.per_epoch):
            total = sum(frames[clip] for clip in members)
            rows.append((part, len(members), total, visits, total * visits / len(members)))
        whole = sum(row[-1] for row in rows)
        width = max(len(part.name) for part in self.parts)
        lines = [
            f"{'corpus':>{width}} {'clips':>8} {'frames':>10} {'an epoch takes':>15} {'clips/epoch':>12} "
            f"{'of all frames':>14}  folder"
        ]
        lines += [
            f"{part.name:>{width}} {clips:>8} {total:>10} {part.amount:>15} {float(visits):>12.10g} "
            f"{100 * float(seen / whole):>12.1f} %  {part.corpus.folder}"
            for part, clips, total, visits, seen in rows
        ]
        return "\n".join(lines)


def _refuse_twice(folders: Mapping[str, str]) -> None:
    known: dict[Path, str] = {}
    for name, folder in folders.items():
        place = Path(folder).resolve()
        if place in known:
            raise UserError(
                f"hymotion.data.{name}.corpus = {folder} is also {known[place]}; name every corpus once, and say with "
                "repeats how often an epoch takes it"
            )
        known[place] = name if name == MAIN else f"hymotion.data.{name}.corpus"


def _require_alike(part: Part, main: Corpus) -> None:
    for (flag, own), (_, wanted) in zip(traits(part.corpus), traits(main)):
        if own != wanted:
            raise UserError(
                f"{part.corpus.folder} (hymotion.data.{part.name}.corpus) has {flag} {own}, {main.folder} has "
                f"{wanted}; prepare it with --{flag} {wanted}"
            )


def traits(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """What corpora of one run must have in common, by the names of launch/prepare.py's flags."""
    yield "representation", corpus.representation.name
    yield "fps", f"{corpus.fps:.6g}"
    yield "positions_relative_to", str(corpus.header["representation_options"].get("positions_relative_to"))

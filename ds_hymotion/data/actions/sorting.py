"""Sorting a corpus into action types: train the router, or take one, or the labels; write the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from ds_hymotion.action_names import ACTION_TYPES, check_names
from ds_hymotion.data.actions.clusters import cluster, nearest
from ds_hymotion.data.actions.labels import label_of
from ds_hymotion.data.actions.measures import measures_of
from ds_hymotion.data.actions.network import one_thread, stretches_of
from ds_hymotion.data.actions.prompts import caption_centroids
from ds_hymotion.data.actions.router import Router, clip_features, embed
from ds_hymotion.data.actions.settings import AUTO, ActionSettings
from ds_hymotion.data.actions.training import Scale, steps_for, train_network
from ds_hymotion.data.actions.types import ActionTypes, samples_digest
from ds_hymotion.data.corpus import Corpus, Sample
from ds_hymotion.errors import UserError
from ds_hymotion.randomness import generator

MOST_CLIPS = 4096
"""The network trains on so many clips at most, drawn from the training split: they are held in memory."""
_LABEL_WEIGHT = 4.0
"""Distance of a label from no label along its axis; the seven measures have standard deviation 1."""


@dataclass(frozen=True)
class Sorted:
    """What sorting made.

    Attributes:
        types: the written file's content.
        points: [N, E] embedding of every sample; None where labels decided.
        labels: what is known of every sample; None where nothing is.
        matched: the names that come from labels.
    """

    types: ActionTypes
    points: NDArray[np.float32] | None
    labels: tuple[str | None, ...]
    matched: tuple[str, ...]


def sort_corpus(corpus: Corpus, settings: ActionSettings, say: Callable[[str], None] = print) -> Sorted:
    """Give every sample of a corpus its action type and write ``actions.safetensors`` into its folder.

    The same corpus and settings give the same bytes.

    Raises:
        UserError: too few clips or labels for what is asked, or a damaged router.
    """
    if settings.mode == "labels":
        found = _by_labels(corpus, settings)
    elif settings.router is not None:
        found = _by_router(corpus, settings)
    else:
        found = _trained(corpus, settings, say)
    found.types.write(corpus.folder)
    return found


def _by_labels(corpus: Corpus, settings: ActionSettings) -> Sorted:
    given = {sample.action for sample in corpus.samples if sample.action is not None}
    names = settings.names
    if names is None:
        known = {name.lower() for name in ACTION_TYPES}
        names = ACTION_TYPES if {name.lower() for name in given} <= known else tuple(sorted(given))
    try:
        check_names(names)
    except ValueError as error:
        raise UserError(f"{corpus.folder}: {error}; name the types with --action_names") from None
    if settings.types not in (None, len(names)):
        raise UserError(f"--action_types {settings.types}: the labels have {len(names)} types, {', '.join(names)}")
    labels = tuple(label_of(sample, names, ("action",)) for sample in corpus.samples)
    missing = [sample for sample, label in zip(corpus.samples, labels, strict=True) if label is None]
    if missing:
        told = missing[0].action
        raise UserError(
            f"--actions labels: {len(missing)} of {len(corpus)} samples have no label among {', '.join(names)}, such "
            f"as {missing[0].id!r}{f' ({told})' if told else ''}: prepare the corpus with an --actions_file that names "
            "all, or give --actions supervised"
        )
    ids = [names.index(label) for label in labels if label is not None]
    return Sorted(_types(corpus, names, ids, "labels", None, settings.seed), None, labels, names)


def _by_router(corpus: Corpus, settings: ActionSettings) -> Sorted:
    assert settings.router is not None
    taken = ActionTypes.read(settings.router)
    if taken.router is None:
        raise UserError(f"--actions_from {settings.router}: its types come from labels, so there is no router to take")
    points = taken.router.points(corpus, _bar(corpus.samples, settings))
    ids = nearest(points, taken.router.centres).tolist()
    labels = tuple(label_of(sample, taken.names, settings.sources) for sample in corpus.samples)
    types = _types(corpus, taken.names, ids, taken.mode, taken.router, settings.seed)
    return Sorted(types, points, labels, tuple(name for name in taken.names if name in labels))


def _trained(corpus: Corpus, settings: ActionSettings, say: Callable[[str], None]) -> Sorted:
    train, names, count = corpus.split("train"), settings.vocabulary, settings.count
    if len(train) < count:
        raise UserError(
            f"{corpus.folder} has {len(train)} training clips, too few for {count} action types: give --action_types "
            f"{len(train)} or less"
        )
    labels = tuple(label_of(sample, names, settings.sources) for sample in corpus.samples)
    mode = _mode(settings.mode, [labels[sample.index] for sample in train], corpus, say)
    guided = mode == "supervised"
    drawn = _drawn(train, settings.seed)
    say(f"actions   {mode}: the network trains on {len(drawn):,} of {len(train):,} training clips")
    with one_thread():
        clips = [stretches_of(clip_features(corpus, sample)) for sample in _bar(drawn, settings)]
        stretches = [stretch for clip in clips for stretch in clip]
        owner = [labels[sample.index] for sample, clip in zip(drawn, clips, strict=True) for _ in clip]
        targets, weights = _targets(stretches, owner if guided else [None] * len(owner), names)
        scale = Scale.of(stretches)
        steps = settings.steps or steps_for(len(stretches))
        network = train_network(stretches, targets, weights, scale, settings.seed, steps, settings.progress)
        points = embed(network, scale, corpus, _bar(corpus.samples, settings))
        rows = [sample.index for sample in train]
        made = cluster(
            points[rows],
            count,
            settings.seed,
            names,
            [labels[row] for row in rows],
            guided,
            named=settings.names is not None,
        )
    router = Router(network, scale, made.centres)
    types = _types(corpus, made.names, nearest(points, made.centres).tolist(), mode, router, settings.seed)
    return Sorted(types, points, labels, made.matched)


def _mode(asked: str, labels: Sequence[str | None], corpus: Corpus, say: Callable[[str], None]) -> str:
    kinds = {label for label in labels if label is not None}
    if asked == "supervised" and len(kinds) < 2:
        raise UserError(
            f"--actions supervised: captions, hints and labels of {corpus.folder} tell {len(kinds)} type(s) of its "
            "training clips, and 2 are needed: give --actions unsupervised, or --action_names that its labels have"
        )
    if asked != AUTO:
        return asked
    known = sum(label is not None for label in labels)
    say(f"actions   {known:,} of {len(labels):,} training clips have a label, of {len(kinds)} type(s)")
    return "supervised" if len(kinds) > 1 else "unsupervised"


def _drawn(train: Sequence[Sample], seed: int) -> list[Sample]:
    if len(train) <= MOST_CLIPS:
        return list(train)
    order = torch.randperm(len(train), generator=generator(seed, "action clips"))[:MOST_CLIPS]
    return [train[place] for place in sorted(order.tolist())]


def _targets(stretches: Sequence[Tensor], labels: Sequence[str | None], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """What the network is to say of every stretch, and how much it counts: [N, 7], with labels [N, 7 + names].

    Labels have an axis per name; rare ones count more, so that every type weighs the same.
    """
    measures = torch.stack([measures_of(stretch) for stretch in stretches])
    spread = measures.std(dim=0, unbiased=False).clamp(min=1e-3)
    targets, weights = (measures - measures.mean(dim=0)) / spread, torch.ones_like(measures)
    present = [name for name in names if name in labels]
    if not present:
        return targets, weights
    places = torch.tensor([-1 if label is None else present.index(label) for label in labels])
    wanted = _LABEL_WEIGHT * (places[:, None] == torch.arange(len(present))).float()
    sizes = torch.bincount(places[places >= 0], minlength=len(present)).float()
    known = places >= 0
    counts = torch.where(known, (known.sum() / len(present) / sizes)[places.clamp(min=0)], 0.0)
    return torch.cat([targets, wanted], dim=1), torch.cat([weights, counts[:, None].expand_as(wanted)], dim=1)


def _types(
    corpus: Corpus, names: tuple[str, ...], ids: list[int], mode: str, router: Router | None, seed: int
) -> ActionTypes:
    train = corpus.split("train")
    captions = caption_centroids(corpus, train, [ids[sample.index] for sample in train], len(names), seed)
    return ActionTypes(names, tuple(ids), mode, samples_digest(corpus.samples), router, captions)


def _bar(samples: Sequence[Sample], settings: ActionSettings) -> tqdm:
    return tqdm(samples, desc="clips", unit="clip", disable=not settings.progress)

"""How well the action router sorts built-in clips of seeds that it has not seen, with and without labels."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from sklearn.metrics import adjusted_rand_score

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.data.actions.labels import label_of
from ds_hymotion.data.actions.network import MOST_PARAMETERS
from ds_hymotion.data.actions.prompts import nearest_type
from ds_hymotion.data.actions.settings import ActionSettings
from ds_hymotion.data.actions.sorting import sort_corpus
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.reports.measuring.builtin_corpus import builtin_corpus
from ds_hymotion.reports.measuring.row import Row
from ds_hymotion.text.cache import TextCache

FRAMES = (60, 300)
MODES = {"supervised": "verbs of captions", "unsupervised": "nothing"}
"""What the router learns from besides the motions; never the true types."""


def run(clips_per_type: int = 40, unseen_per_type: int = 20, seed: int = 0, unseen_seed: int = 1) -> list[Row]:
    """Trains the router on one seed's built-in clips, twice in each mode, and judges it on another seed's.

    Agreement is the adjusted Rand index against the clips' true types: 1 for the same division, 0 for chance. Prompts
    are the unseen clips' captions, encoded with the hashed encoder; a hit is the type that their clip's motion got.
    Options: clips of each of the six types that it learns from and that it is judged on, and the seeds of the two sets.
    """
    if seed == unseen_seed:
        raise UserError(f"--unseen_seed {unseen_seed} is --seed too: give another")
    types = len(ACTION_TYPES)
    with tempfile.TemporaryDirectory() as work:
        known = builtin_corpus(Path(work) / "known", types * clips_per_type, FRAMES, seed=seed)
        unseen = builtin_corpus(Path(work) / "unseen", types * unseen_per_type, FRAMES, seed=unseen_seed)
        rows = [Row("captions' verbs: clips with their true type", _right_verbs(known), "%")]
        for mode in MODES:
            rows += _figures(mode, known, unseen)
    return rows


def _right_verbs(corpus: Corpus) -> float:
    right = sum(label_of(sample, ACTION_TYPES, ("captions",)) == sample.action for sample in corpus.samples)
    return 100 * right / len(corpus)


def _figures(mode: str, known: Corpus, unseen: Corpus) -> list[Row]:
    settings = ActionSettings(mode, sources=("captions",))
    start = time.perf_counter()
    found = sort_corpus(known, settings, say=lambda _: None)
    seconds = time.perf_counter() - start
    again = sort_corpus(known, settings, say=lambda _: None)
    router = found.types.router
    assert router is not None and again.types.router is not None
    ids, ids_again = (each.predict(unseen, unseen.samples) for each in (router, again.types.router))
    differing = sum(a != b for a, b in zip([*found.types.ids, *ids], [*again.types.ids, *ids_again], strict=True))
    predicted = router.predict(known, known.samples)
    differing_stored = sum(a != b for a, b in zip(found.types.ids, predicted, strict=True))
    centroids = found.types.captions["hashed"]
    cache = TextCache(unseen.text_cache_folder("hashed"))
    hits = [
        nearest_type(centroids, cache.pooled([caption.text])[0]) == number
        for sample, number in zip(unseen.samples, ids, strict=True)
        for caption in sample.captions
    ]
    parameters = sum(parameter.numel() for parameter in router.network.parameters())
    given = {"learnt from": MODES[mode], "clips": len(known), "unseen": len(unseen)}
    agreement = {name: _agreement(corpus, numbers) for name, corpus, numbers in (
        ("its own clips", known, found.types.ids), ("unseen clips", unseen, ids)
    )}  # fmt: skip
    return [
        Row(f"{mode}: parameters", parameters, "", MOST_PARAMETERS, None, given),
        *(
            Row(f"{mode}: adjusted Rand index, {name}", value, "", None, None, given)
            for name, value in agreement.items()
        ),
        Row(f"{mode}: types that differ between two runs", differing, "", None, None, given),
        Row(f"{mode}: stored types that predicting again changes", differing_stored, "", None, None, given),
        Row(f"{mode}: prompts sent where their clip is", 100 * sum(hits) / len(hits), "%", None, None, given),
        Row(f"{mode}: sorting", seconds, "s", None, None, given),
    ]


def _agreement(corpus: Corpus, ids: list[int] | tuple[int, ...]) -> float:
    return float(adjusted_rand_score([sample.action for sample in corpus.samples], ids))

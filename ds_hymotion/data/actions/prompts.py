"""Which action type a text asks for: that of the nearest captions."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor
from torch.nn import functional

from ds_hymotion.data.actions.network import one_thread
from ds_hymotion.data.actions.types import ActionTypes, CaptionCentroids
from ds_hymotion.data.corpus import TEXT, Corpus, Sample
from ds_hymotion.errors import UserError
from ds_hymotion.randomness import generator
from ds_hymotion.text.cache import INDEX, TextCache
from ds_hymotion.text.encoder import TextEncoder

MOST_CAPTIONS = 20_000
"""So many drawn captions of an encoder at most; they are held in memory."""


def action_of_prompt(types: ActionTypes, prompt: str, encoder: TextEncoder | None, action: str | None = None) -> int:
    """The number of the type that a prompt asks for.

    Args:
        types: the types of the corpus that the experts were trained on.
        encoder: computes the prompt's pooled vector; not needed where the action is named.
        action: the name of a type, which then counts instead of the prompt.

    Raises:
        UserError: no type is called ``action``, or the types know no captions of this encoder or width.
    """
    if action is not None:
        return types.number(action)
    known = ", ".join(sorted(types.captions)) or "none"
    if encoder is None or encoder.name not in types.captions:
        name = "none" if encoder is None else encoder.name
        raise UserError(
            f"the action types hold no captions of text encoder {name!r} (known: {known}): encode the corpus with it "
            "and give launch/prepare.py --actions again, or name the type with --action"
        )
    return nearest_type(types.captions[encoder.name], encoder.encode([prompt]).pooled[0])


def nearest_type(centroids: CaptionCentroids, pooled: Tensor) -> int:
    """The type whose captions' mean is nearest to a pooled vector [V].

    Raises:
        UserError: the vector has another width.
    """
    width = centroids.directions.shape[1]
    if tuple(pooled.shape) != (width,):
        raise UserError(
            f"the action types hold captions {width} wide, the text encoder gives {tuple(pooled.shape)}: use the "
            "encoder settings of the corpus, or name the type with --action"
        )
    vector = functional.normalize(pooled.detach().cpu().double(), dim=0)
    nearness = (centroids.directions.double() * vector).sum(dim=1) + centroids.offsets.double()
    return int(torch.where(centroids.counts > 0, nearness, -torch.inf).argmax())


def caption_centroids(
    corpus: Corpus, samples: list[Sample], ids: list[int], types: int, seed: int = 0
) -> dict[str, CaptionCentroids]:
    """Centroids of the samples' captions by text encoder, as far as the corpus has their features.

    Every pooled vector counts with length 1, captions that several samples share as often as they occur.
    """
    found = {}
    for index in sorted((corpus.folder / TEXT).glob(f"*/{INDEX}")):
        cache = TextCache(index.parent)
        texts = [(c.text, place) for s, place in zip(samples, ids, strict=True) for c in s.captions if c.text in cache]
        if len(texts) > MOST_CAPTIONS:
            order = torch.randperm(len(texts), generator=generator(seed, "action captions"))[:MOST_CAPTIONS]
            texts = [texts[place] for place in sorted(order.tolist())]
        if texts:
            pooled = cache.pooled([text for text, _ in texts])
            found[index.parent.name] = centroids_of(pooled, torch.tensor([place for _, place in texts]), types)
    return found


def centroids_of(pooled: Tensor, places: Tensor, types: int) -> CaptionCentroids:
    """Centroids of pooled vectors [N, V] of types ``places`` [N].

    Distances are in the spread of captions within a type (Mahalanobis), whose covariance is shrunk after Ledoit and
    Wolf (2004): what all captions share, such as "a person", counts for little.
    """
    vectors = functional.normalize(pooled.double(), dim=1)
    counts = torch.bincount(places, minlength=types)
    sums = torch.zeros(types, vectors.shape[1], dtype=torch.float64).index_add_(0, places, vectors)
    means = sums / counts.clamp(min=1)[:, None]
    with one_thread():
        covariance = ledoit_wolf((vectors - means[places]).numpy(), assume_centered=True)[0]
        spread = float(np.trace(covariance)) / len(covariance)
        covariance += (1e-3 * spread if spread > 1e-9 else 1.0) * np.eye(len(covariance))
        directions = torch.from_numpy(np.linalg.solve(covariance, means.numpy().T).T)
    offsets = -0.5 * (directions * means).sum(dim=1)
    return CaptionCentroids(directions.float().contiguous(), offsets.float(), counts)

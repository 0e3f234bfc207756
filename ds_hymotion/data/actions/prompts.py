"""Which action type a text asks for: that of the nearest captions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ds_hymotion.data.actions.types import ActionTypes, CaptionCentroids
from ds_hymotion.data.corpus import TEXT, Corpus, Sample
from ds_hymotion.errors import UserError
from ds_hymotion.text.cache import INDEX, TextCache
from ds_hymotion.text.encoder import TextEncoder

_PART = 1024


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
    """The type whose captions' mean has the smallest angle to a pooled vector [V], both from the mean of all captions.

    Raises:
        UserError: the vector has another width.
    """
    means = centroids.means.double()
    if tuple(pooled.shape) != tuple(means.shape[1:]):
        raise UserError(
            f"the action types hold captions {means.shape[1]} wide, the text encoder gives {tuple(pooled.shape)}: "
            "use the encoder settings of the corpus, or name the type with --action"
        )
    counts = centroids.counts.double()
    middle = (means * counts[:, None]).sum(dim=0) / counts.sum().clamp(min=1)
    vector = functional.normalize(pooled.detach().cpu().double(), dim=0)
    likeness = functional.normalize(means - middle, dim=1) @ functional.normalize(vector - middle, dim=0)
    return int(torch.where(centroids.counts > 0, likeness, -torch.inf).argmax())


def caption_centroids(corpus: Corpus, samples: list[Sample], ids: list[int], types: int) -> dict[str, CaptionCentroids]:
    """Centroids of the samples' captions by text encoder, as far as the corpus has their features.

    Every pooled vector counts with length 1, captions that several samples share as often as they occur.
    """
    found = {}
    for index in sorted((corpus.folder / TEXT).glob(f"*/{INDEX}")):
        cache = TextCache(index.parent)
        texts = [(c.text, place) for s, place in zip(samples, ids, strict=True) for c in s.captions if c.text in cache]
        if not texts:
            continue
        sums = torch.zeros(types, cache.pooled_dim, dtype=torch.float64)
        counts = torch.zeros(types, dtype=torch.int64)
        for start in range(0, len(texts), _PART):
            part = texts[start : start + _PART]
            places = torch.tensor([place for _, place in part])
            pooled = cache.pooled([text for text, _ in part]).double()
            sums.index_add_(0, places, functional.normalize(pooled, dim=1))
            counts.index_add_(0, places, torch.ones_like(places))
        found[index.parent.name] = CaptionCentroids((sums / counts.clamp(min=1)[:, None]).float(), counts)
    return found

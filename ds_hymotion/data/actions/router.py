"""The router: network and centres that give a motion its action type, always the same one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ds_hymotion.data.actions.clusters import nearest
from ds_hymotion.data.actions.features import action_features
from ds_hymotion.data.actions.network import ActionNetwork, at_network_length, one_thread, stretches_of
from ds_hymotion.data.actions.training import Scale
from ds_hymotion.data.corpus import Corpus, Sample


@dataclass(frozen=True)
class Router:
    """What decides a motion's action type; it fits any corpus, whatever its representation and frame rate.

    Attributes:
        network: from stretches of motion to points.
        scale: of the network's features.
        centres: [k, E] float32, in the order of the types.
    """

    network: ActionNetwork
    scale: Scale
    centres: NDArray[np.float32]

    def points(self, corpus: Corpus, samples: Iterable[Sample]) -> NDArray[np.float32]:
        """The embedding [N, E] of every sample.

        Every sample is computed by itself and on one thread, so that its point depends on nothing else.

        Raises:
            UnreadableSample: a sample's features are damaged.
        """
        return embed(self.network, self.scale, corpus, samples)

    def predict(self, corpus: Corpus, samples: Iterable[Sample]) -> list[int]:
        """The action type of every sample, as a number; see :meth:`points`."""
        points = self.points(corpus, samples)
        return nearest(points, self.centres).tolist() if len(points) else []


def embed(network: ActionNetwork, scale: Scale, corpus: Corpus, samples: Iterable[Sample]) -> NDArray[np.float32]:
    """Points [N, E] of samples, the mean over the stretches of each."""
    with one_thread(), torch.no_grad():
        rows = [_point(network, scale, clip_features(corpus, sample)) for sample in samples]
    return np.stack(rows) if rows else np.zeros((0, network.out.out_features), dtype=np.float32)


def clip_features(corpus: Corpus, sample: Sample) -> Tensor:
    """Action features [T, 133] of a sample."""
    return action_features(corpus.features(sample), corpus.representation, corpus.fps, corpus.skeleton)


def _point(network: ActionNetwork, scale: Scale, features: Tensor) -> NDArray[np.float32]:
    stretches: Sequence[Tensor] = stretches_of(features)
    points = [network(at_network_length(scale(stretch)))[0] for stretch in stretches]
    return torch.stack(points).mean(dim=0).numpy()

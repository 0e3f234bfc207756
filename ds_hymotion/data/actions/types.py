"""The action types of a corpus on disk: names, every sample's type, and what decided it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ds_hymotion.action_names import check_names
from ds_hymotion.data.actions.features import CHANNELS
from ds_hymotion.data.actions.network import ActionNetwork
from ds_hymotion.data.actions.router import Router
from ds_hymotion.data.actions.settings import MODES
from ds_hymotion.data.actions.training import Scale
from ds_hymotion.data.corpus import ACTION_TYPES_FILE, Corpus, Sample
from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import TensorFiles, save_tensors

FORMAT = "ds_hymotion.actions"
VERSION = 1
_MOST_COORDINATES = 256
_KEY = "ds_hymotion"
_CAPTIONS, _NETWORK = "captions.", "network."


@dataclass(frozen=True)
class CaptionCentroids:
    """Where the captions of every type lie in an encoder's pooled space, for vectors of length 1.

    The squared distance of a vector v [V] to type k is a constant of v, less twice ``directions[k] @ v + offsets[k]``.

    Attributes:
        directions: [k, V] float32.
        offsets: [k] float32.
        counts: [k] int64, captions of every type; a type without any is never the nearest.
    """

    directions: Tensor
    offsets: Tensor
    counts: Tensor


@dataclass(frozen=True)
class ActionTypes:
    """``actions.safetensors``.

    Attributes:
        names: the types, in the order of their numbers.
        ids: the type of every sample of the corpus, in its order.
        mode: one of :data:`ds_hymotion.data.actions.settings.MODES`.
        samples: digest of the samples that the ids are for.
        router: what decided; None where labels did.
        captions: by text encoder.
    """

    names: tuple[str, ...]
    ids: tuple[int, ...]
    mode: str
    samples: str
    router: Router | None = None
    captions: Mapping[str, CaptionCentroids] = field(default_factory=dict)

    @classmethod
    def open(cls, corpus: Corpus) -> ActionTypes:
        """The types of a corpus.

        Raises:
            UserError: there are none, the file is damaged, or it was made for other samples.
        """
        found = cls.read(corpus.folder)
        if len(found.ids) != len(corpus) or found.samples != samples_digest(corpus.samples):
            path = corpus.folder / ACTION_TYPES_FILE
            raise UserError(f"{path} was made for other samples than the corpus has: {_fix(corpus.folder)}")
        return found

    @classmethod
    def read(cls, folder: Path) -> ActionTypes:
        """The file in a corpus's folder, for its names and router; the samples are not compared.

        Raises:
            UserError: there is none, or it is damaged.
        """
        path = folder / ACTION_TYPES_FILE
        if not path.is_file():
            raise UserError(f"no action types in {folder}: {_fix(folder)}")
        handle = TensorFiles(folder, _fix(folder)).open(ACTION_TYPES_FILE)
        try:
            return _parse(handle)
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            words = (
                f"lacks {error}" if isinstance(error, KeyError) else f"is damaged ({str(error) or 'nested too deep'})"
            )
            raise UserError(f"{path} {words}: {_fix(folder)}") from None

    def write(self, folder: Path) -> Path:
        """Write the file into a corpus's folder; the same types give the same bytes."""
        tensors = {"ids": torch.tensor(self.ids, dtype=torch.int32)}
        if self.router is not None:
            tensors["centres"] = torch.from_numpy(self.router.centres)
            tensors["feature_mean"], tensors["feature_std"] = self.router.scale.mean, self.router.scale.std
            state = self.router.network.state_dict()
            tensors.update({_NETWORK + name: tensor.detach() for name, tensor in state.items()})
        for name, centroids in self.captions.items():
            tensors.update({f"{_CAPTIONS}{name}.{part}": tensor for part, tensor in vars(centroids).items()})
        header = {
            "format": FORMAT,
            "version": VERSION,
            "mode": self.mode,
            "names": list(self.names),
            "samples": self.samples,
            "encoders": sorted(self.captions),
        }
        save_tensors(folder / ACTION_TYPES_FILE, tensors, {_KEY: json.dumps(header)})
        return folder / ACTION_TYPES_FILE

    def id_of(self, sample: Sample) -> int:
        """The number of a sample's type."""
        return self.ids[sample.index]

    def name_of(self, sample: Sample) -> str:
        """The name of a sample's type."""
        return self.names[self.id_of(sample)]

    def number(self, name: str) -> int:
        """The number of a type by its name, in capitals or not.

        Raises:
            UserError: no type is called so.
        """
        lower = [known.lower() for known in self.names]
        if name.lower() not in lower:
            raise UserError(f"action type {name!r} is unknown: legal are {', '.join(self.names)}")
        return lower.index(name.lower())


def samples_digest(samples: Sequence[Sample]) -> str:
    """SHA-256 over ids and lengths."""
    rows = json.dumps([[sample.id, sample.frames] for sample in samples])
    return hashlib.sha256(rows.encode()).hexdigest()


def _fix(folder: Path) -> str:
    return f"make them with launch/prepare.py --out {folder} --actions"


def _parse(handle: Any) -> ActionTypes:
    header = json.loads((handle.metadata() or {})[_KEY])
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("no file of action types")
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']!r}, this program reads {VERSION}")
    names, mode = check_names(header["names"]), header["mode"]
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if not isinstance(header["samples"], str) or not isinstance(header["encoders"], list):
        raise ValueError("samples and encoders are not text and list")
    known = set(handle.keys())
    ids = _tensor(handle, known, "ids", None, torch.int32)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(names):
        raise ValueError(f"ids outside 0..{len(names) - 1}")
    router = None if mode == "labels" else _router(handle, known, len(names))
    captions = {}
    for encoder in header["encoders"]:
        directions = _tensor(handle, known, f"{_CAPTIONS}{encoder}.directions", (len(names), None))
        offsets = _tensor(handle, known, f"{_CAPTIONS}{encoder}.offsets", (len(names),))
        counts = _tensor(handle, known, f"{_CAPTIONS}{encoder}.counts", (len(names),), torch.int64)
        if int(counts.min()) < 0 or directions.shape[1] < 1:
            raise ValueError(f"captions of {encoder!r} without width or of negative count")
        captions[str(encoder)] = CaptionCentroids(directions, offsets, counts)
    return ActionTypes(names, tuple(ids.tolist()), mode, header["samples"], router, captions)


def _router(handle: Any, known: set[str], types: int) -> Router:
    centres = _tensor(handle, known, "centres", (types, None))
    coordinates = centres.shape[1]
    if not 1 <= coordinates <= _MOST_COORDINATES:
        raise ValueError(f"centres of {coordinates} coordinates, expected 1 to {_MOST_COORDINATES}")
    mean, std = (_tensor(handle, known, name, (CHANNELS,)) for name in ("feature_mean", "feature_std"))
    if float(std.min()) <= 0:
        raise ValueError("feature_std is not above 0")
    network = ActionNetwork(coordinates)
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    state = {name: _tensor(handle, known, _NETWORK + name, shape) for name, shape in wanted.items()}
    network.load_state_dict(state)
    return Router(network.eval(), Scale(mean, std), centres.numpy())


def _tensor(
    handle: Any, known: set[str], name: str, shape: tuple[int | None, ...] | None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A tensor of the file. Any length is right where the shape says None; without a shape, any vector is."""
    if name not in known:
        raise ValueError(f"no tensor {name!r}")
    found = handle.get_tensor(name)
    wanted = (None,) if shape is None else shape
    fits = len(found.shape) == len(wanted) and all(w in (None, f) for w, f in zip(wanted, found.shape))
    if not fits or found.dtype != dtype:
        raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)}, expected {dtype} {wanted}")
    if not bool(found.isfinite().all()):
        raise ValueError(f"{name} has values that are not finite")
    return found

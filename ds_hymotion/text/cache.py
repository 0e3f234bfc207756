"""Text features on disk, encoded once: safetensors shards that know which captions they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ds_hymotion.errors import UserError
from ds_hymotion.formats.tensors import TensorFiles, read_json, remove_temporary_files, save_tensors, write_json
from ds_hymotion.text.encoder import TextEncoder, TextFeatures
from ds_hymotion.text.encoders import ENCODERS

FORMAT = "ds_hymotion.text"
VERSION = 1
INDEX = "index.json"
QWEN_DIM = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MERE_NAMES = ("qwen", "clip")
_MAKE_AGAIN = "delete the folder and encode the captions again (launch/prepare.py with --encode_text)"


class TextCache:
    """Features of captions under ``folder``, found by the SHA-256 of the caption.

    ``index.json`` names the encoder, what it is made of (models, hash of the system prompt, dtype it computes in), its
    dimensions, the stored dtype and the shards. A shard ``text-00000.safetensors`` holds ``keys`` [n, 32] uint8,
    ``lengths`` [n] int32, ``tokens`` [sum of lengths, D] and ``pooled`` [n, V]. A shard counts once the index names it,
    so a killed run loses at most the shard that it was writing.

    Raises:
        UserError: on opening, for an index of another version and a missing or damaged shard.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.encoder_name = ""
        self.token_dim = 0
        self.pooled_dim = 0
        self.dtype = torch.bfloat16
        self.identity: dict[str, str] = {}
        self._shards: list[str] = []
        self._rows: dict[bytes, tuple[int, int, int, int]] = {}  # key -> shard, row, first token, tokens
        self._files = TensorFiles(self.folder, _MAKE_AGAIN)
        if (self.folder / INDEX).exists():
            self._read_index()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, caption: str) -> bool:
        return _key(caption) in self._rows

    def require(self, token_dim: int, pooled_dim: int) -> None:
        """Check that a model of these text widths can use the cache.

        Raises:
            UserError: the cache is absent, or its features have other widths.
        """
        if not self._shards:
            raise UserError(f"no text features in {self.folder}: {self._how_to_make()}")
        if (token_dim, pooled_dim) != (self.token_dim, self.pooled_dim):
            raise UserError(
                f"the text features in {self.folder} ({self.encoder_name}) are {self.token_dim} wide per token and "
                f"{self.pooled_dim} pooled, the model wants {token_dim} and {pooled_dim}: {self._how_to_fit(token_dim)}"
            )

    def _how_to_fit(self, token_dim: int) -> str:
        if token_dim == QWEN_DIM:
            return "encode with launch/prepare.py --encode_text qwen_clip, and train with --text_encoder qwen_clip"
        return (
            f"set the model's ctxt_input_dim to {self.token_dim} and vtxt_input_dim to {self.pooled_dim}, or encode "
            "with another encoder"
        )

    def lookup(self, captions: list[str], dtype: torch.dtype = torch.float32) -> TextFeatures:
        """Features of the captions, in their order, padded to the longest of them.

        Raises:
            UserError: a caption is not in the cache.
        """
        tokens, pooled = [], []
        for shard, row, first, count in map(self._place, captions):
            handle = self._files.open(self._shards[shard])
            tokens.append(handle.get_slice("tokens")[first : first + count].to(dtype))
            pooled.append(handle.get_slice("pooled")[row : row + 1].to(dtype))
        return TextFeatures.of_rows(tokens, torch.cat(pooled))

    def pooled(self, captions: Iterable[str]) -> Tensor:
        """The pooled vectors [N, V] of the captions, fp32; tokens are not read.

        Raises:
            UserError: a caption is not in the cache.
        """
        places = [self._place(caption) for caption in captions]
        rows = [self._files.open(self._shards[shard]).get_slice("pooled")[row].float() for shard, row, _, _ in places]
        return torch.stack(rows) if rows else torch.zeros(0, self.pooled_dim)

    def _place(self, caption: str) -> tuple[int, int, int, int]:
        found = self._rows.get(_key(caption))
        if found is None:
            raise UserError(f"no text features for the caption {caption!r} in {self.folder}: {self._how_to_make()}")
        return found

    def lengths(self, captions: Iterable[str]) -> list[int]:
        """True token counts of the captions, which the cache must hold."""
        return [self._rows[_key(caption)][3] for caption in captions]

    def write(
        self,
        captions: Iterable[str],
        encoder: TextEncoder,
        dtype: torch.dtype = torch.bfloat16,
        batch: int = 64,
        shard_mb: int = 256,
        progress: bool = False,
    ) -> int:
        """Encode the captions that the cache lacks; return how many those were.

        Each distinct caption is encoded once, in a fixed order, so an interrupted call that is made again ends with
        the same bytes.

        Raises:
            UserError: the cache was made by another encoder, with another system prompt, in other widths or another
                dtype; or the encoder's features are not finite in ``dtype``.
        """
        if dtype not in DTYPES.values():
            raise UserError(f"text features cannot be stored as {dtype}: choose one of {', '.join(DTYPES)}")
        self._claim(encoder, dtype)
        missing = sorted({caption for caption in captions if caption not in self}, key=lambda text: (len(text), text))
        pending = _Shard()
        with tqdm(
            total=len(missing), desc=f"text ({encoder.name})", unit="caption", disable=not (progress and missing)
        ) as bar:
            for start in range(0, len(missing), batch):
                part = missing[start : start + batch]
                features = encoder.encode(part)
                self._compare(encoder.identity)  # known in full once the encoder has its weights
                pending.add(part, _checked(features, part, encoder, dtype))
                bar.update(len(part))
                if pending.bytes >= shard_mb * 2**20:
                    self._store(pending)
                    pending = _Shard()
        if pending.keys:
            self._store(pending)
        return len(missing)

    def _claim(self, encoder: TextEncoder, dtype: torch.dtype) -> None:
        mine = (self.encoder_name, self.token_dim, self.pooled_dim, self.dtype)
        theirs = (encoder.name, encoder.token_dim, encoder.pooled_dim, dtype)
        if self._shards and mine != theirs:
            raise UserError(
                f"{self.folder} holds features of {_described(mine)}, not of {_described(theirs)}: "
                "use another folder, or delete this one"
            )
        self._compare(encoder.identity)
        self.encoder_name, self.token_dim, self.pooled_dim, self.dtype = theirs
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(self.folder)

    def _compare(self, identity: dict[str, str]) -> None:
        """Refuse an encoder that is made of other things than the features here; names may differ, weights not."""
        for key, value in identity.items():
            known = self.identity.get(key, value)
            if self._shards and known != value and key not in MERE_NAMES:
                raise UserError(
                    f"{self.folder} holds features made with {key} = {known:.16}, not {value:.16}: "
                    "use what it was made with, or delete this folder to encode all captions anew"
                )
        self.identity = {**identity, **(self.identity if self._shards else {})}

    def _store(self, shard: _Shard) -> None:
        name = f"text-{len(self._shards):05d}.safetensors"
        save_tensors(self.folder / name, shard.tensors())
        write_json(
            self.folder / INDEX,
            {
                "format": FORMAT,
                "version": VERSION,
                "encoder": self.encoder_name,
                **({"made_with": self.identity} if self.identity else {}),
                "token_dim": self.token_dim,
                "pooled_dim": self.pooled_dim,
                "dtype": str(self.dtype).removeprefix("torch."),
                "captions": len(self._rows) + len(shard.keys),
                "shards": [*self._shards, name],
            },
        )
        self._add_shard(name)

    def _read_index(self) -> None:
        path = self.folder / INDEX
        index = read_json(path, _MAKE_AGAIN)
        if not isinstance(index, dict) or index.get("format") != FORMAT or index.get("version") != VERSION:
            raise UserError(f"{path} is not an index of {FORMAT} version {VERSION}: {_MAKE_AGAIN}")
        try:
            self.encoder_name = str(index["encoder"])
            self.token_dim, self.pooled_dim = int(index["token_dim"]), int(index["pooled_dim"])
            self.dtype = DTYPES[index["dtype"]]
            self.identity = {str(key): str(value) for key, value in index.get("made_with", {}).items()}
            names = [str(name) for name in index["shards"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} lacks or misnames {error}: {_MAKE_AGAIN}") from None
        for name in names:
            self._add_shard(name)

    def _add_shard(self, name: str) -> None:
        handle = self._files.open(name)
        path = self.folder / name
        if not {"keys", "lengths", "tokens", "pooled"} <= set(handle.keys()):
            raise UserError(f"{path} is not a shard of text features: {_MAKE_AGAIN}")
        keys, lengths = handle.get_tensor("keys"), handle.get_tensor("lengths").tolist()
        shapes = {part: list(handle.get_slice(part).get_shape()) for part in ("tokens", "pooled")}
        wanted = {"tokens": [sum(lengths), self.token_dim], "pooled": [len(lengths), self.pooled_dim]}
        if shapes != wanted or list(keys.shape) != [len(lengths), 32]:
            raise UserError(f"{path} holds {shapes}, its captions need {wanted}: {_MAKE_AGAIN}")
        first = 0
        for row, (key, count) in enumerate(zip(keys.numpy(), lengths, strict=True)):
            self._rows[key.tobytes()] = (len(self._shards), row, first, count)
            first += count
        self._shards.append(name)

    def _how_to_make(self) -> str:
        known = self.folder.name if self.folder.name in ENCODERS else " or ".join(ENCODERS)
        encoder = self.encoder_name or known
        return f"run the corpus's launch/prepare.py command again with --encode_text {encoder}"


class _Shard:
    """Features waiting to be written."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.lengths: list[int] = []
        self.tokens: list[Tensor] = []
        self.pooled: list[Tensor] = []
        self.bytes = 0

    def add(self, captions: list[str], features: TextFeatures) -> None:
        self.keys += [_key(caption) for caption in captions]
        self.lengths += features.lengths.tolist()
        rows = [row[:count] for row, count in zip(features.tokens, features.lengths.tolist(), strict=True)]
        self.tokens.append(torch.cat(rows).clone())
        self.pooled.append(features.pooled)
        self.bytes += self.tokens[-1].nbytes + features.pooled.nbytes

    def tensors(self) -> dict[str, Tensor]:
        keys = torch.frombuffer(bytearray(b"".join(self.keys)), dtype=torch.uint8).view(-1, 32)
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        return {"keys": keys, "lengths": lengths, "tokens": torch.cat(self.tokens), "pooled": torch.cat(self.pooled)}


def _key(caption: str) -> bytes:
    return hashlib.sha256(caption.encode("utf-8", "surrogatepass")).digest()


def _described(made: tuple[Any, ...]) -> str:
    return f"encoder {made[0]!r} with {made[1]} channels per token, {made[2]} pooled, in {made[3]}"


def _checked(features: TextFeatures, captions: list[str], encoder: TextEncoder, dtype: torch.dtype) -> TextFeatures:
    shape = (len(features), features.tokens.shape[-1], features.pooled.shape[-1])
    if shape != (len(captions), encoder.token_dim, encoder.pooled_dim):
        raise ValueError(
            f"encoder {encoder.name!r} gave {shape[0]} captions of widths {shape[1]} and {shape[2]} "
            f"for {len(captions)} captions; it declares {encoder.token_dim} and {encoder.pooled_dim}"
        )
    if int(features.lengths.min()) < 1 or int(features.lengths.max()) > features.tokens.shape[1]:
        raise ValueError(f"encoder {encoder.name!r} gave lengths outside 1..{features.tokens.shape[1]}")
    stored = features.to("cpu", dtype)
    for place, (caption, count) in enumerate(zip(captions, stored.lengths.tolist(), strict=True)):
        if not (stored.tokens[place, :count].isfinite().all() and stored.pooled[place].isfinite().all()):
            raise UserError(
                f"encoder {encoder.name!r} gives NaN or infinite features in {dtype} for the caption {caption!r}: "
                "store them as bfloat16 or float32, or remove the caption"
            )
    return stored

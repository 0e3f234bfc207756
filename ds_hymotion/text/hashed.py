"""A small text encoder without weights: words and letter n-grams hashed to fixed random vectors.

It needs no download and gives the same bits on every machine, so a corpus can be tried out, and a run compared,
where no language model fits. It knows words, not meanings: "stroll" is no nearer to "walk" than "jump" is.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from functools import lru_cache

import numpy as np
import torch

from ds_hymotion.text.encoder import TextFeatures

# 256 equally likely byte values have the standard deviation sqrt((256^2 - 1) / 12).
_BYTE_DEVIATION = math.sqrt((256**2 - 1) / 12)
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_IDEOGRAPH = re.compile(r"([\u3400-\u9fff])")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})
# Words that nearly every caption has weigh less in the pooled vector, or all captions would look alike; the words
# that alone tell a motion from its mirror image weigh more.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be being by figure from he her his in is it its man of on person she someone something "
        "that the their them then they this to while who with woman 一 个 人 他 她 的 地 着 在",
    )
)
_SIDES = frozenset(("left", "right", "clockwise", "counterclockwise", "左", "右"))
_COMMON_WEIGHT = 0.25
_SIDE_WEIGHT = 1.5
_GRAM_WEIGHT = 0.5
_PAIR_WEIGHT = 0.5
_POSITION_WEIGHT = 0.25
_START, _END = "<start>", "<end>"


class HashedTextEncoder:
    """Deterministic features: a token per word and a closing token.

    A token is the sum of the word's vector, its letter n-grams (so "walk" and "walking" are close), the pair with the
    word before it, and its position. The pooled vector is the weighted sum of words and pairs, so word order and side
    words tell captions apart. Every vector has a root mean square of 1.

    Args:
        token_dim: D of the tokens.
        pooled_dim: V of the pooled vector.
        max_tokens: most tokens of a caption, the closing token included; later words are cut.
    """

    name = "hashed"
    identity: dict[str, str] = {}

    def __init__(self, token_dim: int = 128, pooled_dim: int = 128, max_tokens: int = 64) -> None:
        if min(token_dim, pooled_dim, max_tokens) < 1:
            raise ValueError(f"token_dim {token_dim}, pooled_dim {pooled_dim} and max_tokens {max_tokens} must be >= 1")
        self.token_dim = token_dim
        self.pooled_dim = pooled_dim
        self.max_tokens = max_tokens

    def encode(self, captions: list[str]) -> TextFeatures:
        """Features [N, L, token_dim] and [N, pooled_dim] in float32. The empty caption is the closing token alone."""
        if not captions:
            raise ValueError("no captions to encode")
        rows, pooled = [], []
        for caption in captions:
            words = [*_words(caption)[: self.max_tokens - 1], _END]
            rows.append(torch.from_numpy(self._tokens(words)))
            pooled.append(torch.from_numpy(self._pooled(words)))
        return TextFeatures.of_rows(rows, torch.stack(pooled))

    def truncated(self, captions: list[str]) -> dict[str, int]:
        """How many of the captions have more words than are read."""
        most = self.max_tokens - 1
        return {f"{most} words": sum(len(_words(caption)) > most for caption in captions)}

    def _tokens(self, words: list[str]) -> np.ndarray:
        dim = self.token_dim
        return np.stack(
            [
                _unit_rms(
                    _word_vector(word, dim)
                    + _PAIR_WEIGHT * _vector("pair", f"{before} {word}", dim)
                    + _POSITION_WEIGHT * _vector("position", str(place), dim)
                )
                for place, (before, word) in enumerate(zip([_START, *words], words, strict=False))
            ]
        )

    def _pooled(self, words: list[str]) -> np.ndarray:
        dim = self.pooled_dim
        total = np.zeros(dim)
        for before, word in zip([_START, *words], words, strict=False):
            weight = _weight(word)
            pair_weight = _PAIR_WEIGHT * max(weight, _weight(before))
            total = total + weight * _word_vector(word, dim) + pair_weight * _vector("pair", f"{before} {word}", dim)
        return _unit_rms(total)


def _words(caption: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", caption).translate(_QUOTES).lower()
    return _WORD.findall(_IDEOGRAPH.sub(r" \1 ", plain))


def _weight(word: str) -> float:
    if word in _SIDES:
        return _SIDE_WEIGHT
    return _COMMON_WEIGHT if word in _COMMON or word in (_START, _END) else 1.0


@lru_cache(maxsize=65536)
def _vector(kind: str, text: str, dim: int) -> np.ndarray:
    """Fixed pseudo-random vector [dim] of unit variance. SHAKE-256 and exact arithmetic: the same bits everywhere."""
    stream = hashlib.shake_256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).digest(dim)
    vector = (np.frombuffer(stream, dtype=np.uint8).astype(np.float64) - 127.5) / _BYTE_DEVIATION
    vector.flags.writeable = False
    return vector


@lru_cache(maxsize=65536)
def _word_vector(word: str, dim: int) -> np.ndarray:
    vector = _vector("word", word, dim)
    padded = f"<{word}>"
    grams = [padded[start : start + size] for size in (3, 4) for start in range(len(padded) - size + 1)]
    if word != _END and grams:
        total = np.zeros(dim)
        for gram in grams:
            total = total + _vector("gram", gram, dim)
        vector = vector + _GRAM_WEIGHT / math.sqrt(len(grams)) * total
    vector.flags.writeable = False
    return vector


def _unit_rms(vector: np.ndarray) -> np.ndarray:
    # math.fsum rounds once, whatever the order: no dependence on how a machine vectorises a sum.
    rms = math.sqrt(math.fsum((vector * vector).tolist()) / len(vector))
    return (vector / max(rms, 1e-12)).astype(np.float32)

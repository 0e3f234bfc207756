"""Captions as token ids for Qwen3 and CLIP, as the released text conditioning makes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ds_hymotion.errors import UserError
from ds_hymotion.text.system_prompt import SystemPrompt

# The released limits: Qwen3 tokens after the crop, and CLIP tokens with their first and last.
MAX_QWEN_TOKENS = 128
MAX_CLIP_TOKENS = 77
_TENSORS = ("qwen", "qwen_lengths", "clip", "clip_lengths", "rows")
_MARKER = "<caption>"


@dataclass(frozen=True)
class CaptionTokens:
    """Token ids of the U distinct captions among N rows.

    Attributes:
        qwen: [U, W] int64, the templated captions, right-padded.
        qwen_lengths: [U] int64, template included.
        clip: [U, P] int64, right-padded with the closing token.
        clip_lengths: [U] int64.
        rows: [N] int64, the caption of each row.
        crop: Qwen3 tokens before the caption.
    """

    qwen: Tensor
    qwen_lengths: Tensor
    clip: Tensor
    clip_lengths: Tensor
    rows: Tensor
    crop: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Tensor:
        """[N], tokens that a row's features have: the caption's and those that close its message."""
        return (self.qwen_lengths - self.crop)[self.rows]

    def to(self, device: torch.device | str) -> CaptionTokens:
        """The tokens on another device."""
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in _TENSORS}
        return replace(self, **moved)


class CaptionTokenizer:
    """Makes :class:`CaptionTokens`.

    A caption is the user's message after the system prompt in Qwen3's chat template, without a generation prompt and
    without thinking. Its features begin where its own tokens do, which a templated marker shows, and end at most
    ``MAX_QWEN_TOKENS`` later, so the tokens that close the message count. CLIP reads the bare caption.

    Args:
        qwen, clip: transformers' tokenizers of the two models.
        prompt: the system prompt.

    Raises:
        UserError: the Qwen3 tokenizer has no chat template, or one that does not keep the caption apart; or the CLIP
            tokenizer adds no closing token.
    """

    def __init__(self, qwen: Any, clip: Any, prompt: SystemPrompt) -> None:
        self.prompt = prompt
        self._qwen = qwen
        self._clip = clip
        self._lock = threading.Lock()  # batches are made ahead in one thread, evaluated in another
        self.crop = self._crop()
        if len(clip("", verbose=False)["input_ids"]) < 2:
            raise UserError("the CLIP tokenizer adds no first and last token; give the folder of a CLIP model")

    def __call__(self, captions: Sequence[str]) -> CaptionTokens:
        """Tokens of the captions; each distinct one stands once. For no captions it is the empty one, without rows, so
        that encoders in a run compute the same graph on every rank."""
        distinct = list(dict.fromkeys(captions)) or [""]
        place = {caption: number for number, caption in enumerate(distinct)}
        qwen, clip = self._ids(distinct)
        qwen = [ids[: self.crop + MAX_QWEN_TOKENS] for ids in qwen]
        # Cut as the tokenizer itself would: the closing token stays.
        clip = [ids if len(ids) <= MAX_CLIP_TOKENS else [*ids[: MAX_CLIP_TOKENS - 1], ids[-1]] for ids in clip]
        qwen_ids, qwen_lengths = _padded(qwen)
        clip_ids, clip_lengths = _padded(clip)
        rows = torch.tensor([place[caption] for caption in captions], dtype=torch.int64)
        return CaptionTokens(qwen_ids, qwen_lengths, clip_ids, clip_lengths, rows, self.crop)

    def truncated(self, captions: Sequence[str]) -> dict[str, int]:
        """How many of the captions are longer than the models read, by the limit."""
        counts = {f"{MAX_QWEN_TOKENS} Qwen3 tokens": 0, f"{MAX_CLIP_TOKENS} CLIP tokens": 0}
        for start in range(0, len(captions), 1024):
            qwen, clip = self._ids(captions[start : start + 1024])
            too_long = (
                sum(len(ids) - self.crop > MAX_QWEN_TOKENS for ids in qwen),
                sum(len(ids) > MAX_CLIP_TOKENS for ids in clip),
            )
            for name, more in zip(counts, too_long):
                counts[name] += more
        return counts

    def _ids(self, captions: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Whole token lists; tokenizers refuse an empty list of captions."""
        with self._lock:
            qwen = self._qwen([self._templated(caption) for caption in captions], verbose=False)["input_ids"]
            clip = self._clip(list(captions), verbose=False)["input_ids"]
        return qwen, clip

    def _templated(self, caption: str) -> str:
        messages = [{"role": "system", "content": self.prompt.text}, {"role": "user", "content": caption}]
        return self._qwen.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=False, enable_thinking=False
        )

    def _crop(self) -> int:
        try:
            marked = self._templated(_MARKER)
        except Exception as error:  # jinja's own kinds, or ValueError without a template
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"the Qwen3 tokenizer's chat template cannot be used ({words}); give the folder of a Qwen3 model with "
                "its tokenizer_config.json or chat_template.jinja"
            ) from None
        before = marked.rfind(_MARKER)
        head = self._qwen(marked[: max(before, 0)], verbose=False)["input_ids"]
        whole = self._qwen(marked, verbose=False)["input_ids"]
        bare = self._qwen(self._templated(""), verbose=False)["input_ids"]
        if before < 0 or self.prompt.text.strip() not in marked[:before] or whole[: len(head)] != head:
            raise UserError(
                "the Qwen3 tokenizer's chat template does not place the caption after the system prompt in tokens of "
                "its own; give the folder of a Qwen3 model"
            )
        if len(bare) <= len(head):
            raise UserError(
                "the Qwen3 tokenizer's chat template does not close the caption's message, so an empty caption has no "
                "token; give the folder of a Qwen3 model"
            )
        return len(head)


def _padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids [U, longest] and lengths [U]. A row's last token fills it up: neither model looks ahead, and CLIP's pooling
    takes the first closing token."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    longest = max(len(row) for row in rows)
    padded = [row + row[-1:] * (longest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int64), lengths

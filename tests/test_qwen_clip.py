"""The released text conditioning on tiny random models: where features begin and end, and which they are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, CLIPTextModel, Qwen3ForCausalLM

from ds_hymotion.errors import UserError
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.caption_tokens import MAX_CLIP_TOKENS, MAX_QWEN_TOKENS, CaptionTokenizer
from ds_hymotion.text.encoder import TextEncoder, TextFeatures
from ds_hymotion.text.encoders import text_encoder
from ds_hymotion.text.live import TextTower
from ds_hymotion.text.qwen_clip import QwenClipEncoder
from ds_hymotion.text.sources import EncoderSources
from ds_hymotion.text.system_prompt import SystemPrompt
from ds_hymotion.text.text_models import model_name
from tests.motion_files import content
from tests.tiny_text import CLIP_WIDTH, PROMPT, QWEN_WIDTH, TEMPLATE, tiny_sources, write_clip, write_qwen

CLOSING = 2  # "[close]" and the line break after it
LONG = "a person walks forward and turns left " * 30
CAPTIONS = ["a person walks", "", "左手", "a person turns left then jumps", LONG]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> EncoderSources:
    return tiny_sources(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def encoder(sources: EncoderSources) -> QwenClipEncoder:
    return QwenClipEncoder(sources)


def by_hand(sources: EncoderSources, caption: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of one caption, unpadded, from the causal language model and the whole template written out."""
    head = f"[open]system\n{PROMPT}[close]\n[open]user\n"
    tokenizer = AutoTokenizer.from_pretrained(sources.qwen)
    crop = len(tokenizer(head)["input_ids"])
    ids = tokenizer(f"{head}{caption}[close]\n", return_tensors="pt")["input_ids"][:, : crop + MAX_QWEN_TOKENS]
    clip_ids = AutoTokenizer.from_pretrained(sources.clip)(
        caption, truncation=True, max_length=MAX_CLIP_TOKENS, padding="max_length", return_tensors="pt"
    )["input_ids"]
    with torch.no_grad():
        language = Qwen3ForCausalLM.from_pretrained(sources.qwen, dtype=torch.float32).eval()
        hidden = language(input_ids=ids, output_hidden_states=True).hidden_states[-1]
        pooled = CLIPTextModel.from_pretrained(sources.clip).eval()(input_ids=clip_ids).pooler_output
    return hidden[0, crop:], pooled[0]


def test_features_are_those_of_the_whole_template(sources: EncoderSources, encoder: QwenClipEncoder) -> None:
    features = encoder.encode(CAPTIONS)
    assert features.tokens.shape == (5, MAX_QWEN_TOKENS, QWEN_WIDTH) and features.pooled.shape == (5, CLIP_WIDTH)
    assert (encoder.token_dim, encoder.pooled_dim) == (QWEN_WIDTH, CLIP_WIDTH)
    for row, caption in enumerate(CAPTIONS):
        tokens, pooled = by_hand(sources, caption)
        count = int(features.lengths[row])
        assert count == len(tokens)
        torch.testing.assert_close(features.tokens[row, :count], tokens, rtol=0, atol=1e-5)
        torch.testing.assert_close(features.pooled[row], pooled, rtol=0, atol=1e-5)
        assert torch.equal(features.tokens[row, count:], torch.zeros(MAX_QWEN_TOKENS - count, QWEN_WIDTH))


def test_lengths_count_the_closing_tokens(encoder: QwenClipEncoder) -> None:
    lengths = encoder.encode(CAPTIONS).lengths.tolist()
    assert lengths[1] == CLOSING
    words = encoder.tokenizer._qwen("a person walks")["input_ids"]
    assert lengths[0] == len(words) + CLOSING
    assert lengths[4] == MAX_QWEN_TOKENS


def test_the_crop_is_where_the_caption_begins(encoder: QwenClipEncoder) -> None:
    tokenizer = encoder.tokenizer
    tokens = tokenizer(["jumps"])
    decoded = tokenizer._qwen.decode(tokens.qwen[0, tokens.crop :])
    assert decoded == "jumps[close]\n"
    assert tokenizer._qwen.decode(tokens.qwen[0, : tokens.crop]) == f"[open]system\n{PROMPT}[close]\n[open]user\n"
    # A marker in the prompt, or the prompt's words in a caption, move nothing.
    odd = CaptionTokenizer(tokenizer._qwen, tokenizer._clip, SystemPrompt("Find the <caption> here.", Path("p")))
    found = odd([PROMPT])
    assert odd._qwen.decode(found.qwen[0, found.crop :]) == f"{PROMPT}[close]\n"


def test_tokens_are_padded_on_the_right_and_cut(encoder: QwenClipEncoder) -> None:
    tokens = encoder.tokenizer(["jumps", LONG, "jumps"])
    assert tokens.rows.tolist() == [0, 1, 0] and len(tokens) == 3
    assert tokens.qwen.shape == (2, tokens.crop + MAX_QWEN_TOKENS) and tokens.clip.shape == (2, MAX_CLIP_TOKENS)
    assert tokens.lengths.tolist() == [int(tokens.lengths[0]), MAX_QWEN_TOKENS, int(tokens.lengths[0])]
    short = int(tokens.qwen_lengths[0])
    assert short == tokens.crop + int(tokens.lengths[0]) < tokens.qwen.shape[1]
    assert "[close]" not in encoder.tokenizer._qwen.decode(tokens.qwen[1, tokens.crop :]), "the closing tokens are cut"
    end = encoder.tokenizer._clip.eos_token_id
    assert tokens.clip[1].tolist().index(end) == MAX_CLIP_TOKENS - 1, "CLIP keeps its closing token"
    assert encoder.tokenizer([]).lengths.shape == (0,)


def test_a_batch_changes_nothing(encoder: QwenClipEncoder) -> None:
    together = encoder.encode(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        alone = encoder.encode([caption])
        torch.testing.assert_close(alone.tokens[0], together.tokens[row, : alone.tokens.shape[1]], rtol=0, atol=1e-5)
        torch.testing.assert_close(alone.pooled[0], together.pooled[row], rtol=0, atol=1e-5)


def test_truncations_are_counted(encoder: QwenClipEncoder) -> None:
    # Two Chinese characters are six bytes, six tokens for Qwen3, and one unknown word for CLIP.
    captions = ["jumps", LONG, "左手" * 30, "jumps " * 76, "jumps " * 75]
    assert encoder.truncated(captions) == {"128 Qwen3 tokens": 2, "77 CLIP tokens": 2}
    exact = [
        caption for caption in ("jumps " * n for n in range(1, 140)) if int(encoder.tokenizer([caption]).lengths) < 128
    ]
    assert encoder.truncated(exact)["128 Qwen3 tokens"] == 0
    assert encoder.truncated([]) == {"128 Qwen3 tokens": 0, "77 CLIP tokens": 0}


def test_precision_and_gradients(sources: EncoderSources) -> None:
    exact = QwenClipEncoder(sources).encode(["a person walks"])
    encoder = QwenClipEncoder(dataclasses.replace(sources, dtype="bf16"))
    rough = encoder.encode(["a person walks"])
    assert rough.tokens.dtype == torch.bfloat16 and rough.pooled.dtype == torch.float32
    assert torch.equal(rough.pooled, exact.pooled)
    assert 0 < float((rough.tokens.float() - exact.tokens).abs().max()) < 0.2
    assert not rough.tokens.requires_grad
    assert not any(value.requires_grad for value in encoder.models.qwen.parameters())
    assert not encoder.models.qwen.training and not encoder.models.clip.training


def test_the_cache_remembers_what_it_was_made_with(sources: EncoderSources, tmp_path: Path) -> None:
    cache = TextCache(tmp_path / "qwen_clip")
    encoder = QwenClipEncoder(dataclasses.replace(sources, dtype="bf16"))
    assert cache.write([*CAPTIONS, *CAPTIONS], encoder) == 5
    index = json.loads((tmp_path / "qwen_clip" / "index.json").read_text())
    assert index["encoder"] == "qwen_clip" and index["dtype"] == "bfloat16" and index["captions"] == 5
    assert (index["token_dim"], index["pooled_dim"]) == (QWEN_WIDTH, CLIP_WIDTH)
    made_with = index["made_with"]
    assert made_with["qwen"] == "Qwen3-tiny" and made_with["clip"] == "clip-tiny"
    assert made_with["system_prompt_sha256"] == encoder.prompt.sha256 and made_with["encoder_dtype"] == "bf16"
    found, fresh = cache.lookup(CAPTIONS), encoder.encode(CAPTIONS)
    assert torch.equal(found.tokens, fresh.tokens.float()) and torch.equal(found.lengths, fresh.lengths)
    assert cache.lengths(CAPTIONS) == fresh.lengths.tolist()


def test_a_cache_of_another_prompt_model_or_precision_is_refused(sources: EncoderSources, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    TextCache(folder).write(["jumps"], QwenClipEncoder(sources))
    other = tmp_path / "other.txt"
    other.write_text("Say something else.")
    changed = {
        "system_prompt_sha256": {"system_prompt_file": str(other)},
        "encoder_dtype": {"dtype": "bf16"},
        "weights": {"qwen": str(write_qwen(tmp_path / "Qwen3-tiny", layers=3))},
    }
    before = content(folder)
    for key, change in changed.items():
        with pytest.raises(UserError, match=f"holds features made with {key} = "):
            TextCache(folder).write(["turns"], QwenClipEncoder(dataclasses.replace(sources, **change)))
    assert content(folder) == before
    # The same models at another place are the same.
    moved = write_clip(tmp_path / "another name")
    assert TextCache(folder).write(["turns"], QwenClipEncoder(dataclasses.replace(sources, clip=str(moved)))) == 1


def test_nothing_to_encode_needs_no_weights(sources: EncoderSources, tmp_path: Path) -> None:
    TextCache(tmp_path).write(["jumps"], QwenClipEncoder(sources))
    again = QwenClipEncoder(sources)
    assert TextCache(tmp_path).write(["jumps"], again) == 0
    assert "models" not in vars(again)


def test_a_killed_encoding_goes_on_to_the_same_bytes(sources: EncoderSources, tmp_path: Path) -> None:
    class Killed(QwenClipEncoder):
        left = 2

        def encode(self, captions: list[str]) -> TextFeatures:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().encode(captions)

    captions = [f"a person jumps {number}" for number in range(7)]
    settings: dict[str, Any] = {"batch": 2, "shard_mb": 0}
    TextCache(tmp_path / "whole").write(captions, QwenClipEncoder(sources), **settings)
    with pytest.raises(KeyboardInterrupt):
        TextCache(tmp_path / "killed").write(captions, Killed(sources), **settings)
    assert len(TextCache(tmp_path / "killed")) == 4
    assert TextCache(tmp_path / "killed").write(captions, QwenClipEncoder(sources), **settings) == 3
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_what_is_no_such_model_is_refused(sources: EncoderSources, tmp_path: Path) -> None:
    qwen = write_qwen(tmp_path / "cut")
    (qwen / "model.safetensors").write_bytes((qwen / "model.safetensors").read_bytes()[:-100])
    plain = write_qwen(tmp_path / "plain", template=None)
    deaf = write_qwen(tmp_path / "deaf", template="{{ messages[0]['content'] }}[close]")
    silent = write_qwen(tmp_path / "silent", template=TEMPLATE.replace("[close]\n", ""))
    (tmp_path / "empty").mkdir()
    wrong = {
        r"--qwen .*absent cannot be loaded \(.*such as Qwen/Qwen3-8B": {"qwen": str(tmp_path / "absent")},
        r"--qwen .*empty cannot be loaded": {"qwen": str(tmp_path / "empty")},
        r"--qwen .* is a clip_text_model model, not qwen3": {"qwen": sources.clip},
        r"--clip .* is a qwen3 model, not clip": {"clip": sources.qwen},
        r"--qwen .*cut cannot be loaded": {"qwen": str(qwen)},
        r"chat template cannot be used": {"qwen": str(plain)},
        r"does not place the caption after the system prompt": {"qwen": str(deaf)},
        r"does not close the caption's message": {"qwen": str(silent)},
        r"neither is given": {"system_prompt_file": None},
    }
    for words, change in wrong.items():
        with pytest.raises(UserError, match=words) as caught:
            QwenClipEncoder(dataclasses.replace(sources, **change)).encode(["jumps"])
        assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_named(sources: EncoderSources, tmp_path: Path) -> None:
    qwen = write_qwen(tmp_path / "grown", layers=2)
    config = json.loads((qwen / "config.json").read_text())
    config.update(num_hidden_layers=3, layer_types=["full_attention"] * 3)
    (qwen / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"its files lack layers\.2\..*11 tensors"):
        QwenClipEncoder(dataclasses.replace(sources, qwen=str(qwen))).encode(["jumps"])


def test_encoders_by_name(sources: EncoderSources) -> None:
    assert isinstance(text_encoder("qwen_clip", sources=sources), QwenClipEncoder)
    assert isinstance(text_encoder("hashed", 8, 6), TextEncoder) and isinstance(QwenClipEncoder(sources), TextEncoder)
    with pytest.raises(UserError, match="'bert' is not one of hashed, qwen_clip"):
        text_encoder("bert")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("/models/Qwen3-8B/", "Qwen3-8B"),
        ("/cache/hub/models--Qwen--Qwen3-8B/snapshots/b968826d", "Qwen3-8B"),
    ],
)
def test_models_are_called_by_their_name(place: str, name: str) -> None:
    assert model_name(place) == name


def test_a_tower_keeps_rotary_frequencies_exact(sources: EncoderSources) -> None:
    whole, tokenizer = QwenClipEncoder(sources), QwenClipEncoder(sources).tokenizer
    tower = TextTower(QwenClipEncoder(sources).models, frozen_layers=1, train_upper=True)
    captions = ["a person walks", "", "a person walks"]
    features, wanted = tower(tokenizer(captions)), whole.encode(captions)
    torch.testing.assert_close(features.tokens.detach(), wanted.tokens, rtol=0, atol=1e-6)
    assert torch.equal(features.pooled, wanted.pooled) and torch.equal(features.lengths, wanted.lengths)
    tower.bfloat16()
    assert {value.dtype for value in tower.parameters()} == {torch.bfloat16}
    exact = dict(whole.models.qwen.named_buffers())
    assert tower.frozen.qwen.embed_tokens.weight.dtype == torch.float32
    for name, value in tower.named_buffers():
        assert torch.equal(value, exact[name.removeprefix("upper.")]) and value.dtype == torch.float32
    nothing = tower(tokenizer([]))
    assert nothing.tokens.shape == (0, 2, QWEN_WIDTH) and nothing.pooled.shape == (0, CLIP_WIDTH)
    nothing.tokens.sum().backward()
    assert all(float(value.grad.abs().max()) == 0 for value in tower.parameters())

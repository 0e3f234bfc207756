from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from ds_hymotion.errors import UserError
from ds_hymotion.formats import tensors
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.text.hashed import HashedTextEncoder
from tests.motion_files import content

CAPTIONS = ["a person walks", "", "a person walks and then turns left", "jump", "他用左手挥手"]


class CountingEncoder(HashedTextEncoder):
    """Counts what it is asked to encode."""

    def __init__(self) -> None:
        super().__init__(token_dim=8, pooled_dim=6)
        self.seen: list[str] = []

    def encode(self, captions: list[str]) -> TextFeatures:
        self.seen += captions
        return super().encode(captions)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lookup_gives_what_was_encoded(tmp_path: Path, dtype: torch.dtype) -> None:
    encoder = HashedTextEncoder(token_dim=8, pooled_dim=6)
    assert TextCache(tmp_path / "cache").write(CAPTIONS, encoder, dtype=dtype, batch=2) == 5
    cache = TextCache(tmp_path / "cache")
    wanted = ["jump", "", "他用左手挥手", "jump"]
    found, direct = cache.lookup(wanted), encoder.encode(wanted)
    assert found.lengths.tolist() == direct.lengths.tolist() == [2, 1, 7, 2]
    assert found.tokens.shape == (4, 7, 8) and found.tokens.dtype == torch.float32
    assert torch.equal(found.tokens, direct.tokens.to(dtype).float())
    assert torch.equal(found.pooled, direct.pooled.to(dtype).float())
    assert (cache.encoder_name, cache.token_dim, cache.pooled_dim, cache.dtype) == ("hashed", 8, 6, dtype)


def test_lookup_trims_to_the_longest_of_the_batch(tmp_path: Path) -> None:
    cache = TextCache(tmp_path)
    cache.write(CAPTIONS, HashedTextEncoder())
    assert cache.lookup(["", ""]).tokens.shape[1] == 1
    assert cache.lookup(["a person walks"], torch.bfloat16).tokens.dtype == torch.bfloat16


def test_each_caption_is_encoded_once(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    cache = TextCache(tmp_path)
    cache.write(["b", "a", "b", "a"], encoder)
    assert TextCache(tmp_path).write(["a", "b", "c"], encoder) == 1
    assert sorted(encoder.seen) == ["a", "b", "c"]
    assert len(TextCache(tmp_path)) == 3 and "c" in TextCache(tmp_path) and "d" not in TextCache(tmp_path)


def test_killed_at_any_write_it_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captions = [f"caption number {number}" for number in range(7)]

    def write(folder: Path) -> None:
        TextCache(folder).write(captions, HashedTextEncoder(8, 8), batch=2, shard_mb=0)

    write(tmp_path / "whole")
    whole = content(tmp_path / "whole")
    assert len(whole) == 5  # four shards and the index
    rename = os.replace
    for kill in range(8):
        left = kill

        def replace(source: str, target: str) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            rename(source, target)

        folder = tmp_path / f"killed{kill}"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(tensors.os, "replace", replace)
            write(folder)
        write(folder)
        assert content(folder) == whole


def test_a_missing_caption_is_named_with_the_command(tmp_path: Path) -> None:
    cache = TextCache(tmp_path)
    cache.write(["walk"], HashedTextEncoder())
    with pytest.raises(UserError, match=r"'run fast'.*launch/prepare.py.*--encode_text hashed"):
        cache.lookup(["walk", "run fast"])


def test_another_encoder_width_or_dtype_is_refused(tmp_path: Path) -> None:
    TextCache(tmp_path).write(["walk"], HashedTextEncoder())
    with pytest.raises(UserError, match="128 channels per token.*not of.*64 channels per token"):
        TextCache(tmp_path).write(["run"], HashedTextEncoder(token_dim=64))
    with pytest.raises(UserError, match="bfloat16.*not of.*float32"):
        TextCache(tmp_path).write(["run"], HashedTextEncoder(), dtype=torch.float32)
    with pytest.raises(UserError, match="float64"):
        TextCache(tmp_path).write(["run"], HashedTextEncoder(), dtype=torch.float64)


def test_a_model_of_other_widths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text features"):
        TextCache(tmp_path / "none").require(128, 128)
    TextCache(tmp_path).write(["walk"], HashedTextEncoder())
    TextCache(tmp_path).require(128, 128)
    with pytest.raises(UserError, match="128 wide per token.*4096 and 768"):
        TextCache(tmp_path).require(4096, 768)


def test_features_that_overflow_are_refused(tmp_path: Path) -> None:
    class Loud(HashedTextEncoder):
        def encode(self, captions: list[str]) -> TextFeatures:
            features = super().encode(captions)
            return TextFeatures(features.tokens * 1e6, features.lengths, features.pooled)

    with pytest.raises(UserError, match="float16 for the caption 'walk'"):
        TextCache(tmp_path / "half").write(["walk"], Loud(), dtype=torch.float16)
    assert TextCache(tmp_path / "brain").write(["walk"], Loud(), dtype=torch.bfloat16) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    TextCache(tmp_path).write(CAPTIONS, HashedTextEncoder())
    shard = tmp_path / "text-00000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(UserError, match="text-00000.safetensors is damaged"):
        TextCache(tmp_path)
    shard.unlink()
    with pytest.raises(UserError, match="text-00000.safetensors is missing"):
        TextCache(tmp_path)
    (tmp_path / "index.json").write_text('{"format": "ds_hymotion.text", "version": 99}')
    with pytest.raises(UserError, match="not an index of ds_hymotion.text version 1"):
        TextCache(tmp_path)


def test_it_can_be_sent_to_another_process(tmp_path: Path) -> None:
    cache = TextCache(tmp_path)
    cache.write(["walk"], HashedTextEncoder())
    before = cache.lookup(["walk"])
    assert torch.equal(pickle.loads(pickle.dumps(cache)).lookup(["walk"]).tokens, before.tokens)


def test_lengths_and_identity_are_kept(tmp_path: Path) -> None:
    class Named(HashedTextEncoder):
        def __init__(self, prompt: str) -> None:
            super().__init__()
            self.identity = {"qwen": "a name", "system_prompt_sha256": prompt}

    TextCache(tmp_path).write(CAPTIONS, Named("one"))
    cache = TextCache(tmp_path)
    assert cache.identity == {"qwen": "a name", "system_prompt_sha256": "one"}
    assert cache.lengths(["jump", "", "a person walks"]) == [2, 1, 4]
    with pytest.raises(UserError, match="made with system_prompt_sha256 = one, not two: use what it was made with"):
        cache.write(["run"], Named("two"))
    with pytest.raises(UserError, match="--encode_text qwen_clip"):
        TextCache(tmp_path / "qwen_clip").require(128, 128)

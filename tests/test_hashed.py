from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.text.encoder import TextEncoder, TextFeatures
from ds_hymotion.text.hashed import HashedTextEncoder


def cosine(first: str, second: str) -> float:
    pooled = HashedTextEncoder().encode([first, second]).pooled
    return float(torch.nn.functional.cosine_similarity(pooled[0], pooled[1], dim=0))


def test_shapes_lengths_and_padding() -> None:
    encoder = HashedTextEncoder(token_dim=32, pooled_dim=16)
    features = encoder.encode(["a person walks", "jump"])
    assert isinstance(encoder, TextEncoder)
    assert features.tokens.shape == (2, 4, 32) and features.pooled.shape == (2, 16)
    assert features.lengths.tolist() == [4, 2]
    assert not features.tokens[1, 2:].any()
    assert torch.allclose(features.tokens[0].square().mean(dim=-1), torch.ones(4))
    assert torch.allclose(features.pooled.square().mean(dim=-1), torch.ones(2))


def test_empty_caption_has_the_closing_token_alone() -> None:
    features = HashedTextEncoder().encode([""])
    assert features.lengths.tolist() == [1]
    assert bool(features.tokens.any()) and bool(features.pooled.any())


def test_same_bits_everywhere() -> None:
    """The digest was computed once: another machine, Python or torch must reproduce it."""
    features = HashedTextEncoder(token_dim=8, pooled_dim=8).encode(
        ["a person waves with the left hand", "他用左手挥手"]
    )
    digest = hashlib.sha256(features.tokens.numpy().tobytes() + features.pooled.numpy().tobytes()).hexdigest()
    assert digest == "4e7c926a738c904a4b9fb42c65d546ce6673cee335dda51c53bbd399a9c873e8"


def test_left_and_right_and_word_order_differ() -> None:
    assert cosine("a person waves with the left hand", "a person waves with the right hand") < 0.7
    assert cosine("a person walks then jumps", "a person jumps then walks") < 0.85
    assert cosine("他用左手挥手", "他用右手挥手") < 0.85
    alike = cosine("a man walks forward slowly", "the man is walking slowly forward")
    assert alike > cosine("a man walks forward slowly", "somebody plays the violin") + 0.3


def test_a_token_knows_its_place_and_the_word_before_it() -> None:
    tokens = HashedTextEncoder().encode(["turn left turn left"]).tokens[0]
    assert not torch.equal(tokens[0], tokens[2])
    assert float(torch.nn.functional.cosine_similarity(tokens[0], tokens[2], dim=0)) > 0.5


def test_long_captions_are_cut_and_keep_the_closing_token() -> None:
    encoder = HashedTextEncoder(max_tokens=5)
    assert encoder.encode(["one two three four five six seven"]).lengths.tolist() == [5]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
@settings(deadline=None, max_examples=50)
def test_any_text_gives_finite_features_that_do_not_depend_on_the_batch(captions: list[str]) -> None:
    encoder = HashedTextEncoder(token_dim=8, pooled_dim=8)
    together = encoder.encode(captions)
    assert bool(together.tokens.isfinite().all() and together.pooled.isfinite().all())
    for place, caption in enumerate(captions):
        alone = encoder.encode([caption])
        length = int(alone.lengths[0])
        assert int(together.lengths[place]) == length >= 1
        assert torch.equal(alone.tokens[0], together.tokens[place, :length])
        assert torch.equal(alone.pooled[0], together.pooled[place])


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="max_tokens 0"):
        HashedTextEncoder(max_tokens=0)
    with pytest.raises(ValueError, match="no captions"):
        HashedTextEncoder().encode([])
    with pytest.raises(ValueError, match="different counts"):
        TextFeatures(torch.zeros(2, 3, 4), torch.ones(1, dtype=torch.long), torch.zeros(1, 4))


def test_captions_that_are_cut_are_counted() -> None:
    encoder = HashedTextEncoder(8, 8, max_tokens=4)
    assert encoder.truncated(["one two three", "one two three four", ""]) == {"3 words": 1}
    assert encoder.identity == {}

"""What words say about a clip's action type."""

from __future__ import annotations

import pytest

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.data.actions.labels import label_of, type_of_words
from ds_hymotion.data.builtin import generate_set
from ds_hymotion.data.corpus import Sample
from ds_hymotion.formats.humanml3d import Caption


def sample(*captions: str, action: str | None = None, hints: tuple[str, ...] = ()) -> Sample:
    texts = tuple(Caption(text) for text in captions)
    return Sample(0, "a", "a", 60, texts, (0.0, 2.0), "train", False, action, hints)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A person walks forward, slowly.", "LOCOMOTION"),
        ("someone hops on one leg", "LOCOMOTION"),
        ("a man walks to a table and picks up a cup", "MANIPULATION"),
        ("a person raises both of his arms", None),
        ("the person raises both arms", "GESTURE"),
        ("he stands on his left leg", "BALANCE"),
        ("a person stands up from a chair", "TRANSITION"),
        ("a person stands still", "POSTURE"),
        ("she is sitting", "POSTURE"),
        ("she sits down", "TRANSITION"),
        ("a person holds a crouch", "POSTURE"),
        ("turns the head while standing", "POSTURE"),
        ("take/pick something up", "MANIPULATION"),
        ("t pose", "POSTURE"),
        ("does a cartwheel", None),
        ("", None),
    ],
)
def test_verbs(text: str, wanted: str | None) -> None:
    assert type_of_words(text) == wanted


def test_the_more_trusted_source_wins_and_captions_vote() -> None:
    walk, wave, sit = "a person walks", "a person waves", "a person sits"
    assert label_of(sample(walk, action="Gesture", hints=("sit",)), ACTION_TYPES) == "GESTURE"
    assert label_of(sample(walk, hints=("sit", "t pose", "wave")), ACTION_TYPES) == "POSTURE"
    assert label_of(sample(walk, hints=("cartwheel",)), ACTION_TYPES) == "LOCOMOTION"
    assert label_of(sample(walk, walk, wave, action="unheard of"), ACTION_TYPES) == "LOCOMOTION"
    assert label_of(sample(walk, wave), ACTION_TYPES) is None
    assert label_of(sample(walk, wave), ("GESTURE", "OTHER")) == "GESTURE"
    assert label_of(sample(sit, action="OTHER", hints=("wave",)), ACTION_TYPES, ("captions",)) == "POSTURE"
    assert label_of(sample(sit, action="OTHER"), ("other",), ("action",)) == "other"


def test_verbs_of_builtin_captions() -> None:
    clips = generate_set(clips_per_type=6, seed=3, frames=(60, 60))
    captions = [(text, clip.action) for clip in clips for text in clip.captions]
    assert sum(type_of_words(text) == action for text, action in captions) > 0.95 * len(captions)
    told = [label_of(sample(*clip.captions), ACTION_TYPES) for clip in clips]
    assert sum(label == clip.action for label, clip in zip(told, clips)) >= 35

"""What is known of a clip's action type: given labels, BABEL's words, or the verbs of its captions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ds_hymotion.data.actions.settings import SOURCES
from ds_hymotion.data.corpus import Sample

_SIDE = r"(?:(?:the|one|his|her|their|its|a|both|left|right|single|other) )*"

# Tried from the top, each as whole words: the first that a sentence has gives its type. What a person works on with
# the hands says more than how the feet get there, and a fight for balance more than both.
_VERBS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("LOCOMOTION", (r"(?:hop|skip|jump)\w* (?:\w+ )?on (?:the )?(?:one|left|right)",)),
    ("BALANCE", (
        r"balanc\w*", "tightrope", r"wobbl\w*", r"waver\w*", r"totter\w*", "yoga", "tree pose", "heel to toe",
        "along a rope", "one foot in front of the other", "on tiptoes?", rf"on (?:only )?{_SIDE}(?:leg|foot)",
        rf"(?:lift|rais)\w* {_SIDE}(?:leg|knee|foot)",
    )),
    ("MANIPULATION", (
        r"push\w*", r"pull\w*", r"shov\w*", r"drag\w*", r"carr(?:y|ies|ied|ying)", r"throw\w*", r"hurl\w*", r"toss\w*",
        r"catch\w*", r"grab\w*", r"grasp\w*", r"reach\w*", r"pick\w*", "put(?:s|ting)?", "(?:open|clos)(?:s|es|ing)",
        "(?:plac(?:es?|ing)|lift(?:s|ing)?) (?:an?|something)", "hold(?:s|ing)? (?:an?|something)(?! crouch| squat)",
        "wip(?:es?|ing)", r"clean\w*", r"wash\w*", r"pour\w*", r"stir\w*", r"drink\w*", "eat(?:s|ing)", r"cook\w*",
        "typ(?:es|ing)", "writ(?:es|ing)",
        r"dial\w*", "object", "box", "load", "ball", "high shelf", r"stretch\w* out the \w+ arm in front",
        r"extends? the \w+ hand forward",
    )),
    ("GESTURE", (
        "wav(?:e|es|ing)", "point(?:s|ing)?", r"clap\w*", r"applau\w*", "bow(?:s|ing|ed)?", r"salut\w*", r"gestur\w*",
        r"greet\w*", "nod(?:s|ding)?", r"shrug\w*", r"beckon\w*", r"cheer\w*", r"pray\w*",
        rf"(?<!with )(?:rais|lift|mov|shak|cross|stretch|swing|spread)\w* {_SIDE}(?:arms?|hands?)",
        "(?:hand|arm|head) movements?",
    )),
    ("LOCOMOTION", (
        r"walk\w*", "run(?:s|ning)?", "ran", r"jog\w*", r"jump\w*", r"leap\w*", "hop(?:s|ping)?", r"skip\w*",
        r"march\w*", r"stroll\w*", r"sprint\w*", r"sidestep\w*", "side steps", "sideways", "in reverse", r"crawl\w*",
        r"climb\w*", r"danc\w*", "stepping", "steps? (?:back|forward|to)", r"wander\w*", "pac(?:es|ing)",
        "(?:forward|backwards?) movement",
    )),
    ("TRANSITION", (
        r"(?:sit|lie|lay|kneel|squat|crouch|bend|get)\w*(?: \w+)? down", "go(?:es|ing)? down", "rises?", r"spin\w*",
        r"(?:stand|get|got|ris|straighten)\w* (?:\w+ )?up", r"turn\w*(?! the head)", r"bend\w* (?:over|forward)",
        "fac(?:e|ing) (?:left|right|the other way)", r"lowers? (?:the|a) \w+", "from (?:a )?(?:standing|sitting)",
        "and kneels", "transition", "falls?",
    )),
    ("POSTURE", (
        "sit(?:s|ting)?", "seated", r"stand\w*", r"kneel\w*", r"crouch\w*", r"squat\w*", "lies?", "lying", r"stay\w*",
        r"wait\w*", "still", "poses?", "rest(?:s|ing)",
    )),
)  # fmt: skip
_TABLE = tuple((name, re.compile(rf"\b(?:{'|'.join(patterns)})\b")) for name, patterns in _VERBS)


def type_of_words(text: str) -> str | None:
    """The one of the six action types that a sentence's verbs speak of; None where they speak of none."""
    plain = " ".join(re.sub(r"[^a-z0-9 ]", " ", text.lower()).split())
    return next((name for name, pattern in _TABLE if pattern.search(plain)), None)


def label_of(sample: Sample, names: Sequence[str], sources: Iterable[str] = SOURCES) -> str | None:
    """The type of a clip, one of ``names``, as far as anything tells it.

    A given action type counts as it is, in capitals or not. Hints and captions vote by their verbs, hints first; a tie
    gives no label.

    Args:
        names: the legal types; other ones are no label.
        sources: which of :data:`SOURCES` to ask.
    """
    allowed = set(sources)
    by_name = {name.lower(): name for name in names}
    if "action" in allowed and sample.action is not None and sample.action.lower() in by_name:
        return by_name[sample.action.lower()]
    if "hints" in allowed and (found := _vote(sample.hints, by_name)):
        return found
    return _vote([caption.text for caption in sample.captions], by_name) if "captions" in allowed else None


def _vote(texts: Iterable[str], by_name: dict[str, str]) -> str | None:
    found = [name.lower() for name in map(type_of_words, texts) if name is not None]
    votes = Counter(by_name[name] for name in found if name in by_name).most_common(2)
    return votes[0][0] if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]) else None

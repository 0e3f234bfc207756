"""A caption for the mirrored motion: left and right, clockwise and counterclockwise change places."""

from __future__ import annotations

import re

# "left", "right" as words and in leftward, rightmost, left-handed, righthand …; not in upright, bright or leftover.
_SIDE = r"(?P<side>left|right)(?=(?:wards?|most|handed|footed|sided|hand|foot|leg|arm|side|y|s)?(?![^\W_]))"
_TURN = r"(?P<turn>(?:(?:counter|anti)[\s-]?)?clock[\s-]?wise)(?![^\W_])"
# Words of these shapes name no side.
_SIDELESS = r"(?P<keep>all right|right[\s-]angle[sd]?|right now|right away(?! from)|left off)(?![^\W_])"
_ENGLISH = re.compile(rf"(?<![^\W_])(?:{_SIDELESS}|{_SIDE}|{_TURN})", re.IGNORECASE)
_CHINESE = re.compile("左右|右左|左|右|顺时针|逆时针|順時針|逆時針")
_CHINESE_SWAP = {"左": "右", "右": "左", "顺时针": "逆时针", "逆时针": "顺时针", "順時針": "逆時針", "逆時針": "順時針"}


def mirror_caption(caption: str) -> str:
    """The caption with its sides and turning directions exchanged, letter case kept; all else untouched.

    Words that only look like sides stay: "upright", "a right angle", "right now", "左右" (both sides).
    """
    swapped = _ENGLISH.sub(_swap, caption)
    return _CHINESE.sub(lambda found: _CHINESE_SWAP.get(found.group(), found.group()), swapped)


def _swap(found: re.Match[str]) -> str:
    word = found.group()
    if found["keep"]:
        return word
    if found["side"]:
        other = "right" if word.lower() == "left" else "left"
    else:
        other = "counterclockwise" if word.lower().startswith("clock") else "clockwise"
    if word.isupper():
        return other.upper()
    return other.capitalize() if word[0].isupper() else other

"""English sentences for built-in clips, filled with what the clip really does."""

from __future__ import annotations

import re

import numpy as np

from ds_hymotion.data.builtin.action import Facts
from ds_hymotion.data.builtin.templates import TEMPLATES

WHO = ("a person", "someone", "the person", "a figure", "a person", "a human")
CAPTIONS = 4  # per clip, all different


def pace(value: float, slow: float, fast: float) -> str:
    """``slowly`` below ``slow``, ``quickly`` above ``fast``, nothing between."""
    return "slowly" if value < slow else "quickly" if value > fast else ""


def count_word(count: int) -> str:
    """``once``, ``twice``, ``three times``, … ``ten times``, then ``many times``."""
    numbers = ("three", "four", "five", "six", "seven", "eight", "nine", "ten")
    names = ("once", "twice", *(f"{number} times" for number in numbers))
    return names[count - 1] if count <= len(names) else "many times"


def again(count: int) -> str:
    """:func:`count_word`, nothing for a single time."""
    return count_word(count) if count > 1 else ""


def describe(rng: np.random.Generator, sub_action: str, facts: Facts) -> tuple[str, ...]:
    """Different captions of one clip, from the templates of its sub-action and variant."""
    name = f"{sub_action}/{facts['variant']}" if "variant" in facts else sub_action
    templates = TEMPLATES[name]
    captions: list[str] = []
    for index in rng.permutation(len(templates)):
        sentence = templates[index].format(who=rng.choice(WHO), **facts)
        sentence = re.sub(r"\s+", " ", sentence).replace(" ,", ",").strip()
        if sentence not in captions:
            captions.append(sentence)
    return tuple(captions[:CAPTIONS])

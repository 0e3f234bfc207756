"""The expert of every clip: that of its action type."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ds_hymotion.data.corpus import ACTION_TYPES_FILE, Corpus, Sample
from ds_hymotion.errors import UserError


def expert_ids(samples: Sequence[Sample], names: Sequence[str], action_of: Callable[[Sample], str | None]) -> list[int]:
    """The expert number of every sample, by its action type's name in capitals or not; [] where there are no names.

    Args:
        samples: clips of one or several corpora.
        names: the types that have experts, in the order of their numbers.
        action_of: a clip's type, such as :meth:`ds_hymotion.data.mixture.Mixture.action_of`.

    Raises:
        UserError: a sample without an action type, or of a type that has no expert.
    """
    if not names:
        return []
    numbers = {name.lower(): number for number, name in enumerate(names)}
    actions = [action_of(sample) for sample in samples]
    without = [sample.id for sample, action in zip(samples, actions) if action is None]
    if without:
        raise UserError(
            f"{len(without)} of {len(samples)} clips have no action type, such as {without[0]}; sort the corpus with "
            "launch/prepare.py --out CORPUS --actions, or set hymotion.experts.number to 0"
        )
    others = Counter(action for action in actions if (action or "").lower() not in numbers)
    if others:
        name, count = others.most_common(1)[0]
        raise UserError(
            f"action type {name!r} of {count} clips has no expert; add it to hymotion.experts.names, now "
            f"{', '.join(names)}"
        )
    return [numbers[(action or "").lower()] for action in actions]


def keep_action_types(corpus: Corpus, run: Path) -> None:
    """Copy a corpus's action types, if it has been sorted, beside a run's weights: prompts find their expert by them.

    Raises:
        UserError: the copy cannot be written.
    """
    source, target = corpus.folder / ACTION_TYPES_FILE, run / ACTION_TYPES_FILE
    if not source.is_file():
        return
    partial = target.with_name("." + target.name)
    try:
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    except OSError as error:
        raise UserError(
            f"{target}: cannot be written ({error.strerror}); make room, or give another --output_dir"
        ) from None


def expert_number(name: str, names: Sequence[str]) -> int:
    """The number of an expert by its action type's name, in capitals or not.

    Raises:
        UserError: no expert is called so.
    """
    lower = [known.lower() for known in names]
    if name.lower() not in lower:
        raise UserError(f"--action {name}: no expert is called so; use one of {', '.join(names)}")
    return lower.index(name.lower())

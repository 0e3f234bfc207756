"""Combinations that a configuration is refused with, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from ds_hymotion.errors import UserError


def refuse(refusals: Mapping[str, tuple[object, str]], name: str, conflict: str, otherwise: str = "") -> None:
    """Refuse the first entry that is present: ``name: key conflict; alternative``.

    Args:
        refusals: by key and value as a message shows them, whether they are present, and what to use instead.
        name: how messages call the configuration.
        conflict: what the keys do not do, such as ``does not work with hymotion.lora``.
        otherwise: what else helps, behind every alternative.

    Raises:
        UserError: an entry is present.
    """
    for key, (present, alternative) in refusals.items():
        if present:
            raise UserError(f"{name}: {key} {conflict}; {alternative}{otherwise}")

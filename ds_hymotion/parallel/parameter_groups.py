"""Which parameters of the network a group name means, and which of them a run trains, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ds_hymotion.config.gradient_sync import GradientSyncSection
from ds_hymotion.errors import UserError
from ds_hymotion.model.initialisation import own_name

# Patterns of released parameter names. A single block's linear1 makes q, k, v and the MLP's hidden layer at once, its
# linear2 reads attention and MLP at once: each belongs to both groups.
GROUPS: dict[str, tuple[str, ...]] = {
    "attention_output": ("*_out_proj.*", "*.self_attn_proj.*", "*.single_blocks.*.linear2.*"),
    "ffn_output": ("*mlp.fc2.*", "*.single_blocks.*.linear2.*"),
    "motion_head": ("*.final_layer.linear.*",),
    "qkv": ("*_qkv.*", "*.single_blocks.*.linear1.*"),
    "ffn_input": ("*mlp.fc1.*", "*.single_blocks.*.linear1.*"),
    "modulation": ("*_mod.linear.*", "*.modulation.linear.*", "*.adaLN_modulation.linear.*"),
    "norms": ("*_norm.*", "*.norm1.*", "*.norm2.*"),
    "motion_input": ("*.input_encoder.*",),
    "text": ("*.ctxt_encoder.*", "*.vtxt_encoder.*", "*.text_refiner.*"),
    "time": ("motion_transformer.timestep_encoder.*",),
    "null_condition": ("null_vtxt_feat", "null_ctxt_input"),
    "double_blocks": ("*.double_blocks.*",),
    "single_blocks": ("*.single_blocks.*",),
}


@dataclass(frozen=True)
class SyncGroups:
    """Parameter names, in the network's order: averaged every step, every few steps, never."""

    always: tuple[str, ...]
    deferred: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()


def members(words: Sequence[str], names: Iterable[str], key: str) -> set[str]:
    """The names that any of ``words`` means: a group of GROUPS, or a pattern such as ``*.double_blocks.0.*``.

    Raises:
        UserError: a word means no parameter; ``key`` is the JSON key, inside ``hymotion``, that it came from.
    """
    names = list(names)
    found: set[str] = set()
    for word in words:
        patterns = GROUPS.get(word, (word,))
        # The networks of later chunks, by time, belong to the same groups as the first.
        hits = [name for name in names if any(fnmatchcase(own_name(name), pattern) for pattern in patterns)]
        hits += [name for name in names if fnmatchcase(name, word)]
        if not hits:
            raise UserError(
                f"hymotion.{key}: {word!r} means no parameter; use {', '.join(GROUPS)}, "
                "or a pattern of released names such as *.double_blocks.0.*"
            )
        found.update(hits)
    return found


def sync_groups(section: GradientSyncSection, names: Sequence[str]) -> SyncGroups:
    """Divide the network's parameter ``names`` as the section says.

    Raises:
        UserError: a group or pattern means no parameter, or nothing is left to train.
    """
    frozen = members(section.frozen, names, "gradient_sync.frozen")
    chosen = members(section.always, names, "gradient_sync.always")
    if section.others_every == 1:
        chosen = set(names)
    always = tuple(name for name in names if name in chosen - frozen)
    if not always:
        raise UserError(
            f"hymotion.gradient_sync.frozen = {section.frozen} freezes everything that is averaged every step; "
            "leave something of hymotion.gradient_sync.always out of it"
        )
    return SyncGroups(
        always,
        tuple(name for name in names if name not in chosen and name not in frozen),
        tuple(name for name in names if name in frozen),
    )

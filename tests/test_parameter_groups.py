"""Group names against the released parameter names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ds_hymotion.config.gradient_sync import GradientSyncSection
from ds_hymotion.errors import UserError
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import preset
from ds_hymotion.parallel.parameter_groups import GROUPS, members, sync_groups


def sizes(name: str) -> dict[str, int]:
    with torch.device("meta"):
        generator = MotionGenerator(preset(name, input_dim=201))
    return {name: parameter.numel() for name, parameter in generator.named_parameters()}


@pytest.mark.parametrize(("name", "share"), [("hy-motion-1.0", 0.299), ("hy-motion-1.0-lite", 0.296)])
def test_the_share_that_is_always_synchronised(name: str, share: float) -> None:
    numel = sizes(name)
    groups = sync_groups(GradientSyncSection(others_every=2), list(numel))
    hot = sum(numel[parameter] for parameter in groups.always) / sum(numel.values())
    assert hot == pytest.approx(share, abs=5e-4)
    assert len(groups.always) + len(groups.deferred) == len(numel) and not groups.frozen


def test_every_parameter_has_a_group() -> None:
    names = list(sizes("tiny"))
    found = {group: members([group], names, "always") for group in GROUPS}
    assert set(names) == set().union(*found.values())
    assert found["motion_head"] == {
        "motion_transformer.final_layer.linear.weight",
        "motion_transformer.final_layer.linear.bias",
    }
    single = "motion_transformer.single_blocks.0."
    assert {group for group in found if single + "linear2.weight" in found[group]} == {
        "attention_output",
        "ffn_output",
        "single_blocks",
    }
    assert {group for group in found if single + "linear1.bias" in found[group]} == {
        "qkv",
        "ffn_input",
        "single_blocks",
    }


def test_frozen_wins_and_patterns_work() -> None:
    names = list(sizes("tiny"))
    section = GradientSyncSection(frozen=["*.double_blocks.0.*", "text"], others_every=2)
    groups = sync_groups(section, names)
    parts = (".double_blocks.0.", ".ctxt_encoder.", ".vtxt_encoder.", ".text_refiner.")
    assert groups.frozen == tuple(name for name in names if any(part in name for part in parts))
    assert not set(groups.frozen) & {*groups.always, *groups.deferred}
    assert "motion_transformer.single_blocks.0.linear2.weight" in groups.always
    everything = sync_groups(GradientSyncSection(), names)
    assert everything.always == tuple(names) and not everything.deferred


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"always": ["attention_outputs"]}, ["always", "'attention_outputs'", "attention_output, ffn_output"]),
        ({"frozen": ["*.triple_blocks.*"]}, ["frozen", "'*.triple_blocks.*'", "*.double_blocks.0.*"]),
        ({"frozen": ["*"]}, ["frozen = ['*']", "leave something"]),
    ],
)
def test_mistakes(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        sync_groups(GradientSyncSection(**changes), list(sizes("tiny")))
    for word in words:
        assert word in str(caught.value)

"""ds_configs/README.md is what the configuration's models say."""

from __future__ import annotations

from ds_hymotion.reports.config_reference import reference
from ds_hymotion.tiers import CONFIGS


def test_the_table_is_up_to_date() -> None:
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    again = "write it again: python -m ds_hymotion.reports.config_reference > ds_configs/README.md"
    assert text == reference(), again


def test_types_defaults_and_legal_values() -> None:
    lines = reference().splitlines()
    for start in (
        '| `checkpoint_kinds` | list of string | `["double", "single"]` | each `double`, `single` |',
        "| `num_layers` | whole number or null | `null` | at least 3 |",
        "| `joint_update_every` | list of whole number | `[]` | each at least 1 |",
        "| `replay` | object | `null` |  | a base corpus",
        '| `mode` | string | `"layers"` | `layers`, `temporal` |',
        "| `weight` | number or null | `null` | above 0; at most 1000 |",
    ):
        assert sum(line.startswith(start) for line in lines) == 1, start
    assert "## hymotion.data.mix[]" in lines and "## hymotion.data.replay" in lines

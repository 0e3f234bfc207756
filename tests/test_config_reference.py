"""ds_configs/README.md is what the configuration's models say."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from ds_hymotion.config.hymotion import HymotionSection
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


def leaves(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Section and key of every value, by the JSON schema of the models."""
    schema = model.model_json_schema()

    def walk(part: dict[str, object], path: str) -> Iterator[tuple[str, str]]:
        for key, inner in part["properties"].items():  # type: ignore[attr-defined]
            text = str(inner)
            name = next((name for name in schema["$defs"] if f"#/$defs/{name}'" in text), None)
            if name is None:
                yield path, key
            else:
                yield from walk(schema["$defs"][name], f"{path}.{key}" + ("[]" if "'array'" in text else ""))

    return walk(schema, "hymotion")


def test_every_key_has_a_row() -> None:
    tables = dict(part.split("\n", 1) for part in reference().split("\n## ")[1:])
    found = list(leaves(HymotionSection))
    assert ("hymotion", "watchdog_s") in found and ("hymotion.data.mix[]", "weight") in found and len(found) > 90
    for section, key in found:
        assert f"\n| `{key}` |" in tables[section], (section, key)

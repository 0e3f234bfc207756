"""Every key of the ``hymotion`` section as a table: ``python -m ds_hymotion.reports.config_reference`` prints it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ds_hymotion.config.hymotion import HymotionSection
from ds_hymotion.tiers import TIERS

HEADER = """# Configurations

One DeepSpeed JSON says everything about a run. Its own keys are DeepSpeed's; the `hymotion` section holds the keys
below. Values are checked before anything starts, and an unknown key is refused. Whether a file fits a machine tells
`python launch/plan.py FILE`.

| file | machine and network |
|---|---|
"""


def reference() -> str:
    """The text of ``ds_configs/README.md``."""
    lines = [HEADER.rstrip("\n")]
    lines += [f"| `{tier.path.name}` | {tier.what} |" for tier in TIERS]
    own = {key: field for key, field in HymotionSection.model_fields.items() if _section(field.annotation) is None}
    lines += ["", "## hymotion", "", "Keys of the section itself; its parts follow.", "", *_table(own)]
    for name, model in sections(HymotionSection):
        lines += ["", f"## hymotion.{name}", "", _summary(model), "", *_table(model.model_fields)]
    return "\n".join(lines) + "\n"


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections inside ``model`` by dotted name, lists of objects with ``[]``, outer ones first."""
    for name, field in model.model_fields.items():
        inner = _section(field.annotation)
        if inner is not None:
            listed = any(get_origin(part) is list for part in _parts(field.annotation))
            path = f"{prefix}{name}{'[]' if listed else ''}"
            yield path, inner
            yield from sections(inner, f"{path}.")


def _section(kind: Any) -> type[BaseModel] | None:
    """The section in a type such as ``Replay | None`` or ``list[MixedCorpus]``."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for part in get_args(kind) if (found := _section(part))), None)


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _summary(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split()).replace("``", "`")


def _table(fields: Mapping[str, FieldInfo]) -> list[str]:
    header = ["| key | type | default | legal | meaning |", "|---|---|---|---|---|"]
    return header + [_row(key, field) for key, field in fields.items()]


def _row(key: str, field: FieldInfo) -> str:
    if (inner := _section(field.annotation)) is not None:
        kind, legal, meaning = "objects" if "list" in str(field.annotation) else "object", "", ""
        meaning = field.description or _summary(inner)
    else:
        kind, legal, meaning = (
            _kind(field.annotation),
            _legal(field.annotation, field.metadata),
            field.description or "",
        )
    cells = [f"`{key}`", kind, _default(field), legal, meaning]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _kind(kind: Any) -> str:
    """A type in JSON's words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in arguments)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is list:
        return f"list of {_kind(arguments[0])}"
    if origin is Literal:
        return "string"
    names = {int: "whole number", float: "number", str: "string", bool: "true or false", type(None): "null"}
    return names[kind]


def _legal(kind: Any, metadata: list[Any]) -> str:
    """Choices and bounds."""
    words = []
    for part in _parts(kind):
        if get_origin(part) is list:
            inner = get_args(part)[0]
            each = _legal(*(get_args(inner)[0], _unpacked(inner)) if get_origin(inner) is Annotated else (inner, []))
            words += [f"each {each}"] if each else []
        if get_origin(part) is Literal:
            words.append(", ".join(f"`{value}`" for value in get_args(part)))
    bounds = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}
    for bound in metadata:
        if isinstance(bound, tuple(bounds)):
            value = next(getattr(bound, name) for name in ("ge", "gt", "le", "lt") if hasattr(bound, name))
            words.append(f"{bounds[type(bound)]} {value:g}")
        elif isinstance(bound, MinLen):
            words.append("not empty")
    return "; ".join(words)


def _unpacked(kind: Any) -> list[Any]:
    """Bounds of an annotated type, those inside pydantic's own field too."""
    return [bound for item in get_args(kind)[1:] for bound in getattr(item, "metadata", [item])]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    words = {True: "true", False: "false", None: "null"}
    if value is None or isinstance(value, bool):
        return f"`{words[value]}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`".replace("'", '"')


if __name__ == "__main__":
    print(reference(), end="")

"""Benchmarks by name, each with a command line made from the arguments of its ``run``."""

from __future__ import annotations

import argparse
import inspect
import json
import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import replace_file
from ds_hymotion.reports import benchmarks
from ds_hymotion.reports.measuring.row import Row, as_json, machine_conditions, table


def names() -> list[str]:
    """Every benchmark there is."""
    return sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))


def run_benchmark(arguments: Sequence[str], say: Callable[[str], None] = print) -> list[Row]:
    """``NAME [--json FILE] [--OPTION VALUE ...]``: run it, print its table and write its JSON.

    Raises:
        UserError: an unknown benchmark or option, a value of another type, or a file that cannot be written.
    """
    known = ", ".join(names())
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"name a benchmark: {known}; such as launch/benchmark.py {names()[0]} --json figures.json")
    name, *given = arguments
    if name not in names():
        raise UserError(f"benchmark {name!r} is unknown: legal are {known}")
    run = import_module(f"{benchmarks.__name__}.{name}").run
    options = vars(_parser(name, run).parse_args(given))
    target = options.pop("json")
    if target is not None and not Path(target).absolute().parent.is_dir():
        raise UserError(f"--json {target} is in no folder that exists: give a path in one")
    rows = run(**options)
    say(", ".join(f"{name} {value}" for name, value in machine_conditions().items() if value is not None))
    say(table(rows))
    if target is not None:
        text = json.dumps(as_json(name, rows), indent=2) + "\n"
        replace_file(target, lambda temporary: _write(temporary, text))
    return rows


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def _parser(name: str, run: Callable[..., list[Row]]) -> argparse.ArgumentParser:
    parser = _Parser(f"benchmark.py {name}", description=inspect.getdoc(run), allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", help="file to write the figures to")
    for option in inspect.signature(run).parameters.values():
        kind: Any = str if option.default is None else type(option.default)
        parser.add_argument(f"--{option.name}", type=kind, default=option.default, help=f"default: {option.default}")
    return parser


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

"""The system prompt of the released text conditioning: read from the user's own copy of the release, or from a file.

The release's Python files are parsed, never run.
"""

from __future__ import annotations

import ast
import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ds_hymotion.errors import UserError

# The release's name for it; a copy that calls it otherwise is searched for the message that its encoder sends.
CONSTANT = "PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION"
MOST_FILES = 5000
LARGEST_FILE = 1 << 20
_NOT_THE_RELEASE = {"site-packages", "node_modules", "venv", "__pycache__"}


@dataclass(frozen=True)
class SystemPrompt:
    """The prompt, white space and all, and the file it stands in."""

    text: str
    source: Path

    @property
    def sha256(self) -> str:
        """What a feature cache remembers of it."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def prompt_of_file(path: Path | str) -> SystemPrompt:
    """The whole file is the prompt, its line breaks included.

    Raises:
        UserError: it cannot be read, or is blank.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"system prompt file {path} cannot be read ({error}); give a UTF-8 text file") from None
    if not text.strip():
        raise UserError(f"system prompt file {path} is blank; it must hold the prompt, and nothing else")
    return SystemPrompt(text, path)


def prompt_of_release(folder: Path | str) -> SystemPrompt:
    """The prompt that a copy of the released code encodes captions with.

    It is the string constant of that name. Where no file has one, it is the system message of a file that applies a
    chat template, if all such messages are the same.

    Raises:
        UserError: not a folder, no prompt found, or several that differ.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"release folder {folder} is not there; give your clone of the HY-Motion 1.0 repository")
    modules = [_read_module(path) for path in _python_files(folder)]
    named = [(module.strings[CONSTANT], module.path) for module in modules if CONSTANT in module.strings]
    found = named or _system_messages(modules)
    if not found:
        raise UserError(
            f"release folder {folder}: no Python file defines {CONSTANT} or sends a system message through a chat "
            "template; give your clone of the HY-Motion 1.0 repository, or the prompt in a text file"
        )
    text, path = found[0]
    for other, place in found[1:]:
        if other != text:
            raise UserError(
                f"release folder {folder}: the system prompts in {path} and {place} differ; give one clone alone, or "
                "the prompt in a text file"
            )
    if not text.strip():
        raise UserError(f"release folder {folder}: the system prompt in {path} is blank; give it in a text file")
    return SystemPrompt(text, path)


@dataclass
class _Module:
    """What one file says: its string constants by name, and the contents of its system messages."""

    path: Path
    strings: dict[str, str] = field(default_factory=dict)
    messages: list[ast.expr] = field(default_factory=list)
    applies_template: bool = False


def _python_files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_THE_RELEASE)
        for name in sorted(files):
            path = Path(place, name)
            if path.suffix == ".py" and path.is_file() and path.stat().st_size <= LARGEST_FILE:
                count += 1
                if count > MOST_FILES:
                    raise UserError(
                        f"release folder {folder} holds more than {MOST_FILES} Python files; give your clone of the "
                        "HY-Motion 1.0 repository, not a folder above it"
                    )
                yield path


def _read_module(path: Path) -> _Module:
    module = _Module(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                text = _string(node.value, module.strings)
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if text is not None:
                    module.strings.update({target.id: text for target in targets if isinstance(target, ast.Name)})
            elif isinstance(node, ast.Dict):
                entries = {_literal(key): value for key, value in zip(node.keys, node.values)}
                if _literal(entries.get("role")) == "system" and "content" in entries:
                    module.messages.append(entries["content"])
            elif isinstance(node, ast.Attribute) and node.attr == "apply_chat_template":
                module.applies_template = True
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return _Module(path)
    return module


def _system_messages(modules: list[_Module]) -> list[tuple[str, Path]]:
    """The system messages of files that apply a chat template, where their text is known."""
    values: dict[str, set[str]] = {}
    for module in modules:
        for name, text in module.strings.items():
            values.setdefault(name, set()).add(text)
    shared = {name: next(iter(texts)) for name, texts in values.items() if len(texts) == 1}
    texts = [
        (_string(message, {**shared, **module.strings}), module.path)
        for module in modules
        if module.applies_template
        for message in module.messages
    ]
    return [(text, path) for text, path in texts if text is not None]


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _string(node: ast.expr, names: dict[str, str]) -> str | None:
    """The text of a literal, of literals joined by + or in an f-string, or of a name; None for anything else."""
    if isinstance(node, ast.Constant):
        return _literal(node)
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return names.get(node.attr)
    parts: list[ast.expr]
    if isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion in (-1, ord("s")):
        parts = [node.value]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    else:
        return None
    texts = [_string(part, names) for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)

"""The system prompt out of a clone of the release: parsed, never run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ds_hymotion.errors import UserError
from ds_hymotion.text.sources import EncoderSources
from ds_hymotion.text.system_prompt import LARGEST_FILE, prompt_of_file, prompt_of_release

NAME = "PROMPT_TEMPLATE_ENCODE_HUMAN_MOTION"
PLAIN = f'{NAME} = """\n    Say how "it" moves.\n"""\n'
TEXT = '\n    Say how "it" moves.\n'
ENCODER = """
from .constants import WHAT_TO_SAY
def templated(tokenizer, text):
    messages = [{"role": "system", "content": f"{WHAT_TO_SAY}"}, {"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, tokenize=False)
"""


def clone(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"hymotion/network/text_encoders/model_constants.py": PLAIN}, TEXT),
        ({"a.py": f"{NAME}: str = 'Say ' 'it.'"}, "Say it."),
        ({"a.py": f"{NAME} = 'Say ' + 'it.'"}, "Say it."),
        ({"a.py": f"FIRST = 'Say'\n{NAME} = f'{{FIRST}} it.'"}, "Say it."),
        ({"a.py": f"class Constants:\n    {NAME} = 'Say it.'"}, "Say it."),
        ({"a.py": f"{NAME} = 'Say it.\\n'\r\n"}, "Say it.\n"),
        ({"a.py": f"# -*- coding: gbk -*-\n{NAME} = '描述动作'".encode("gbk")}, "描述动作"),
        ({"a.py": PLAIN, "b/copy.py": PLAIN}, TEXT),
        # Under another name: the system message of the file that applies a chat template.
        ({"constants.py": "WHAT_TO_SAY = 'Say it.'", "encoder.py": ENCODER}, "Say it."),
        ({"encoder.py": ENCODER.replace('f"{WHAT_TO_SAY}"', '"Say it."')}, "Say it."),
        ({"encoder.py": ENCODER.replace('f"{WHAT_TO_SAY}"', "WHAT_TO_SAY + ' Now.'"), "c.py": "WHAT_TO_SAY = 'Say.'"},
         "Say. Now."),
        # A rewriter of prompts that speaks to a server is not the encoder.
        ({"constants.py": "WHAT_TO_SAY = 'Say it.'", "encoder.py": ENCODER,
          "rewrite.py": "client.chat([{'role': 'system', 'content': 'Rewrite it.'}])"}, "Say it."),
        # Files that are no Python, too large, or someone else's.
        ({"a.py": PLAIN, "broken.py": "def (", "null.py": b"\0", "deep.py": "(" * 5000 + ")" * 5000,
          "large.py": f"{NAME} = 'Other.'\n".ljust(LARGEST_FILE + 1, "#"),
          ".git/x.py": f"{NAME} = 'Other.'", "venv/x.py": f"{NAME} = 'Other.'"}, TEXT),
    ],
)  # fmt: skip
def test_the_prompt_is_found(tmp_path: Path, files: dict[str, str | bytes], wanted: str) -> None:
    prompt = prompt_of_release(clone(tmp_path, files))
    assert prompt.text == wanted
    assert prompt.sha256 == hashlib.sha256(wanted.encode()).hexdigest()
    assert prompt.source.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": "no code"}, "no Python file defines"),
        ({"a.py": f"{NAME} = open('prompt').read()"}, "no Python file defines"),
        ({"a.py": f"{NAME} = f'{{1 + 1}}'"}, "no Python file defines"),
        ({"a.py": f"{NAME} = 'Say it.'", "b.py": f"{NAME} = 'Say that.'"}, r"a\.py and .*b\.py differ"),
        ({"e.py": ENCODER, "f.py": ENCODER, "c.py": "WHAT_TO_SAY = 'Say it.'", "d.py": "WHAT_TO_SAY = 'No.'"},
         "no Python file defines"),
        ({"a.py": f"{NAME} = '  \\n'"}, "is blank"),
    ],
)  # fmt: skip
def test_what_is_no_release_is_refused(tmp_path: Path, files: dict[str, str | bytes], words: str) -> None:
    with pytest.raises(UserError, match=words):
        prompt_of_release(clone(tmp_path, files))


def test_nothing_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    code = f"import pathlib\npathlib.Path({str(witness)!r}).touch()\n{PLAIN}"
    assert prompt_of_release(clone(tmp_path / "clone", {"a.py": code})).text == TEXT
    assert not witness.exists()


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert prompt_of_file(path).text == TEXT
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"prompt\.txt cannot be read"):
        prompt_of_file(path)
    path.write_text("\n")
    with pytest.raises(UserError, match="is blank"):
        prompt_of_file(path)


def test_one_source_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--release_dir .*neither is given"):
        EncoderSources().system_prompt()
    with pytest.raises(UserError, match=r"hymotion\.text\.release_dir.*both are given"):
        EncoderSources(release_dir="a", system_prompt_file="b", prefix="hymotion.text.").system_prompt()
    with pytest.raises(UserError, match="absent is not there; give your clone"):
        EncoderSources(release_dir=str(tmp_path / "absent")).system_prompt()
    assert EncoderSources(release_dir=str(clone(tmp_path, {"a.py": PLAIN}))).system_prompt().text == TEXT


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"dtype": "int8"}, "encoder_dtype 'int8' is not one of bf16"), ({"device": "tpu"}, "encoder_device 'tpu'")],
)
def test_illegal_settings_are_refused(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EncoderSources(**wrong)

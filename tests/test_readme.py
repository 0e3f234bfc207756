"""README keeps its word: every command in it runs, in its order, and so does its Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.commands import ROOT, run_command, run_here
from tests.ranks import free_port

README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("corpus", "run", "base", "mixed_run", "expert_run", "lora_run", "tuned/weights.safetensors")
SCRIPTS = {"bash launch/quickstart.sh", "bash launch/test.sh"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


@pytest.mark.timeout(600)
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands()
    assert set(found) >= SCRIPTS and len(found) > 6
    monkeypatch.chdir(tmp_path)
    steps = 2
    for line in found:
        if line in SCRIPTS:
            continue
        words = shlex.split(line)
        if words[0] == "python":
            words = [str(ROOT / word) if word.startswith("ds_configs/") else word for word in words]
            assert run_here(words[1].removeprefix("launch/"), words[2:], monkeypatch) == 0, line
            continue
        assert words[:3] == ["deepspeed", "--num_gpus", "2"], f"no test runs: {line}"
        words[3:3] = ["--master_port", str(free_port())]
        words = [str(tmp_path / word) if word in FOLDERS else word for word in words]
        done = run_command([*words, "--max_steps", str(steps), "--eval_steps", "2"], tmp_path)
        assert done.returncode == 0, done.stderr
        steps += 2
    assert (tmp_path / "samples" / "0001.gif").is_file()
    assert (tmp_path / "samples_of_corpus" / "locomotion.bvh").is_file()


@pytest.mark.timeout(600)
def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "quickstart"))
    monkeypatch.setenv("STEPS", "3")
    done = run_command(["bash", "launch/quickstart.sh"], tmp_path, seconds=500)
    assert done.returncode == 0, done.stderr
    assert "nearest clip is of the caption's type" in done.stdout
    out = tmp_path / "quickstart"
    for name in ("balance", "gesture", "locomotion", "manipulation", "posture", "transition"):
        assert all((out / "samples" / f"{name}.{kind}").stat().st_size > 1000 for kind in ("npz", "bvh", "gif"))
    assert (out / "run" / "loss.png").is_file() and (out / "run" / "weights.safetensors").is_file()


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["latent"].shape == (2, 60, 219)  # type: ignore[attr-defined]


def test_every_script_is_in_readme() -> None:
    for path in sorted((ROOT / "launch").glob("*.py")):
        assert f"launch/{path.name}" in README, f"README does not mention {path.name}"

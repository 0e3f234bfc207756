"""The command line of the system's source as printed: a model's name, raw motions, two processes, tensor ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import write_amass
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.presets import PRESETS
from ds_hymotion.model.released import save_released
from ds_hymotion.training import model_name
from ds_hymotion.training.log import read_log
from ds_hymotion.training.model_name import named_model
from ds_hymotion.training.weights import load_weights
from tests.commands import run_command, run_here
from tests.corpora import SMALL, wavy_motion
from tests.ranks import free_port

GROUPS = "hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others"
CONFIG = ModelConfig(**SMALL, band_frames=30)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a release's, of a small network with random weights."""
    folder = tmp_path_factory.mktemp("hub") / "HY-Motion-1.0"
    folder.mkdir()
    generator = MotionGenerator(CONFIG)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.normal_(0, 0.1)
    save_released(folder / "latest.ckpt", generator, epoch=3, global_step=4)
    arguments = {"feat_dim": 16, "num_layers": 3, "num_heads": 2, "narrowband_length": 1.0, "mask_mode": "narrowband"}
    (folder / "config.yml").write_text(yaml.safe_dump({"network_module_args": arguments}))
    return folder


@pytest.fixture(scope="module")
def motions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AMASS files in folders, without captions."""
    folder = tmp_path_factory.mktemp("amass")
    for number, frames in enumerate([20, 23, 31, 34]):
        place = folder / f"subject{number % 2}"
        place.mkdir(exist_ok=True)
        write_amass(place / f"take{number}_poses.npz", wavy_motion(frames, number))
    return folder


def arguments(release: Path, motions: Path, steps: int) -> list[str]:
    """The source's flags, with a number of steps."""
    return ["launch/train.py", "--model_name", str(release), "--data_dir", str(motions),
            "--per_device_train_batch_size", "2", "--fp16", "--tensor_parallel_size", "2", "--joint_groups", GROUPS,
            "--eval_steps", str(steps), "--max_steps", str(steps)]  # fmt: skip


def check_run(run: Path, stdout: str, steps: int) -> None:
    assert "fp16.enabled = true on a CPU, which has no fp16: computing in bf16" in stdout
    assert "no --deepspeed_config: AdamW with lr 1e-05, ZeRO-1, fp32, 1000 steps" in stdout
    assert "has no val split: evaluating on training clips with other noise" in stdout
    assert "motion head: 75 (hip_knee_ankle_shoulder) + 126 (elbow_wrist_neck_spine+others) channels" in stdout
    entries = read_log(run)
    assert entries[-1]["step"] == steps and entries[-1]["loss_fm_joint_hip_knee_ankle_shoulder"] > 0
    assert [entry["step"] for entry in read_log(run, "eval")] == [steps]
    assert load_weights(run / "weights.safetensors")[1].config == CONFIG


def test_as_printed(release: Path, motions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun, on motions without captions; the network samples without a caption."""
    torchrun = ["torchrun", "--nproc_per_node=2", f"--master_port={free_port()}"]
    flags = [*arguments(release, motions, 3), "--output_dir", str(tmp_path / "run"), "--unconditional"]
    done = run_command([*torchrun, *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"holds motion files: preparing them in {tmp_path / 'run' / 'corpus'}" in done.stdout
    check_run(tmp_path / "run", done.stdout, 3)
    words = ["--model", str(tmp_path / "run"), "--prompt", "nothing", "--frames", "20", "--steps", "2"]
    more = ["--guidance", "0", "--formats", "npz", "--out", str(tmp_path / "samples")]
    assert run_here("sample.py", [*words, *more], monkeypatch) == 0


def test_motions_without_captions_need_a_word(
    release: Path, motions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    flags = [*arguments(release, motions, 3)[1:], "--output_dir", str(tmp_path / "run")]
    assert run_here("train.py", flags, monkeypatch) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no caption" in message and message.endswith("; to train without captions, give --unconditional")
    assert not (tmp_path / "run" / "corpus").exists()


@pytest.mark.full
def test_under_deepspeed_with_captions(release: Path, motions: Path, tmp_path: Path) -> None:
    captioned = tmp_path / "captioned"
    shutil.copytree(motions, captioned)
    for number, path in enumerate(sorted(captioned.rglob("*.npz"))):
        path.with_suffix(".txt").write_text(f"motion number {number}\n")
    launcher = ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port())]
    for steps in (2, 100):
        flags = [
            *arguments(release, captioned, steps),
            "--output_dir",
            str(tmp_path / "run"),
            "--learning_rate",
            "1e-3",
        ]
        done = run_command([*launcher, *flags, *(["--resume"] if steps == 100 else [])], tmp_path)
        assert done.returncode == 0, done.stderr
    assert "prepared from" in done.stdout and "holds motion files" not in done.stdout
    assert read_log(tmp_path / "run")[-1]["step"] == 100
    held_out = {entry["step"]: entry["loss"] for entry in read_log(tmp_path / "run", "eval")}
    assert list(held_out) == [2, 100] and held_out[100] < held_out[2]


def test_sizes_come_from_the_folder(release: Path, tmp_path: Path) -> None:
    found = named_model(str(release))
    assert (found.channels, found.weights) == (201, release / "latest.ckpt")
    assert found.sizes == {**SMALL, "mlp_ratio": 4.0, "band_frames": 30, "text_position": 360}
    assert named_model("tiny").overrides() == {"hymotion.model.preset": "tiny"}
    assert named_model(str(release / "latest.ckpt")) == found
    assert not found.reads_qwen and named_model("hy-motion-1.0").reads_qwen
    other = tmp_path / "other"
    shutil.copytree(release, other)
    (other / "config.yml").write_text("network_module_args: {num_layers: 6}\n")
    with pytest.raises(UserError, match=r"config.yml: num_layers = 6, the tensors of latest.ckpt have 3"):
        named_model(str(other))
    (other / "config.yml").write_text("[: no yaml")
    with pytest.raises(UserError, match="not a release's configuration"):
        named_model(str(other))
    (other / "latest.ckpt").unlink()
    with pytest.raises(UserError, match="has no latest.ckpt"):
        named_model(str(other))


def test_released_sizes_are_the_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ds_hymotion.model.released import ReleasedCheckpoint

    with torch.device("meta"):
        state = MotionGenerator(PRESETS["hy-motion-1.0-lite"]).state_dict()
    (tmp_path / "latest.ckpt").touch()
    monkeypatch.setattr(model_name, "load_released", lambda path: ReleasedCheckpoint(path, state, 0, 0))
    found = named_model(str(tmp_path))
    assert found.preset == "hy-motion-1.0-lite" and found.channels == 201


def test_a_hub_name_is_looked_for_in_the_cache_first(
    release: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    asked = []

    def snapshot_download(repository: str, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((repository, local_files_only))
        if not local_files_only:
            raise OSError("no network\nhere")
        if repository == "tencent/HY-Motion-1.0":
            return str(release.parent)
        raise FileNotFoundError("not cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert named_model("tencent/HY-Motion-1.0").weights == release / "latest.ckpt"
    assert asked == [("tencent/HY-Motion-1.0", True)]
    with pytest.raises(UserError, match=r"nobody/nothing: neither in .* cache nor to be downloaded \(no network\)"):
        named_model("nobody/nothing")
    with pytest.raises(UserError, match="no such preset or folder; give hy-motion-1.0, "):
        named_model("huge")


def test_a_name_is_not_enough_where_captions_need_an_encoder(
    motions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--data_dir", str(motions), "--model_name", "hy-motion-1.0"]
    assert run_here("train.py", flags, monkeypatch) == 2
    assert "--encode_text qwen_clip, or give --unconditional" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert run_here("train.py", [*flags, "--preset", "tiny"], monkeypatch) == 2
    assert "both name the network; give one" in capsys.readouterr().err

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ds_hymotion.errors import UserError
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.model.initialisation import initialise
from ds_hymotion.model.released import load_into, load_released, save_released, write_released
from tests.golden_network import golden_config, golden_generator, golden_numbers, randomised

SMALL = ModelConfig(24, 3, 3, input_dim=6, ctxt_input_dim=5, vtxt_input_dim=4, refiner_layers=1)


def small(seed: int = 0, **changes: int) -> MotionGenerator:
    generator = MotionGenerator(ModelConfig(**{**SMALL.__dict__, **changes}))
    randomised(generator, seed)
    generator.mean.fill_(0.5)
    generator.std.fill_(2.0)
    return generator


def test_golden_weights_round_trip(shared: Path, tmp_path: Path) -> None:
    numbers = golden_numbers(shared)
    generator = golden_generator(numbers)
    generator.mean.copy_(torch.arange(201) / 10)
    path = tmp_path / "run" / "latest.ckpt"
    save_released(path, generator, epoch=3, global_step=4000)
    raw = torch.load(path, weights_only=True)
    assert set(raw) == {"model_state_dict", "epoch", "global_step"}

    checkpoint = load_released(path)
    assert (checkpoint.epoch, checkpoint.global_step) == (3, 4000)
    again = MotionGenerator(golden_config(numbers))
    report = load_into(again, checkpoint.state, path)
    assert not report.fresh and not report.unused and set(report.loaded) == set(raw["model_state_dict"])
    assert str(report) == f"{len(raw['model_state_dict'])} tensors loaded"
    save_released(tmp_path / "again.ckpt", again, 3, 4000)
    second = load_released(tmp_path / "again.ckpt").state
    for name, value in generator.state_dict().items():
        assert torch.equal(second[name], value), name
    for name, value in numbers.items():
        if name.startswith("weight/"):
            assert torch.equal(second["motion_transformer." + name.removeprefix("weight/")], value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again.ckpt", "run"]


def test_files_hold_whole_fp32_tensors(tmp_path: Path) -> None:
    generator = small().bfloat16()
    name = "motion_transformer.input_encoder.weight"
    view = torch.randn(1000, 24, generator=torch.Generator().manual_seed(0)).bfloat16()[:6].T
    write_released(tmp_path / "latest.ckpt", {**generator.state_dict(), name: view}, 0, 0)
    loaded = load_released(tmp_path / "latest.ckpt").state
    assert all(value.dtype == torch.float32 for value in loaded.values())
    assert (tmp_path / "latest.ckpt").stat().st_size < 1.5 * 4 * sum(value.numel() for value in loaded.values())
    assert not load_into(generator, loaded).fresh
    assert torch.equal(generator.state_dict()[name], view)


def test_old_style_files_load(tmp_path: Path) -> None:
    content = {"model_state_dict": small().state_dict(), "epoch": 1, "global_step": 2}
    torch.save(content, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    assert load_released(tmp_path / "old.ckpt").global_step == 2


def test_other_channels_keep_fresh_ends_where_that_is_allowed() -> None:
    source, target = small(1), small(2, input_dim=9)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(UserError, match="input_encoder.weight is 24×6 where the network has 24×9.*--allow_fresh"):
        load_into(target, source.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    report = load_into(target, source.state_dict(), allow_fresh=True)
    assert set(report.fresh) == {
        "motion_transformer.input_encoder.weight",
        "motion_transformer.final_layer.linear.weight",
        "motion_transformer.final_layer.linear.bias",
        "mean",
        "std",
    }
    assert report.fresh["motion_transformer.input_encoder.weight"] == "24×6 there, 24×9 here"
    assert str(report).endswith("tensors loaded, 5 fresh")
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if name in report.fresh else source.state_dict()[name]), name


def test_the_table_tells_what_was_loaded_and_why_not() -> None:
    source, target = small(1), small(2, num_layers=6)
    state = {**source.state_dict(), "lora.a": torch.zeros(2, 3)}
    table = load_into(target, state, allow_fresh=True).table()
    lines = {line.split()[0]: line.split() for line in table.splitlines()}
    assert lines["part"] == ["part", "loaded", "numbers", "fresh", "unused", "why"]
    half = sum("double_blocks" in name for name in source.state_dict())
    numbers = sum(value.numel() for name, value in source.state_dict().items() if "double_blocks" in name)
    assert lines["double_blocks"] == ["double_blocks", str(half), f"{numbers:,}", str(half), "0", "not", "there"]
    assert lines["lora"] == ["lora", "0", "0", "0", "1", "not", "in", "this", "network"]
    assert lines["mean"] == ["mean", "1", "6", "0", "0"]
    assert sum(int(line[1]) + int(line[3]) for line in list(lines.values())[1:]) == len(target.state_dict())


def test_a_file_with_nothing_in_common_is_refused_all_the_same() -> None:
    with pytest.raises(UserError, match="x: lacks"):
        load_into(small(), {"a": torch.zeros(1)}, "x", allow_fresh=True)


@pytest.mark.parametrize("change", [{"feat_dim": 36}, {"ctxt_input_dim": 7}, {"feat_dim": 36, "input_dim": 9}])
def test_another_size_is_refused(change: dict[str, int]) -> None:
    source, target = small(1), small(2, **change)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(
        UserError, match=r"my\.ckpt: differs .*is 24×\d+ where the network has \d+×\d+.*choose the preset"
    ):
        load_into(target, source.state_dict(), "my.ckpt")
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_missing_and_unknown_tensors_are_named() -> None:
    state = small().state_dict()
    lacking = {
        name: value for name, value in state.items() if name != "motion_transformer.single_blocks.1.linear2.bias"
    }
    with pytest.raises(UserError, match=r"x: lacks motion_transformer\.single_blocks\.1\.linear2\.bias 24;"):
        load_into(small(), lacking, "x")
    with pytest.raises(UserError, match=r"x: has unknown lora\.a 2×3;"):
        load_into(small(), {**state, "lora.a": torch.zeros(2, 3)}, "x")
    deeper = small(num_layers=6)
    with pytest.raises(UserError, match=r"x: lacks .*; and \d+ more; the network is width 24, 6 layers"):
        load_into(deeper, state, "x")
    with pytest.raises(UserError, match="lacks"):
        load_into(small(), {}, "x")


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def texted(path: Path) -> None:
    path.write_text("<html>404</html>")


def scripted(path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("run",))

    path.write_bytes(pickle.dumps({"model_state_dict": Harm(), "epoch": 0}))


def removed(path: Path) -> None:
    path.unlink()


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [damaged, emptied, texted, scripted, removed, foldered])
def test_bad_files_are_named(tmp_path: Path, harm: object, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latest.ckpt"
    save_released(path, small(), 0, 0)
    assert callable(harm)
    harm(path)
    with pytest.raises(UserError, match=r"latest\.ckpt: ") as caught:
        load_released(path)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("zipped", [True, False])
def test_random_damage_is_a_user_error_or_harmless(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "latest.ckpt"
    state = {"model_state_dict": {"a": torch.ones(3)}, "epoch": 1, "global_step": 2}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    content, random = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for place in random.integers(len(damaged), size=3):
            damaged[place] = random.integers(256)
        path.write_bytes(damaged[: random.integers(len(damaged) // 2, 2 * len(damaged))])
        try:
            load_released(path)
        except UserError as error:
            refused += 1
            assert "weights_only" not in str(error), "never advise to run code from a file"
    assert refused > 100


def test_a_flipped_byte_of_a_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "latest.ckpt"
    save_released(path, small(), 0, 0)
    content = bytearray(path.read_bytes())
    content[content.index(b"data.pkl") + 100] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match="damaged"):
        load_released(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds list"),
        ({"state": {}}, "holds state, not model_state_dict"),
        ({"model_state_dict": {}}, "not model_state_dict"),
        ({"model_state_dict": {"mean": 3}}, r"model_state_dict\['mean'\] is a int, not a tensor"),
        ({"model_state_dict": {"mean": torch.zeros(1)}, "epoch": "two"}, "epoch = 'two' is not a whole number"),
    ],
)
def test_other_contents_are_named(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(UserError, match=message):
        load_released(tmp_path / "x.ckpt")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest.ckpt"
    save_released(path, small(), 0, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="No space left"):
        save_released(path, small(), 0, 2)
    monkeypatch.undo()
    assert load_released(path).global_step == 1
    assert [file.name for file in tmp_path.iterdir()] == ["latest.ckpt"]


def test_a_file_can_replace_the_one_it_was_loaded_from(tmp_path: Path) -> None:
    path = tmp_path / "latest.ckpt"
    save_released(path, small(), 0, 1)
    checkpoint = load_released(path)
    write_released(path, checkpoint.state, 0, 2)
    again = load_released(path)
    assert again.global_step == 2
    assert torch.equal(again.state["null_ctxt_input"], checkpoint.state["null_ctxt_input"])


def test_fine_tuning_from_a_release_with_other_channels_starts_from_fresh_ends(tmp_path: Path) -> None:
    save_released(tmp_path / "latest.ckpt", small(1), 0, 0)
    generator = MotionGenerator(ModelConfig(**{**SMALL.__dict__, "input_dim": 9}))
    initialise(generator, 0, copy_noise=False)
    load_into(generator, load_released(tmp_path / "latest.ckpt").state, allow_fresh=True)
    assert not generator.motion_transformer.final_layer.linear.weight.any()
    assert generator.motion_transformer.input_encoder.weight.any()

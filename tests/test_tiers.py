"""The tier files: each is legal, is chosen for its machine, and its strategy trains like one process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.arguments import TrainArguments
from ds_hymotion.config.json_files import read_json
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.tiers import CONFIGS, GIB, TIERS, Tier, choose_tier, on_tiny_network, tier_of
from ds_hymotion.training import start
from ds_hymotion.training.run import TrainingRun
from ds_hymotion.training.start import configuration
from tests.commands import run_here
from tests.corpora import random_weights
from tests.expert_runs import expert_corpus
from tests.ranks import RankPool
from tests.runs import count_from_zero, logged

TINY = {"feat_dim": 256, "num_layers": 3, "num_heads": 4, "ctxt_input_dim": 128, "vtxt_input_dim": 128}


def test_every_file_is_a_tier_and_legal_on_its_machine() -> None:
    assert {tier.path for tier in TIERS} == set(CONFIGS.glob("*.json"))
    for tier in TIERS:
        config = RunConfig.load(tier.path, ranks=tier.devices or 2)
        assert tier_of(tier.path) is tier
        if tier.devices:
            assert config.hymotion.text.encoder == "qwen_clip" and config.dtype == "bf16"
            rate = 1e-4 if config.hymotion.lora else 1e-5
            assert tier.budget <= tier.card and config.deepspeed["optimizer"]["params"]["lr"] == rate


@pytest.mark.parametrize(
    ("cards", "processes", "name"),
    [
        ([], 1, "cpu_tiny"),
        ([], 2, "cpu_tiny"),
        ([23.6], 1, "lite_1x3090"),
        ([15.8], 1, "lite_1x3090"),
        ([15.8, 15.8], 2, "lite_1x3090"),
        ([23.6, 23.6], 2, "pro_2x3090"),
        ([23.6, 23.6], 1, "lite_1x3090"),
        ([79.2, 23.6, 79.2, 79.2], 4, "pro_2x3090"),
        ([39.4] * 4, 4, "studio_4xa100"),
        ([39.4] * 8, 8, "studio_4xa100"),
        ([139.8], 1, "lite_1x3090"),
    ],
)
def test_the_tier_of_made_up_devices(cards: list[float], processes: int, name: str) -> None:
    tier, reason = choose_tier([int(card * GIB) for card in cards], processes)
    assert tier.name == name
    assert (f"{len(cards)} visible GPU(s)" if cards else "no GPU") in reason
    assert ("for pro_2x3090 start 2 processes" in reason) == (len(cards) == 2 and processes == 1)


def test_devices_that_no_tier_serves() -> None:
    with pytest.raises(UserError, match="8.0 GiB and 1 process.*--deepspeed_config.*lite_1x3090"):
        choose_tier([8 * GIB], 1)


def settings_of_unlike_machines() -> str:
    changes = {"hymotion.parallel.model": 1 + dist.get_rank()}
    config = RunConfig({}, overrides=changes, ranks=2)
    try:
        Mesh.start(config.shape.model, settings=config.as_dict())
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.full
def test_ranks_of_unlike_machines_are_refused_alike(ranks: RankPool) -> None:
    """Before groups are made of axes that differ, which no rank would come back from."""
    said = ranks.run(2, settings_of_unlike_machines)
    assert said[0] == said[1]
    assert said[0].startswith("rank 1 has hymotion.parallel.model = 2, rank 0 has 1; start all ranks with the same")


def test_cards_that_do_not_hold_the_planned_peak() -> None:
    """A card sold as one of 16 GB that shows 14.6 is too small, though within what such cards show."""
    assert choose_tier([int(14.75 * GIB)], 1)[0].name == "lite_1x3090"
    with pytest.raises(UserError, match="no tier"):
        choose_tier([int(14.6 * GIB)], 1)


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), "fp16"), ((8, 6), "bf16")])
def test_cards_without_bf16_compute_in_fp16(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: str
) -> None:
    monkeypatch.setattr(start, "runs_on_gpu", lambda: True)
    cards = {
        "device_count": lambda: 1,
        "get_device_properties": lambda index: SimpleNamespace(total_memory=16 * GIB),
        "get_device_capability": lambda index: capability,
    }
    for name, said in cards.items():
        monkeypatch.setattr(torch.cuda, name, said)
    config = configuration(TrainArguments(auto_tier=True), None, 1)
    assert config.dtype == dtype and config.hymotion.model.preset == "hy-motion-1.0-lite"
    monkeypatch.setattr(start, "runs_on_gpu", lambda: False)
    assert configuration(TrainArguments(auto_tier=True), None, 1).hymotion.model.preset == "tiny"


def test_auto_tier_says_what_it_chose(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--data_dir", str(corpus.folder), "--output_dir", str(tmp_path / "run"), "--auto_tier"]
    assert run_here("train.py", [*place, "--deepspeed_config", "x.json"], monkeypatch) == 2
    assert "--deepspeed_config x.json exclude each other" in capsys.readouterr().err
    assert run_here("train.py", [*place, "--max_steps", "0"], monkeypatch) == 2
    printed = capsys.readouterr()
    assert "--auto_tier: cpu_tiny.json: no GPU is in use" in printed.out
    assert "cpu_tiny.json: hymotion.training.max_steps = 0" in printed.err


def test_what_changes_with_the_tiny_network() -> None:
    long = {"model": {"preset": "hy-motion-1.0", "init_from": "x.ckpt"}, "parallel": {"model": 4, "pipeline": 2}}
    assert on_tiny_network({"hymotion": long}, "tiny") == {
        "hymotion.text.encoder": "hashed",
        "hymotion.model.init_from": "",
        "hymotion.parallel.model": 2,
    }
    assert not on_tiny_network({"hymotion": long}, None)
    assert not on_tiny_network({"hymotion": long}, "hy-motion-1.0-lite")
    assert not on_tiny_network(read_json(CONFIGS / "cpu_tiny.json"), "tiny")
    config = configuration(
        TrainArguments(preset="tiny", text_encoder="other", deepspeed_config=str(TIERS[-1].path)), None, 8
    )
    assert config.hymotion.model.preset == "tiny" and config.hymotion.text.encoder == "other"


def test_tiny_adapters_need_tiny_weights() -> None:
    """Those that the file names are of another network."""
    given = {"preset": "tiny", "deepspeed_config": str(CONFIGS / "lora_1x3090.json")}
    with pytest.raises(UserError, match="give --init_from .* with those of tiny"):
        configuration(TrainArguments(**given), None, 1)  # type: ignore[arg-type]
    config = configuration(TrainArguments(**given, init_from="tiny_run"), None, 1)  # type: ignore[arg-type]
    assert config.hymotion.lora and config.hymotion.model.init_from == "tiny_run"


@pytest.fixture(scope="module")
def weights(corpus: Corpus) -> Path:
    return random_weights(corpus.folder.parent / "tiny.safetensors", corpus, TINY, spread=1 / 16)


def train_tier(path: str, flags: dict[str, object], corpus: Path, output: Path) -> None:
    """Three steps of a tier's file with the tiny network on the ranks of the current process group."""
    arguments = TrainArguments(preset="tiny", max_steps=3, warmup_steps=0, learning_rate=1e-3, log_steps=1, **flags)  # type: ignore[arg-type]
    arguments.deepspeed_config = path
    config = configuration(arguments, None, dist.get_world_size())
    output.mkdir(parents=True, exist_ok=True)
    mesh = Mesh.current(model=config.shape.model, pipe=config.shape.pipe)
    count_from_zero()
    TrainingRun(config, Corpus.open(corpus), output, mesh).train()


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two clips of every action type, which one step takes whatever the order."""
    clips = [(20 + 3 * number, action) for number, action in enumerate(2 * ACTION_TYPES)]
    return expert_corpus(tmp_path_factory.mktemp("typed"), clips)


CASES = [(tier, kind) for tier in TIERS if tier.devices for kind in ("fp32", "bf16")]
QUICK = {("pro_2x3090", "bf16")}


@pytest.mark.parametrize(
    ("tier", "kind"),
    [
        pytest.param(*case, id=f"{case[0].name}-{case[1]}", marks=[] if (case[0].name, case[1]) in QUICK else [FULL])
        for FULL in [pytest.mark.full]
        for case in CASES
    ],
)
def test_a_tiers_strategy_trains_like_one_process(
    ranks: RankPool, corpus: Corpus, typed: Corpus, weights: Path, tmp_path: Path, tier: Tier, kind: str
) -> None:
    raw = read_json(tier.path)
    raw[kind if kind != "fp32" else "bf16"] = {"enabled": kind != "fp32"}
    raw["optimizer"]["params"]["torch_adam"] = True  # DeepSpeed's own would compile first
    file = tmp_path / tier.path.name
    file.write_text(json.dumps(raw))
    plain = RunConfig(raw)
    experts = plain.hymotion.experts
    data = 2 if tier.devices == 1 or experts.number else 1
    world = plain.shape.model * plain.shape.pipe * data
    accumulation = plain.deepspeed["gradient_accumulation_steps"]
    flags: dict[str, object] = {"init_from": str(weights), "seed": 1}
    alone = {"tensor_parallel_size": 1, "pipeline_stages": 1, "gradient_accumulation_steps": accumulation * data}
    if experts.number:
        corpus, alone["expert_parallel_size"] = typed, 1
    for size, more, name in ((world, {}, "spread"), (1, alone, "alone")):
        ranks.run(size, train_tier, str(file), {**flags, **more}, corpus.folder, tmp_path / name)
    spread, one = logged(tmp_path / "spread"), logged(tmp_path / "alone")
    assert len(one) == 3 and abs(one[0] - one[2]) > 1e-3 * one[0]
    assert spread == pytest.approx(one, rel=1e-4 if kind == "fp32" else 3e-3)

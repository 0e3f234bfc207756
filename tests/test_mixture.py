"""Mixing corpora: clips and text beside each other, what is refused, and a run that resumes bit for bit."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_hymotion.config.data import DataSection
from ds_hymotion.config.hymotion import parse_section
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.batches import BatchMaker
from ds_hymotion.data.buckets import BucketSettings
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.mixture import Mixture
from ds_hymotion.data.plan import Layout, Planner, Row
from ds_hymotion.errors import UserError
from ds_hymotion.randomness import generator, sample_noise
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.cache_group import CacheGroup
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.training.checkpoint import newest_checkpoint, read_state
from tests.commands import run_here
from tests.conftest import ROOT
from tests.corpora import wavy_corpus
from tests.ranks import RankPool
from tests.runs import final_weights, logged, run_settings, train

OWN, BASE = [20, 30, 40], [25, 33, 41, 50, 58]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("own"), OWN)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("base"), BASE)


def mixture(own: Corpus, **data: Any) -> Mixture:
    return Mixture.open(own, DataSection.model_validate(data))


def maker(mixed: Mixture, canvas: int = 300) -> BatchMaker:
    group = CacheGroup([TextCache(corpus.text_cache_folder("hashed")) for corpus in mixed.corpora])
    statistics = (mixed.main.mean, mixed.main.std)

    def uniform(random: torch.Generator, stratum: int, strata: int) -> float:
        return float(torch.rand((), generator=random))

    return BatchMaker(mixed, mixed.samples, group, statistics, uniform, 0.5, 3, canvas)


def test_equal_ids_share_nothing_and_every_visit_is_drawn_anew(own: Corpus, base: Corpus) -> None:
    mixed = mixture(own, mix=[{"corpus": str(base.folder), "repeats": 2}])
    assert [sample.id for sample in mixed.samples[:4]] == ["clip000", "clip001", "clip002", "mix.0:clip000"]
    assert own.samples[0].id == base.samples[0].id
    making = maker(mixed)
    rows = [Row(0, 0, 0), Row(3, 0, 1), Row(3, 0, 2, visit=1)]
    batch = making.make(4, rows, 3, 30)
    assert batch.lengths.tolist() == [20, 25, 25]
    assert len({float(t) for t in batch.t}) == 3
    assert float(batch.t[0]) == float(torch.rand((), generator=generator(3, "time", 4, "clip000", 0, 0)))
    assert torch.equal(batch.noise[0, :20], sample_noise(3, 4, "clip000", 0, 0, 20, 219))
    assert torch.equal(batch.noise[2, :25], sample_noise(3, 4, "mix.0:clip000", 1, 0, 25, 219))
    assert not torch.equal(batch.noise[1], batch.noise[2]) and torch.equal(batch.motion[1], batch.motion[2])
    normal = (base.features(base.samples[0]) - own.mean) / own.std.clamp(min=1e-3)
    assert torch.allclose(batch.motion[1, :25][:, own.std > 1e-3], normal[:, own.std > 1e-3], atol=1e-5)


def test_a_second_visit_has_its_own_window_of_a_long_clip(own: Corpus) -> None:
    making = maker(mixture(own, repeats=9), canvas=10)
    windows = [making.make(0, [Row(2, 0, 0, visit)], 1, 10).motion for visit in range(9)]
    assert len({float(window.sum()) for window in windows}) > 4
    first = int(torch.randint(31, (), generator=generator(3, "crop", 0, "clip002")))
    features = making._window(own.features(own.samples[2]), first)
    assert torch.allclose(windows[0][0, :, own.std > 1e-3], making_normal(features, own), atol=1e-5)


def making_normal(features: torch.Tensor, corpus: Corpus) -> torch.Tensor:
    return ((features - corpus.mean) / corpus.std)[:, corpus.std > 1e-3]


def test_the_table(own: Corpus, base: Corpus) -> None:
    """Own clips of 90 frames, three times: 270; beside them three of five clips with 207 frames: 124.2, 31.5 %."""
    mixed = mixture(own, repeats=3, replay={"corpus": str(base.folder), "share": 0.25})
    lengths = [sample.frames for sample in mixed.samples]
    plan = Planner(lengths, BucketSettings(), Layout(1, 1, 4), 0, rations=mixed.rations)
    lines = [line.split() for line in mixed.table(plan).splitlines()]
    assert lines[1] == ["--data_dir", "3", "90", "x", "3", "9", "68.5", "%", str(own.folder)]
    assert lines[2] == ["replay", "5", "207", "25", "%", "of", "clips", "3", "31.5", "%", str(base.folder)]


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"mix": [{"corpus": "BASE", "weight": -1}]}, ["mix.0.weight = -1", "greater than 0"]),
    ({"mix": [{"corpus": "BASE", "weight": 0}]}, ["mix.0.weight = 0", "greater than 0"]),
    ({"mix": [{"corpus": "BASE", "weight": float("nan")}]}, ["mix.0.weight = nan"]),
    ({"mix": [{"corpus": "BASE", "weight": float("inf")}]}, ["mix.0.weight = inf"]),
    ({"mix": [{"corpus": "BASE", "weight": 1e9}]}, ["1000000000.0", "less than or equal to 1000"]),
    ({"mix": [{"corpus": "BASE", "repeats": 0}]}, ["mix.0.repeats = 0", "greater than or equal to 1"]),
    ({"mix": [{"corpus": "BASE", "repeats": 1.5}]}, ["mix.0.repeats = 1.5", "integer"]),
    ({"mix": [{"corpus": "BASE", "weight": 0.5, "repeats": 2}]}, ["mix.0", "weight = 0.5", "repeats = 2", "one of"]),
    ({"mix": [{"corpus": "BASE", "wieght": 1}]}, ["mix.0.wieght", "did you mean weight"]),
    ({"mix": [{"weight": 1}]}, ["mix.0.corpus", "required"]),
    ({"mix": [{"corpus": ""}]}, ["mix.0.corpus = ''"]),
    ({"mix": {"corpus": "BASE"}}, ["hymotion.data.mix", "list"]),
    ({"mix": [{"corpus": "BASE"}, {"corpus": "BASE/../corpus"}]}, ["mix.1.corpus", "also hymotion.data.mix.0.corpus"]),
    ({"mix": [{"corpus": "BASE"}], "replay": {"corpus": "BASE"}}, ["replay.corpus", "also hymotion.data.mix.0.corpus"]),
    ({"mix": [{"corpus": "OWN"}]}, ["mix.0.corpus", "also --data_dir"]),
    ({"mix": [{"corpus": "none"}]}, ["no corpus at none", "launch/prepare.py"]),
    ({"mix": [{"corpus": "BASE", "repeats": 2}, {"corpus": "EMPTY"}]}, ["EMPTY", "no clip in the train split"]),
    ({"mix": [{"corpus": "OTHER"}]}, ["OTHER (hymotion.data.mix.0.corpus)", "hymotion-201", "--representation smpl24"]),
    ({"mix": [{"corpus": "SLOW"}]}, ["SLOW (hymotion.data.mix.0.corpus)", "fps 20", "--fps 30"]),
    ({"mix": [{"corpus": "MUTE"}]}, ["no text features in MUTE", "--encode_text hashed"]),
    ({"replay": {"corpus": "BASE", "share": 1}}, ["replay.share = 1", "0.95"]),
    ({"replay": {"share": 0.5}}, ["replay.corpus", "required"]),
    ({"repeats": 0}, ["hymotion.data.repeats = 0", "1"]),
]


@pytest.fixture(scope="module")
def folders(own: Corpus, base: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    def variant(name: str, changes: dict[str, str], text: bool = True) -> Path:
        folder = tmp_path_factory.mktemp(name) / "corpus"
        wavy_corpus(folder.parent, [20, 30], **({"representation": "hymotion-201"} if name == "other" else {}))
        for file, change in changes.items():
            path = folder / file
            old, new = change.split("|")
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        if not text:
            (folder / "text" / "hashed" / "index.json").unlink()
        return folder

    return {
        "OWN": own.folder,
        "BASE": base.folder,
        "EMPTY": variant("empty", {"samples.jsonl": '"split": "train"|"split": "val"'}),
        "OTHER": variant("other", {}),
        "SLOW": variant("slow", {"corpus.json": '"fps": 30.0|"fps": 20.0'}),
        "MUTE": variant("mute", {}, text=False),
    }


@pytest.mark.parametrize(("data", "words"), WRONG, ids=[str(data)[:60] for data, _ in WRONG])
def test_mistakes_end_before_a_process_group_starts(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: dict[str, Any],
    words: list[str],
) -> None:
    def filled(text: str) -> str:
        return re.sub("|".join(folders), lambda found: str(folders[found[0]]), text)

    config = tmp_path / "run.json"
    config.write_text(filled(json.dumps(run_settings(hymotion__data=data))))
    flags = [
        "--deepspeed_config",
        str(config),
        "--data_dir",
        str(folders["OWN"]),
        "--output_dir",
        str(tmp_path / "run"),
    ]
    assert run_here("train.py", flags, monkeypatch) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message and message.startswith("error: ")
    for word in words:
        assert filled(word) in message
    assert not (tmp_path / "run").exists()


def test_text_features_of_another_encoder_are_refused(own: Corpus, tmp_path: Path) -> None:
    class Encoder:
        name, token_dim, pooled_dim, identity = "hashed", 128, 128, {"system_prompt_sha256": "b" * 64}

        def encode(self, captions: list[str]) -> TextFeatures:
            n = len(captions)
            return TextFeatures(torch.zeros(n, 1, 128), torch.ones(n, dtype=torch.int64), torch.zeros(n, 128))

        def truncated(self, captions: list[str]) -> dict[str, int]:
            return {}

    first = TextCache(own.text_cache_folder("hashed"))
    other = TextCache(tmp_path / "a")
    other.write(["a b"], Encoder(), dtype=torch.bfloat16)
    group = CacheGroup([first, other])
    caption = own.samples[0].captions[0].text
    features = group.lookup(["a b", caption])
    assert features.lengths[0] == 1 and torch.equal(features.pooled[1], first.lookup([caption]).pooled[0])
    with pytest.raises(UserError, match="'none' in any of .*hashed, .*a; run"):
        group.lookup(["none"])
    Encoder.identity = {"system_prompt_sha256": "c" * 64}
    third = TextCache(tmp_path / "c")
    third.write(["a b"], Encoder(), dtype=torch.bfloat16)
    with pytest.raises(UserError, match=r"/c have system_prompt_sha256 = c{16}, those in .* b{16}"):
        CacheGroup([first, other, third])
    wide = TextCache(tmp_path / "d")
    wide.write(["a b"], Encoder(), dtype=torch.float32)
    with pytest.raises(UserError, match="/d have dtype = float32, those in .*hashed bfloat16"):
        CacheGroup([first, wide])


def test_none_of_a_corpus_left(own: Corpus, base: Corpus) -> None:
    mixed = mixture(own, replay={"corpus": str(base.folder)})
    lengths = [sample.frames for sample in mixed.samples]
    bounds = BucketSettings((59, 300), "pad")
    assert Planner(lengths, bounds, Layout(1, 1, 1), 0, rations=mixed.rations).visits.per_epoch[1] == Fraction(3, 4)
    lengths[:3] = [100, 100, 100]
    with pytest.raises(UserError, match="short = 'drop' leaves none of the 5 clips of replay"):
        Planner(lengths, BucketSettings((59, 300), "drop"), Layout(1, 1, 1), 0, rations=mixed.rations)


def mixed_settings(base: Corpus, steps: int, **changes: Any) -> dict[str, Any]:
    """Own clips twice, and of five others two or three an epoch: eight or nine visits in steps of up to four clips."""
    return run_settings(
        hymotion__data={"repeats": 2, "mix": [{"corpus": str(base.folder), "weight": 0.5}]},
        hymotion__training__max_steps=steps,
        **changes,
    )


def test_a_mixed_run_resumes_bit_for_bit(ranks: RankPool, own: Corpus, base: Corpus, tmp_path: Path) -> None:
    """A run stopped inside an epoch goes on as if it had not been; or on one rank."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ranks.run(2, train, mixed_settings(base, 9), own.folder, whole)
    ranks.run(2, train, mixed_settings(base, 4), own.folder, parts)
    state = read_state(newest_checkpoint(parts))
    epochs = logged(whole, "epoch")
    assert epochs[3] == epochs[4] == state["position"]["epoch"] and epochs[8] > epochs[3]
    assert state["fingerprint"]["corpora"]["mix.0"] == {
        "folder": str(base.folder),
        "training clips": 5,
        "frames": sum(BASE),
        "ids and lengths": state["fingerprint"]["corpora"]["mix.0"]["ids and lengths"],
        "an epoch takes": "x 0.5",
        "representation": "smpl24-rotmat",
        "fps": "30",
        "positions_relative_to": "None",
    }
    ranks.run(2, train, mixed_settings(base, 9), own.folder, parts, True)
    assert logged(parts) == logged(whole) and len(logged(parts)) == 9
    assert logged(parts, "clips") == logged(whole, "clips")
    a, b = final_weights(whole), final_weights(parts)
    assert all(torch.equal(a[name], b[name]) for name in a)
    alone = tmp_path / "alone"
    ranks.run(2, train, mixed_settings(base, 4), own.folder, alone)
    ranks.run(1, train, mixed_settings(base, 9), own.folder, alone, True)
    assert logged(alone, "clips") == logged(whole, "clips")


def refusal(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    """What a resumed run says that must be refused."""
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output, True)
    return str(caught.value)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"hymotion__data__repeats": 3}, "--data_dir (OWN): an epoch takes x 2 there, x 3 here"),
    ({"hymotion__data__max_clips": 2}, "--data_dir (OWN): training clips 3 there, 2 here"),
    ({"hymotion__data__mix": []}, "corpora --data_dir, mix.0 there, --data_dir here"),
    ({"hymotion__training__seed": 5}, "hymotion.training.seed = 0 there, 5 here"),
    ({"hymotion__data__bucket_bounds": [30, 300]}, "bucket_bounds = [60, 120, 180, 240, 300] there, [30, 300] here"),
    ({"hymotion__flow__timesteps_per_sample": 2}, "hymotion.flow.timesteps_per_sample = 1 there, 2 here"),
]


def test_other_data_is_refused_on_resume_unless_allowed(
    ranks: RankPool, own: Corpus, base: Corpus, tmp_path: Path
) -> None:
    ranks.run(1, train, mixed_settings(base, 1), own.folder, tmp_path)
    for change, words in CHANGES:
        (said,) = ranks.run(1, refusal, mixed_settings(base, 2, **change), own.folder, tmp_path)
        assert words.replace("OWN", str(own.folder)) in said
        assert f"--init_from {tmp_path}" in said and "--allow_other_data" in said and "\n" not in said
    free = {"train_batch_size": 2, "hymotion__flow__condition_drop": 0.1, "hymotion__data__length_jitter": 5}
    ranks.run(1, train, mixed_settings(base, 2, **free), own.folder, tmp_path, True)
    assert logged(tmp_path, "epoch") == [0, 0]
    allowed = mixed_settings(base, 3, hymotion__data__repeats=3, hymotion__data__allow_other_data=True)
    ranks.run(1, train, allowed, own.folder, tmp_path, True)
    assert logged(tmp_path, "epoch") == [0, 0, 1]
    assert read_state(newest_checkpoint(tmp_path))["position"]["epoch"] == 1


def test_a_caption_of_a_mixed_corpus_without_features_is_named(
    ranks: RankPool, own: Corpus, base: Corpus, tmp_path: Path
) -> None:
    other = wavy_corpus(tmp_path, [20, 30])
    path = other.folder / "samples.jsonl"
    path.write_text(path.read_text().replace("motion number 1 turns", "motion number 1 bends"))
    settings = run_settings(hymotion__data={"mix": [{"corpus": str(base.folder)}, {"corpus": str(other.folder)}]})
    (said,) = ranks.run(1, refused_start, settings, own.folder, tmp_path / "run")
    assert "motion number 1 bends" in said and f"in {other.folder}/text/hashed" in said


def refused_start(settings: dict[str, Any], corpus: Path, output: Path) -> str:
    """What a run says that must be refused before its first step."""
    with pytest.raises(UserError) as caught:
        train(settings, corpus, output)
    return str(caught.value)


def test_damaged_clips_are_named_by_corpus(own: Corpus, tmp_path: Path) -> None:
    other = wavy_corpus(tmp_path, [20, 30])
    mixed = mixture(own, mix=[{"corpus": str(other.folder)}])
    shard = other.folder / "motion-00000.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-4] + b"\x00\x00\x80\x7f")
    making = maker(mixed)
    lengths = making.make(0, [Row(clip, 0, clip) for clip in range(5)], 5, 60).lengths.tolist()
    assert sum(length == 0 for length in lengths) == 1
    ((name, reason),) = making.failed.items()
    assert name.startswith("mix.0:clip00") and str(shard) in reason and "damaged" in reason


def test_the_json_of_readme_is_legal() -> None:
    texts = re.findall(r"^```json\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    section = parse_section({key: value for text in texts for key, value in json.loads("{" + text + "}").items()}, "x")
    assert section.experts.phases
    assert section.data.mix and section.data.replay and section.data.repeats > 1
    flags: dict[str, Any] = {"hymotion.data.replay.corpus": "base", "hymotion.data.replay.share": 0.2}
    again = RunConfig({}).as_dict()
    assert again["hymotion"]["data"]["replay"] is None
    assert RunConfig(again, overrides=flags).hymotion.data.replay == section.data.replay.model_copy(
        update={"corpus": "base", "share": 0.2}
    )

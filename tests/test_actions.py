"""Sorting a corpus into action types: the router, its file, its report, and the flags."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import adjusted_rand_score

from ds_hymotion.action_names import ACTION_TYPES
from ds_hymotion.data.actions.network import MOST_PARAMETERS
from ds_hymotion.data.actions.prompts import action_of_prompt, centroids_of, nearest_type
from ds_hymotion.data.actions.settings import ActionSettings
from ds_hymotion.data.actions.sorting import Sorted, sort_corpus
from ds_hymotion.data.actions.types import ActionTypes
from ds_hymotion.data.corpus import ACTION_PICTURE, ACTION_REPORT, ACTION_TYPES_FILE, SAMPLES, Corpus
from ds_hymotion.data.expert_ids import keep_action_types
from ds_hymotion.errors import UserError
from ds_hymotion.generation import Prompt, with_actions
from ds_hymotion.reports.benchmarks import actions as actions_benchmark
from ds_hymotion.reports.measuring.builtin_corpus import builtin_corpus
from ds_hymotion.text.cache import TextCache
from ds_hymotion.text.hashed import HashedTextEncoder
from tests.commands import run_here


def quiet(_: str) -> None:
    pass


def copied(corpus: Corpus, folder: Path) -> Corpus:
    shutil.copytree(corpus.folder, folder)
    return Corpus.open(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return builtin_corpus(tmp_path_factory.mktemp("known"), 36, (60, 90), split=(0.7, 0.15, 0.15))


@pytest.fixture(scope="module")
def made(corpus: Corpus) -> Sorted:
    return sort_corpus(corpus, ActionSettings("supervised", sources=("captions",), steps=80), quiet)


@pytest.fixture
def folder(corpus: Corpus, made: Sorted, tmp_path: Path) -> Path:
    """A copy of the sorted corpus."""
    shutil.copytree(corpus.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_clips_of_unseen_seeds_get_their_true_types(made: Sorted, tmp_path: Path) -> None:
    unseen = builtin_corpus(tmp_path, 18, (60, 90), seed=1)
    router = made.types.router
    assert router is not None and made.types.names == ACTION_TYPES
    assert sum(parameter.numel() for parameter in router.network.parameters()) <= MOST_PARAMETERS
    ids = router.predict(unseen, unseen.samples)
    assert adjusted_rand_score([sample.action for sample in unseen.samples], ids) > 0.6
    # One by one, in another order and with other threads: the same.
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone = [router.predict(unseen, [sample])[0] for sample in reversed(unseen.samples)]
    finally:
        torch.set_num_threads(threads)
    assert alone[::-1] == ids and router.predict(unseen, []) == []


def test_types_are_stored_and_predicted_again_bit_by_bit(corpus: Corpus, made: Sorted) -> None:
    stored = ActionTypes.open(corpus)
    assert (stored.names, stored.ids, stored.mode) == (made.types.names, made.types.ids, "supervised")
    assert stored.router is not None and tuple(stored.router.predict(corpus, corpus.samples)) == stored.ids
    assert made.points is not None
    assert (stored.router.points(corpus, corpus.samples) == made.points).all()
    first = corpus.samples[0]
    assert stored.name_of(first) == stored.names[stored.id_of(first)] == stored.names[stored.ids[0]]


@pytest.mark.parametrize("mode", ["supervised", "unsupervised"])
def test_two_runs_make_the_same_file(corpus: Corpus, tmp_path: Path, mode: str) -> None:
    files = []
    for name, threads in (("a", 1), ("b", 2)):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        torch.manual_seed(threads)
        try:
            sort_corpus(copied(corpus, tmp_path / name), ActionSettings(mode, steps=5), quiet)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        files.append((tmp_path / name / ACTION_TYPES_FILE).read_bytes())
    assert files[0] == files[1]
    other = sort_corpus(Corpus.open(tmp_path / "a"), ActionSettings(mode, steps=5, seed=1), quiet)
    assert other.points is not None and (tmp_path / "a" / ACTION_TYPES_FILE).read_bytes() != files[0]


def test_without_labels_types_are_numbered_or_named_by_size(corpus: Corpus, tmp_path: Path) -> None:
    copy = copied(corpus, tmp_path / "copy")
    settings = ActionSettings("unsupervised", types=3, sources=(), steps=5)
    numbered = sort_corpus(copy, settings, quiet)
    assert numbered.types.names == ("TYPE_1", "TYPE_2", "TYPE_3") and numbered.matched == ()
    sizes = [sum(numbered.types.ids[s.index] == place for s in copy.split("train")) for place in range(3)]
    assert sizes == sorted(sizes, reverse=True) and min(sizes) > 0
    named = sort_corpus(copy, replace(settings, names=("FIRST", "SECOND", "THIRD")), quiet)
    assert named.types.names == ("FIRST", "SECOND", "THIRD") and named.types.ids == numbered.types.ids
    told: list[str] = []
    assert sort_corpus(copy, replace(settings, mode="auto"), told.append).types.mode == "unsupervised"
    assert "0 of" in told[0]


def test_labels_replace_the_router(corpus: Corpus, tmp_path: Path) -> None:
    copy = copied(corpus, tmp_path / "copy")
    found = sort_corpus(copy, ActionSettings("labels"), quiet)
    assert found.types.router is None and found.points is None
    again = ActionTypes.open(copy)
    assert [again.name_of(sample) for sample in copy.samples] == [sample.action for sample in copy.samples]
    few = tuple(name for name in ACTION_TYPES if name != "BALANCE")
    with pytest.raises(UserError, match="--actions labels: 6 of 36 samples have no label among LOCO.*BALANCE"):
        sort_corpus(copy, ActionSettings("labels", names=few), quiet)
    with pytest.raises(UserError, match="--action_types 4: the labels have 6 types"):
        sort_corpus(copy, ActionSettings("labels", types=4), quiet)
    with pytest.raises(UserError, match="come from labels, so there is no router to take"):
        sort_corpus(corpus, ActionSettings(router=copy.folder), quiet)
    lines = [json.loads(line) for line in (copy.folder / SAMPLES).read_text().splitlines()]
    text = "".join(json.dumps({**line, "action": "odd" if line["action"] == "GESTURE" else "even"}) + "\n"
                   for line in lines)  # fmt: skip
    (copy.folder / SAMPLES).write_text(text)
    assert sort_corpus(Corpus.open(copy.folder), ActionSettings("labels"), quiet).types.names == ("even", "odd")


def test_another_corpus_s_router(corpus: Corpus, made: Sorted, tmp_path: Path) -> None:
    other = builtin_corpus(tmp_path, 6, (60, 60), seed=2)
    found = sort_corpus(other, ActionSettings(router=corpus.folder), quiet)
    assert found.types.names == made.types.names and made.types.router is not None
    assert list(found.types.ids) == made.types.router.predict(other, other.samples)
    assert ActionTypes.open(other).ids == found.types.ids
    assert set(found.types.captions) == {"hashed"}


def test_a_prompt_finds_its_type(corpus: Corpus, made: Sorted) -> None:
    encoder = HashedTextEncoder()
    train = corpus.split("train")
    hits = [
        action_of_prompt(made.types, caption.text, encoder) == made.types.id_of(sample)
        for sample in train
        for caption in sample.captions
    ]
    assert sum(hits) > 0.9 * len(hits)
    assert action_of_prompt(made.types, "", None, action="balance") == ACTION_TYPES.index("BALANCE")
    with pytest.raises(UserError, match="action type 'flying' is unknown: legal are LOCOMOTION"):
        action_of_prompt(made.types, "", None, action="flying")
    with pytest.raises(UserError, match="no captions of text encoder 'none' .known: hashed."):
        action_of_prompt(made.types, "a person walks", None)
    with pytest.raises(UserError, match=r"128 wide, the text encoder gives \(64,\)"):
        action_of_prompt(made.types, "a person walks", HashedTextEncoder(64, 64))


def test_prompts_find_their_expert(folder: Path, made: Sorted, tmp_path: Path) -> None:
    """In a run's copy of the types; a named type counts first, and the experts have an order of their own."""
    keep_action_types(Corpus.open(folder), tmp_path)
    texts = ["a person walks forward", "a person sits down on a chair"]
    expected = [ACTION_TYPES[action_of_prompt(made.types, text, HashedTextEncoder())] for text in texts]
    prompts = [Prompt(text, 60, str(number)) for number, text in enumerate(texts)]
    named = [*prompts, Prompt("a person walks", 60, "2", action="gesture")]
    experts = tuple(reversed(ACTION_TYPES))
    found = [prompt.action for prompt in with_actions(named, experts, tmp_path, HashedTextEncoder())]
    assert found == [*expected, "GESTURE"]
    with pytest.raises(UserError, match=r"--action, of WALK.*no action types in") as caught:
        with_actions(prompts, ["WALK"], tmp_path / "none", HashedTextEncoder())
    assert "\n" not in str(caught.value)


def test_centroids() -> None:
    axes = torch.eye(3)
    found = centroids_of(torch.stack([axes[0] * 7, axes[1], axes[0]]), torch.tensor([1, 2, 1]), 4)
    assert found.counts.tolist() == [0, 2, 1, 0]
    assert [nearest_type(found, axis) for axis in axes[:2]] == [1, 2]
    random = torch.Generator().manual_seed(0)
    wide = torch.cat([torch.randn(40, 1, generator=random) * 5, torch.zeros(40, 2)], dim=1)
    places = torch.arange(40) % 2
    wide[:, 1], wide[:, 2] = 3, torch.where(places == 1, 1.0, -1.0)
    found = centroids_of(wide, places, 2)
    assert [nearest_type(found, row) for row in wide] == places.tolist()


def test_pooled_vectors_without_tokens(corpus: Corpus) -> None:
    cache = TextCache(corpus.text_cache_folder("hashed"))
    captions = [caption.text for caption in corpus.samples[3].captions]
    assert torch.equal(cache.pooled(captions), cache.lookup(captions).pooled)
    assert cache.pooled([]).shape == (0, 128)
    with pytest.raises(UserError, match="no text features for the caption 'unheard of'"):
        cache.pooled(["unheard of"])


# A damaged file -------------------------------------------------------------------------------------------------------


def rewritten(path: Path, tensors: dict[str, Any] | None = None, **header: Any) -> None:
    """The file with some tensors and entries of its header changed; None removes them."""
    content = load_file(path)
    with path.open("rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        told = json.loads(json.loads(file.read(size))["__metadata__"]["ds_hymotion"])
    for values, changes in ((content, tensors or {}), (told, header)):
        for name, value in changes.items():
            if value is None:
                values.pop(name)
            else:
                values[name] = value
    save_file(content, path, {"ds_hymotion": json.dumps(told)})


DAMAGE: list[tuple[str, Callable[[Path], Any], str]] = [
    ("missing", lambda path: path.unlink(), "no action types in .*--actions"),
    ("a folder", lambda path: (path.unlink(), path.mkdir()), "no action types in"),
    ("empty", lambda path: path.write_bytes(b""), "is damaged"),
    ("cut short", lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged"),
    ("huge header", lambda path: path.write_bytes(b"\xff" * 20), "is damaged"),
    ("no header", lambda path: save_file({"ids": torch.zeros(3)}, path), "lacks 'ds_hymotion'"),
    ("header no JSON", lambda path: save_file({"ids": torch.zeros(3)}, path, {"ds_hymotion": "{"}), "is damaged"),
    (
        "header nested",
        lambda path: save_file({"ids": torch.zeros(3)}, path, {"ds_hymotion": "[" * 100_000}),
        "is damaged",
    ),
    ("other format", lambda path: rewritten(path, format="x"), "no file of action types"),
    ("later version", lambda path: rewritten(path, version=2), "version 2, this program reads 1"),
    ("unknown mode", lambda path: rewritten(path, mode="magic"), "mode 'magic'"),
    ("no names", lambda path: rewritten(path, names=None), "lacks 'names'"),
    ("names no list", lambda path: rewritten(path, names="LOCOMOTION"), "no list of 1 to 64"),
    ("a name with a line feed", lambda path: rewritten(path, names=["A\nB", *"CDEFG"]), "no name of an action type"),
    ("a name twice", lambda path: rewritten(path, names=["a", "A", *"CDEF"]), "name one twice"),
    ("a name too few", lambda path: rewritten(path, names=list("ABCDE")), "ids outside 0..4|centres is"),
    ("encoders no list", lambda path: rewritten(path, encoders={}), "not text and list"),
    ("unknown encoder", lambda path: rewritten(path, encoders=["hashed", "other"]), "no tensor 'captions.other"),
    ("no ids", lambda path: rewritten(path, {"ids": None}), "no tensor 'ids'"),
    ("ids of floats", lambda path: rewritten(path, {"ids": torch.zeros(36)}), "ids is torch.float32"),
    ("id outside", lambda path: rewritten(path, {"ids": torch.full((36,), 6, dtype=torch.int32)}), "ids outside 0..5"),
    ("too few ids", lambda path: rewritten(path, {"ids": torch.zeros(35, dtype=torch.int32)}), "for other samples"),
    ("other samples", lambda path: rewritten(path, samples="0" * 64), "for other samples"),
    ("no centres", lambda path: rewritten(path, {"centres": None}), "no tensor 'centres'"),
    ("NaN centre", lambda path: rewritten(path, {"centres": torch.full((6, 13), torch.nan)}), "not finite"),
    ("narrow centres", lambda path: rewritten(path, {"centres": torch.zeros(6, 12)}), "network.out.weight is"),
    ("centres without width", lambda path: rewritten(path, {"centres": torch.zeros(6, 0)}), "0 coordinates"),
    ("std of zero", lambda path: rewritten(path, {"feature_std": torch.zeros(133)}), "not above 0"),
    ("no bias", lambda path: rewritten(path, {"network.out.bias": None}), "no tensor 'network.out.bias'"),
    (
        "half precision",
        lambda path: rewritten(path, {"network.out.bias": torch.zeros(13, dtype=torch.float16)}),
        "torch.float16",
    ),
    (
        "negative count",
        lambda path: rewritten(path, {"captions.hashed.counts": torch.full((6,), -1)}),
        "negative count",
    ),
]


@pytest.mark.parametrize(("damage", "words"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damaged_files(folder: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(folder / ACTION_TYPES_FILE)
    with pytest.raises(UserError, match=words) as error:
        ActionTypes.open(Corpus.open(folder))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_an_unharmed_rewritten_file_opens(folder: Path) -> None:
    rewritten(folder / ACTION_TYPES_FILE)
    assert len(ActionTypes.open(Corpus.open(folder)).ids) == 36


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_sorts_a_finished_corpus(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(corpus, tmp_path / "copy").folder
    for name in (ACTION_TYPES_FILE, ACTION_REPORT, ACTION_PICTURE):
        (copy / name).unlink(missing_ok=True)
    monkeypatch.setattr("ds_hymotion.data.actions.sorting.steps_for", lambda _: 40)
    assert run_here("prepare.py", ["--out", str(copy), "--actions"], monkeypatch) == 0
    out = capsys.readouterr().out
    assert "supervised" in out and "adjusted Rand index against 36 labels" in out and ACTION_PICTURE in out
    report = json.loads((copy / ACTION_REPORT).read_text())
    types = ActionTypes.open(Corpus.open(copy))
    assert [row["name"] for row in report["types"]] == list(types.names)
    assert [row["clips"] for row in report["types"]] == [types.ids.count(number) for number in range(6)]
    assert sum(map(sum, report["confusion"].values())) == 36 and set(report["confusion"]) == set(ACTION_TYPES)
    diagonal = sum(counts[types.names.index(label)] for label, counts in report["confusion"].items())
    named = report["named_as_labelled"]
    splits = {split: len(Corpus.open(copy).split(split)) for split in named}
    assert sum(share * splits[split] for split, share in named.items() if share is not None) == pytest.approx(diagonal)
    assert report["adjusted_rand"]["train"] > 0.5 and 0 < report["silhouette"] <= 1
    assert report["prompts"]["hashed"]["train"] > 0.5
    assert (copy / ACTION_PICTURE).stat().st_size > 5000
    assert run_here("prepare.py", ["--out", str(copy), "--actions", "labels"], monkeypatch) == 0
    assert json.loads((copy / ACTION_REPORT).read_text())["silhouette"] is None
    assert not (copy / ACTION_PICTURE).exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--actions", "no corpus at OUT"),
        ("--actions magic", "--actions magic is not one of auto, supervised, unsupervised, labels"),
        ("--action_types 4", "--action_types says how to sort into action types: give --actions too"),
        ("--actions_from x", "--actions_from says how"),
        ("--actions --action_types 0", "--action_types 0 must be from 1 to 64; 6 is usual"),
        ("--actions --action_names A a", "--action_names: action types A a name one twice"),
        ("--actions labels --actions_from x", "--actions labels and --actions_from x exclude each other"),
        ("--actions --actions_from x --action_types 3", "--action_types and --actions_from x exclude"),
        ("--actions --texts x", "--texts is for preparing motions: give --data_dir too, or leave it out"),
    ],
)
def test_wrong_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: str, words: str
) -> None:
    out = str(tmp_path / "none")
    assert run_here("prepare.py", ["--out", out, "--workers", "1", *flags.split()], monkeypatch) == 2
    errors = capsys.readouterr().err
    assert words.replace("OUT", out) in errors and errors.count("\n") == 1


def test_too_few_clips_or_labels(corpus: Corpus) -> None:
    clips = len(corpus.split("train"))
    with pytest.raises(UserError, match=f"has {clips} training clips, too few for 60 action types"):
        sort_corpus(corpus, ActionSettings(types=60), quiet)
    with pytest.raises(UserError, match="tell 0 type.s. of its training clips, and 2 are needed"):
        sort_corpus(corpus, ActionSettings("supervised", names=("A", "B")), quiet)


def test_preparing_anew_takes_the_types_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = builtin_corpus(tmp_path, 6, (60, 60))
    sort_corpus(prepared, ActionSettings("labels"), quiet)
    motions = tmp_path / "motions"
    given = ["--data_dir", str(motions / "amass"), "--texts", str(motions / "texts"), "--index",
             str(motions / "index.csv"), "--out", str(prepared.folder), "--overwrite", "--workers", "1"]  # fmt: skip
    assert run_here("prepare.py", given, monkeypatch) == 0
    assert not (prepared.folder / ACTION_TYPES_FILE).exists()
    assert not (tmp_path / ".corpus.replaced").exists()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_unseen_seeds_at_full_size() -> None:
    rows = {row.figure: row for row in actions_benchmark.run()}
    assert rows["supervised: adjusted Rand index, unseen clips"].value >= 0.9
    assert rows["unsupervised: adjusted Rand index, unseen clips"].value >= 0.5
    for mode in actions_benchmark.MODES:
        assert rows[f"{mode}: types that differ between two runs"].value == 0
        assert rows[f"{mode}: stored types that predicting again changes"].value == 0
        assert rows[f"{mode}: parameters"].value <= MOST_PARAMETERS
        assert rows[f"{mode}: prompts sent where their clip is"].value > 80


def test_benchmark_refuses_its_own_seed() -> None:
    with pytest.raises(UserError, match="--unseen_seed 3 is --seed too"):
        actions_benchmark.run(seed=3, unseen_seed=3)

"""Batches: shapes, counted randomness, windows of long clips, clips that cannot be read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from ds_hymotion.data.batches import BatchMaker, equal_shapes
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.data.plan import Row
from ds_hymotion.flow.times import draw_time
from ds_hymotion.motion.statistics import denormalise, normalise
from ds_hymotion.motion.transforms import heading
from ds_hymotion.text.cache import TextCache
from tests.corpora import wavy_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return wavy_corpus(tmp_path_factory.mktemp("wavy"), [20, 30, 90])


def maker(corpus: Corpus, canvas: int = 300, drop: float = 0.5) -> BatchMaker:
    text = TextCache(corpus.text_cache_folder("hashed"))
    times = partial(draw_time, "stratified")
    return BatchMaker(corpus, corpus.samples, text, (corpus.mean, corpus.std), times, drop, 3, canvas)


ROWS = [Row(0, 0, 2), Row(0, 1, 0), Row(1, 0, 1)]


def test_a_batch(corpus: Corpus) -> None:
    batch = maker(corpus).make(1, ROWS, 3, 33)
    assert batch.motion.shape == batch.noise.shape == (3, 33, 219)
    assert batch.lengths.tolist() == [20, 20, 30]
    expected = normalise(corpus.features(corpus.samples[0]), corpus.mean, corpus.std)
    assert torch.equal(batch.motion[0, :20], expected) and torch.equal(batch.motion[1, :20], expected)
    assert not batch.motion[0, 20:].any() and not batch.noise[0, 20:].any()
    assert not torch.equal(batch.noise[0], batch.noise[1])
    assert [int(3 * t) for t in batch.t] == [2, 0, 1]
    assert batch.text.shape[0] == 3 and batch.text_lengths.min() > 0


def test_numbers_do_not_depend_on_the_company_or_the_canvas(corpus: Corpus) -> None:
    together, alone = maker(corpus).make(1, ROWS, 3, 50), maker(corpus).make(1, ROWS[2:], 3, 30)
    assert torch.equal(together.noise[2, :30], alone.noise[0])
    assert together.t[2] == alone.t[0] and together.drop[2] == alone.drop[0]
    other_epoch = maker(corpus).make(2, ROWS[2:], 3, 30)
    assert not torch.equal(other_epoch.noise, alone.noise)
    held_out = maker(corpus).held_out(ROWS[2:], 30, 0.7)
    assert held_out.t.tolist() == pytest.approx([0.7]) and not held_out.drop.any()
    assert not torch.equal(held_out.noise, alone.noise)


def test_an_empty_batch_has_every_tensor(corpus: Corpus) -> None:
    batch = maker(corpus).make(0, [], 4, 0)
    assert batch.rows == 0 and batch.motion.shape == (0, 0, 219) and batch.text.shape == (0, 1, 128)


def test_a_window_of_a_long_clip_starts_like_every_clip(corpus: Corpus) -> None:
    starts = set()
    for epoch in range(6):
        batch = maker(corpus, canvas=40).make(epoch, [Row(2, 0, 0)], 1, 40)
        assert batch.lengths.tolist() == [40]
        features = denormalise(batch.motion[0], corpus.mean, corpus.std)
        motion = corpus.representation.to_motion(features, 30.0)
        pelvis = motion.joints()[0, 0]
        assert abs(float(pelvis[0])) < 1e-4 and abs(float(pelvis[2])) < 1e-4
        assert abs(heading(motion)) < 1e-3
        starts.add(round(float(features[0, 0]), 5))
    assert len(starts) > 2


def test_a_clip_that_cannot_be_read_is_named_and_empty(corpus: Corpus, tmp_path: Path) -> None:
    shard = corpus.folder / "motion-00000.safetensors"
    content = shard.read_bytes()
    try:
        broken = Corpus.open(corpus.folder)
        damaged = bytearray(content)
        damaged[-4:] = b"\x00\x00\x80\x7f"
        shard.write_bytes(damaged)
        making = maker(broken)
        lengths = making.make(0, [Row(clip, 0, clip) for clip in range(3)], 3, 90).lengths.tolist()
        assert sum(length == 0 for length in lengths) == 1
        ((name, reason),) = making.failed.items()
        assert name in {sample.id for sample in corpus.samples} and "damaged" in reason
    finally:
        shard.write_bytes(content)


def test_micro_batches_are_padded_to_one_shape_by_rows_that_count_for_nothing(corpus: Corpus) -> None:
    made = maker(corpus)
    rows = [[Row(0, 0, 0), Row(1, 0, 1)], [Row(2, 0, 2)], []]
    batches = [made.make(0, part, 3, 90) for part in rows]
    batches[0].text = torch.nn.functional.pad(batches[0].text, (0, 0, 0, 3))
    padded = equal_shapes(batches)
    for name in ("motion", "noise", "text", "pooled", "lengths", "text_lengths", "t", "drop"):
        assert len({getattr(batch, name).shape for batch in padded}) == 1, name
    assert [batch.rows for batch in padded] == [2, 2, 2]
    assert [batch.lengths.tolist() for batch in padded] == [[20, 30], [90, 0], [0, 0]]
    assert torch.equal(padded[1].motion[0], batches[1].motion[0]) and not padded[1].motion[1].any()
    assert equal_shapes([]) == []
    (empty,) = equal_shapes([made.make(0, [], 3, 0)])
    assert empty.motion.shape[:2] == (1, 1) and empty.lengths.tolist() == [0] and empty.text_lengths.tolist() == [0]

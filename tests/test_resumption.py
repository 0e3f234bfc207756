"""What a run says where it goes on from a checkpoint with other steps."""

from __future__ import annotations

import re

import pytest

from ds_hymotion.data.steps import Layout
from ds_hymotion.training.resumption import batch_note


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (Layout(2, 1, 4), Layout(1, 2, 4), ""),
        (Layout(2, 1, 4), Layout(4, 1, 2), ""),
        (Layout(2, 1, 4), Layout(1, 1, 4), "takes 4 clips on 1 .* took 8; gradient_accumulation_steps = 2 keeps 8$"),
        (Layout(1, 1, 3), Layout(2, 1, 3), "takes 6 clips on 2 data rank.*, before it took 3$"),
        (
            Layout(2, 2, 0, 600),
            Layout(1, 2, 0, 600),
            "takes 1200 frames .*accumulation_steps = 4 keeps 2400$",
        ),
        (Layout(2, 2, 4), Layout(2, 2, 4, 600), "frames_per_gpu fills steps otherwise"),
    ],
)
def test_steps_of_another_size_are_named(before: Layout, now: Layout, words: str) -> None:
    note = batch_note(before, now)
    assert re.search(words, note) if words else note == ""

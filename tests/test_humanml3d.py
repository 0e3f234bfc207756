"""HumanML3D's captions and index, as they are in the wild."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_hymotion.errors import UserError
from ds_hymotion.formats.files import FormatError
from ds_hymotion.formats.humanml3d import (
    HEAD_FRAMES,
    Caption,
    IndexRow,
    parse_index,
    parse_texts,
    read_index,
    read_texts,
    source_window,
    write_index,
    write_texts,
)

# name, source, start, end, fps, frames of the source, first, last: rows of the published index, windows by hand.
WINDOWS = [
    # stride 5: 0·5, 117·5
    ("000000", "./pose_data/KIT/3/kick_high_left02_poses.npy", 0, 117, 100.0, 700, 0, 585),
    # -1 is the recording's end
    ("000001", "./pose_data/humanact12/humanact12/P11G01R02F1812T1847A0402.npy", 0, -1, 20.0, 36, 0, 36),
    # head 60, stride 6: 63·6, 263·6
    ("000006", "./pose_data/Eyes_Japan_Dataset/hamada/pose-06-hangon-hamada_poses.npy", 3, 203, 120.0, 1800, 378, 1578),
    # head 60, stride 3: 65·3, 265·3
    ("000033", "./pose_data/Eyes_Japan_Dataset/aita/turn-03-look at-aita_poses.npy", 5, 205, 60.0, 900, 195, 795),
    # head 60, stride 6: 217·6, 369·6
    ("000015", "./pose_data/MPI_HDM05/mm/HDM_mm_08-01_01_120_poses.npy", 157, 309, 120.0, 2300, 1302, 2214),
    # head 60, stride 6: 968·6, 1168·6
    ("000031", "./pose_data/MPI_HDM05/dg/HDM_dg_06-02_01_120_poses.npy", 908, 1108, 120.0, 9000, 5808, 7008),
    # head 20, stride int(2.9999994) = 2: 667·2, 867·2
    ("000014", "./pose_data/TotalCapture/s3/walking2_poses.npy", 647, 847, 59.9999885, 3000, 1334, 1734),
    # head 20, stride 3: 1556·3, 1693·3
    ("000506", "./pose_data/TotalCapture/s3/rom2_poses.npy", 1536, 1673, 60.0, 6000, 4668, 5079),
    # head 20, stride 6: 21·6, 221·6
    ("000044", "./pose_data/MPI_Limits/03099/op3_poses.npy", 1, 201, 120.0, 1400, 126, 1326),
    # head 10, stride 6: 10·6, 115·6
    (
        "000027",
        "./pose_data/Transitions_mocap/mazen_c3d/punchkarate_jumpingtwist360_poses.npy",
        0,
        105,
        120.0,
        700,
        60,
        690,
    ),
    # stride int(12.5) = 12: 0·12, 85·12
    ("000034", "./pose_data/ACCAD/Female1Running_c3d/C19 -  run to hop to walk_poses.npy", 0, 85, 250.0, 1100, 0, 1020),
    # stride 6: 516·6, 716·6
    ("000004", "./pose_data/CMU/80/80_63_poses.npy", 516, 716, 120.00004577636719, 4300, 3096, 4296),
]


@pytest.mark.parametrize(("name", "source", "start", "end", "fps", "frames", "first", "last"), WINDOWS)
def test_windows_by_hand(name, source, start, end, fps, frames, first, last):
    assert source_window(IndexRow(source, start, end, name), fps, frames) == (first, last)


def test_the_rows_by_hand_are_rows_of_the_real_index(shared):
    rows = {row.name: row for row in read_index(shared / "samples" / "humanml3d" / "index.csv")}
    for name, source, start, end, *_ in WINDOWS:
        assert rows[name] == IndexRow(source, start, end, name)


@pytest.mark.parametrize("name", sorted(HEAD_FRAMES))
def test_windows_are_the_frames_that_slicing_keeps(name):
    row = IndexRow(f"./pose_data/{name}/a/b_poses.npy", 7, 31, "000000")
    for fps in (59.9999885, 60.0, 100.0, 120.0, 250.0):
        source = np.arange(1500)
        stride = int(fps / 20)
        kept = source[::stride][HEAD_FRAMES[name] :][7:31]
        first, last = source_window(row, fps, len(source))
        assert (source[first:last:stride] == kept).all() and len(source[first:last:stride]) == 24


def test_the_last_window_may_end_within_a_stride_but_not_past_the_recording():
    row = IndexRow("./pose_data/KIT/3/kick_high_left02_poses.npy", 0, 117, "000000")
    assert source_window(row, 100.0, 585) == (0, 585)
    assert source_window(row, 100.0, 581) == (0, 581)
    with pytest.raises(UserError, match=r"000000: window 0\.\.117 ends past .*kick_high.*116 frames"):
        source_window(row, 100.0, 580)


def test_open_end_counts_from_the_head():
    row = IndexRow("./pose_data/TotalCapture/s3/rom2_poses.npy", 5, -1, "a")
    assert source_window(row, 60.0, 200) == (75, 200)
    with pytest.raises(UserError, match="at least 2"):
        source_window(row, 60.0, 60)


@pytest.mark.parametrize(("name", "end"), [("009707", 1), ("011059", 1), ("000000", 0)])
def test_rows_under_two_frames_are_refused_by_name(name, end):
    row = IndexRow("./pose_data/KIT/9/WalkingStraightBackwards08_poses.npy", 0, end, name)
    with pytest.raises(UserError, match=f"{name}: .*at least 2"):
        source_window(row, 100.0, 500)


@pytest.mark.parametrize("fps", [0.0, 19.9, -120.0, float("nan"), float("inf")])
def test_rates_under_the_index_rate_are_refused(fps):
    with pytest.raises(UserError, match="at least 20"):
        source_window(IndexRow("./pose_data/a/b.npy", 0, 10, "x"), fps, 500)


def test_the_real_index_is_read_whole(shared):
    rows = read_index(shared / "samples" / "humanml3d" / "index.csv")
    assert len(rows) == 14616 and rows.problems == []
    assert sum(" " in row.source for row in rows) == 1119
    assert sum(row.end_frame == -1 for row in rows) == 1191
    assert len(rows) - len({row.recording for row in rows}) == 2901
    assert sum(row.head_frames == 60 for row in rows) == 1465 + 771


def test_recording_is_the_path_below_pose_data():
    assert IndexRow("./pose_data/KIT/3/a b_poses.npy", 0, 1, "x").recording == "KIT/3/a b_poses"
    assert IndexRow("CMU/80/80_63_poses.npy", 0, 1, "x").recording == "CMU/80/80_63_poses"


def test_index_problems_are_named_and_the_rest_is_kept():
    table = (
        b"\xef\xbb\xbf,source_path,start_frame,end_frame,new_name,note\r\n"
        b'0,"./pose_data/a, b/c.npy",0,10,000000.npy,x\r\n'
        b"\r\n"
        b"1,./pose_data/a.npy,zero,10,000001.npy,x\r\n"
        b"2,./pose_data/a.npy,5\r\n"
        b"3,./pose_data/a.npy,-3,10,000003.npy,x\r\n"
        b"4,./pose_data/a.npy,3,-2,000004.npy,x\r\n"
        b"5,,3,9,000005.npy,x\r\n"
        b"6,../../etc/a.npy,3,9,000006.npy,x\r\n"
        b"7,./pose_data/a.npy,3,9,../000007.npy,x\r\n"
        b"8,./pose_data/a.npy,3,9,000008,x"
    )
    rows = parse_index(table, "index.csv")
    assert list(rows) == [
        IndexRow("./pose_data/a, b/c.npy", 0, 10, "000000"),
        IndexRow("./pose_data/a.npy", 3, 9, "000008"),
    ]
    assert [problem.split(":")[0] for problem in rows.problems] == [f"index.csv line {n}" for n in range(4, 11)]
    assert "'zero'" in rows.problems[0]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"a,b,c\n1,2,3\n", b"\xff\xfe", b"source_path,start_frame\n"])
def test_other_tables_are_refused(data):
    with pytest.raises(FormatError):
        parse_index(data, "index.csv")


def test_index_written_and_read(tmp_path):
    rows = [IndexRow('./pose_data/a, "b"/c d.npy', 0, -1, "000000"), IndexRow("./x.npy", 3, 9, "M000001")]
    write_index(tmp_path / "index.csv", rows)
    assert list(read_index(tmp_path / "index.csv")) == rows


def test_genuine_captions(shared):
    captions = read_texts(shared / "samples" / "humanml3d" / "texts_000000.txt")
    assert captions.problems == []
    assert captions[0].text == "a man kicks something or someone with his left leg."
    assert len(captions) == 4 and all(caption.whole and "/" in caption.tokens for caption in captions)
    captions = read_texts(shared / "samples" / "humanml3d" / "texts_012314.txt")
    assert len(captions) == 3 and captions.problems == []


@pytest.mark.parametrize(
    ("line", "caption"),
    [
        ("a man walks.#a/DET man/NOUN walk/VERB#0.0#0.0", Caption("a man walks.", 0, 0, "a/DET man/NOUN walk/VERB")),
        ("sits#sit/VERB#2.5#6.0\r", Caption("sits", 2.5, 6.0, "sit/VERB")),
        ("sits#sit/VERB#nan#nan", Caption("sits", 0, 0, "sit/VERB")),
        ("sits#sit/VERB#NaN#4", Caption("sits", 0, 4.0, "sit/VERB")),
        ("a “quick” turn – it’s left#turn/NOUN#0#0", Caption("a “quick” turn – it’s left", 0, 0, "turn/NOUN")),
        ("man # walks#man/NOUN #/SYM walk/VERB#0.0#0.0", Caption("man # walks", 0, 0, "man/NOUN #/SYM walk/VERB")),
        ("#1 walks#walk/VERB#0.0#0.0", Caption("#1 walks", 0, 0, "walk/VERB")),
        ("walks##0.0#0.0", Caption("walks")),
        ("walks#walk/VERB#0.0#0.0#", Caption("walks", 0, 0, "walk/VERB")),
        ("walks#some tokens of another kind#0.0#0.0", Caption("walks", 0, 0, "some tokens of another kind")),
        ("  walks  # walk/VERB # 1e0 # 2. ", Caption("walks", 1.0, 2.0, "walk/VERB")),
    ],
)
def test_caption_lines(line, caption):
    parsed = parse_texts(line.encode(), "a.txt")
    assert list(parsed) == [caption] and parsed.problems == []


@pytest.mark.parametrize(
    "line",
    [
        "only a caption",
        "a#b",
        "a#b#c#d",
        "a#b#1.0",
        "#a/DET#0.0#0.0",
        "walks#0.0#0.0",
        "a#b/X#3.0#2.0",
        "a#b/X#-1#2",
        "a#b/X#inf#2",
        "a#b/X#0#1e999",
        "a#b/X#2#nan",
    ],
)
def test_malformed_lines_are_reported_and_the_rest_kept(line):
    parsed = parse_texts(f"\nfirst#a/X#0#0\n{line}\n\n\nlast#b/X#0#0".encode(), "000001.txt")
    assert [caption.text for caption in parsed] == ["first", "last"]
    assert len(parsed.problems) == 1 and parsed.problems[0].startswith("000001.txt line 3: ")


def test_bytes_that_are_no_text_are_reported():
    parsed = parse_texts(b"\xef\xbb\xbffirst#a/X#0#0\n\xff\xfe#a/X#0#0\nlast#b/X#0#0\n", "a.txt")
    assert [caption.text for caption in parsed] == ["first", "last"] and parsed.problems == ["a.txt line 2: not UTF-8"]


def test_missing_files_are_user_errors(tmp_path):
    for read in (read_texts, read_index):
        with pytest.raises(FormatError, match="no such file"):
            read(tmp_path / "absent")


def test_very_long_lines_take_no_time():
    for line in (b"#" + b"1" * 200_000 + b"x", b"a" + b"# " * 20_000, b" " * 200_000 + b"#"):
        assert len(parse_texts(line, "a.txt").problems) == 1


def test_an_empty_caption_is_not_written(tmp_path):
    with pytest.raises(UserError, match="empty"):
        write_texts(tmp_path / "a.txt", [Caption(" \n")])


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=8)
tags = st.tuples(st.from_regex(r"[a-z]{1,5}|#", fullmatch=True), st.sampled_from(["NOUN", "X", "PUNCT"]))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(words, min_size=1, max_size=4),
            st.lists(tags.map("/".join), max_size=3),
            st.floats(0, 100),
            st.floats(0.01, 100),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_captions_written_and_read(tmp_path_factory, rows, whole):
    captions = [
        Caption(" ".join(text), *((0.0, 0.0) if whole else (start, start + span)), " ".join(tokens))
        for text, tokens, start, span in rows
    ]
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    write_texts(path, captions)
    again = read_texts(path)
    assert list(again) == captions and again.problems == []


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=200), st.text("ab#/X.0nan1-\n\r", max_size=60).map(str.encode)))
def test_captions_of_arbitrary_bytes(data):
    parsed = parse_texts(data, "a.txt")
    lines = sum(bool(line.strip()) for line in data.removeprefix(b"\xef\xbb\xbf").splitlines())
    assert len(parsed) + len(parsed.problems) == lines


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text('ab,."/\n\r01-', max_size=80).map(
            lambda text: b"source_path,start_frame,end_frame,new_name\n" + text.encode()
        ),
    )
)
def test_index_of_arbitrary_bytes_raises_only_user_errors(data):
    try:
        rows = parse_index(data, "index.csv")
    except UserError:
        return
    for row in rows:
        assert row.recording and row.name and row.start_frame >= 0 and row.end_frame >= -1

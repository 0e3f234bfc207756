"""The built-in motions do what their captions say, on the floor, like a body."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
import torch
from torch import Tensor

from ds_hymotion.data.builtin import ACTIONS, BuiltinClip, generate_clip, generate_set
from ds_hymotion.data.builtin.solver import SEGMENTS
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import velocity_outliers
from ds_hymotion.metrics.jitter import jitter
from ds_hymotion.motion.motion import Motion
from ds_hymotion.motion.rotation import matrix_to_axis_angle
from ds_hymotion.motion.skeleton import JOINTS_24
from ds_hymotion.motion.transforms import heading

TYPES = ("LOCOMOTION", "MANIPULATION", "GESTURE", "POSTURE", "BALANCE", "TRANSITION")
SUB_ACTIONS = [(action, name) for action, names in ACTIONS.items() for name in names]
SEEDS = (1, 2)
COUNTS = {"once": 1, "twice": 2, "three times": 3, "four times": 4}
UP = 1


@pytest.fixture(scope="module")
def clips() -> dict[str, list[BuiltinClip]]:
    return {name: [generate_clip(action, seed, 60 + 30 * seed, name) for seed in SEEDS] for action, name in SUB_ACTIONS}


def joints(clip: BuiltinClip) -> Tensor:
    return clip.motion.joints().double()


def joint(clip: BuiltinClip, name: str) -> Tensor:
    return joints(clip)[:, JOINTS_24.index(name)]


def path_length(points: Tensor) -> float:
    return float(points.diff(dim=0).norm(dim=-1).sum())


def side_of(clip: BuiltinClip) -> str:
    found = {side for caption in clip.captions for side in re.findall(r"\b(left|right)\b", caption)}
    assert len(found) == 1, clip.captions
    return found.pop()


def count_of(clip: BuiltinClip) -> int:
    found = {word for caption in clip.captions for word in COUNTS if caption.endswith(word) or f"{word}," in caption}
    assert len(found) <= 1, clip.captions
    return COUNTS[found.pop()] if found else 1


def other(side: str) -> str:
    return {"left": "right", "right": "left"}[side]


def forward(clip: BuiltinClip, frame: int = 0) -> Tensor:
    yaw = heading(clip.motion, frame)
    return torch.tensor([math.sin(yaw), 0.0, math.cos(yaw)], dtype=torch.float64)


def travelled(clip: BuiltinClip) -> tuple[float, float]:
    """Metres of the pelvis ahead and to the left, as seen at frame 0."""
    way = joint(clip, "pelvis")[-1] - joint(clip, "pelvis")[0]
    ahead = forward(clip)
    left = torch.tensor([ahead[2], 0.0, -ahead[0]])
    return float(way @ ahead), float(way @ left)


def turned(clip: BuiltinClip) -> float:
    """Degrees to the left from the first frame to the last, followed over the clip."""
    yaws = torch.tensor([heading(clip.motion, frame) for frame in range(0, clip.motion.frames, 5)])
    steps = (yaws.diff() + math.pi) % (2 * math.pi) - math.pi
    return math.degrees(float(steps.sum()))


def peaks(values: Tensor, over: float) -> int:
    """How many separate stretches lie over the level."""
    above = (values > over).int()
    return int((above.diff() == 1).sum() + above[0])


def test_six_types_of_at_least_three_sub_actions_each():
    assert tuple(ACTIONS) == TYPES
    assert all(len(names) >= 3 for names in ACTIONS.values())
    assert len({name for _, name in SUB_ACTIONS}) == len(SUB_ACTIONS)


@pytest.mark.parametrize("action, name", SUB_ACTIONS)
def test_same_seed_same_bits_other_seed_other_motion(action: str, name: str):
    one, same, another = (generate_clip(action, seed, 60, name) for seed in (5, 5, 6))
    assert torch.equal(one.motion.rotations, same.motion.rotations)
    assert torch.equal(one.motion.translation, same.motion.translation)
    assert one.captions == same.captions and one.id == same.id
    assert float((one.motion.rotations - another.motion.rotations).abs().max()) > 0.01


def test_drawn_length_and_sub_action_depend_on_the_seed():
    drawn = [generate_clip("GESTURE", seed) for seed in range(8)]
    assert all(60 <= clip.motion.frames <= 300 and clip.motion.fps == 30.0 for clip in drawn)
    assert len({clip.motion.frames for clip in drawn}) > 4 and len({clip.sub_action for clip in drawn}) > 1


def test_wrong_requests_are_named():
    for arguments, words in [
        (("DANCE", 0), "LOCOMOTION, MANIPULATION"),
        (("GESTURE", 0, None, "walk"), "wave, point"),
        (("GESTURE", 0, 59), "60"),
    ]:
        with pytest.raises(UserError, match=words):
            generate_clip(*arguments)
    for wrong in ({}, {"clips": 2, "clips_per_type": 1}, {"clips": 0}, {"clips": 6, "frames": (300, 60)}):
        with pytest.raises(UserError):
            generate_set(**wrong)


def test_a_set_is_balanced_and_grows_without_changing():
    small = generate_set(clips=8, seed=3, frames=(60, 75))
    large = generate_set(clips_per_type=4, seed=3, frames=(60, 75))
    assert Counter(clip.action for clip in small) == dict(zip(TYPES, (2, 2, 1, 1, 1, 1), strict=True))
    assert Counter(clip.action for clip in large) == dict.fromkeys(TYPES, 4)
    assert all(len({clip.sub_action for clip in large if clip.action == action}) >= 3 for action in TYPES)
    assert all(60 <= clip.motion.frames <= 75 for clip in large)
    by_id = {clip.id: clip for clip in large}
    assert len(by_id) == 24
    assert all(torch.equal(clip.motion.rotations, by_id[clip.id].motion.rotations) for clip in small)
    changed = generate_set(clips=8, seed=4, frames=(60, 75))
    assert all(
        a.motion.frames != b.motion.frames or not torch.equal(a.motion.rotations, b.motion.rotations)
        for a, b in zip(small, changed, strict=True)
    )


def test_several_different_captions_without_loose_ends(clips):
    for clip in (clip for made in clips.values() for clip in made):
        assert len(set(clip.captions)) == len(clip.captions) >= 3
        assert all(re.fullmatch(r"[a-z]+( [a-z]+,?)* [a-z]+", caption) for caption in clip.captions), clip.captions


@pytest.mark.parametrize("name", [name for _, name in SUB_ACTIONS])
def test_feet_stand_on_the_floor_and_do_not_slide(clips, name: str):
    for clip in clips[name]:
        places = joints(clip)
        balls = places[:, 10:12]
        assert abs(float(places[..., UP].min())) < 1e-5
        if name == "lie":
            assert float(balls[..., UP].min()) > 0
            continue
        assert float(balls[..., UP].min(dim=1).values.median()) < 0.02
        standing = torch.maximum(balls[1:, :, UP], balls[:-1, :, UP]) < 0.015
        slid = balls.diff(dim=0)[..., [0, 2]].norm(dim=-1)[standing]
        assert len(slid) and float(slid.max()) < 0.02


@pytest.mark.parametrize("name", [name for _, name in SUB_ACTIONS])
def test_knees_and_elbows_bend_the_human_way(clips, name: str):
    for clip in clips[name]:
        turns = torch.rad2deg(matrix_to_axis_angle(clip.motion.rotations.double()))
        knees, left_elbow, right_elbow = turns[:, 4:6], turns[:, 18], turns[:, 19]
        assert float(knees[..., 0].min()) > -8 and float(knees.norm(dim=-1).max()) < 145
        assert float(left_elbow[:, 1].max()) < 12 and float(right_elbow[:, 1].min()) > -12
        assert float(turns[:, 18:20].norm(dim=-1).max()) < 130
        assert float(turns[:, 7:9].norm(dim=-1).max()) < 75  # ankles
        assert float(turns[:, [3, 6, 9, 12, 15]].norm(dim=-1).max()) < 50  # spine, neck, head


def test_motions_are_as_smooth_as_recorded_ones(clips):
    everything = [clip for made in clips.values() for clip in made]
    values = [jitter(clip.motion.joints(), 30.0) for clip in everything]
    assert 0.1 < sum(values) / len(values) < 3
    assert max(values) < 20 and min(values) > 0.01
    assert all(velocity_outliers(clip.motion) == [] for clip in everything)


def test_gaits_move_along_their_heading():
    for seed in range(6):
        for name in ("walk", "run", "carry"):
            clip = generate_clip("MANIPULATION" if name == "carry" else "LOCOMOTION", seed, 75, name)
            ahead, left = travelled(clip)
            assert ahead > 0.8
            angle = turned(clip)
            words = " ".join(clip.captions)
            if "curve" in words or "bend" in words or "arc" in words:
                assert angle * {"left": 1, "right": -1}[side_of(clip)] > 20 and left * angle > 0
            else:
                assert abs(angle) < 12 and abs(left) < 0.1 * ahead
        ahead, left = travelled(generate_clip("LOCOMOTION", seed, 75, "walk_backward"))
        assert ahead < -0.7 and abs(left) < 0.12
        clip = generate_clip("LOCOMOTION", seed, 75, "sidestep")
        ahead, left = travelled(clip)
        assert abs(ahead) < 0.1 and left * {"left": 1, "right": -1}[side_of(clip)] > 0.5


def test_quick_walks_are_faster_than_slow_ones():
    speeds: dict[str, list[float]] = {"slowly": [], "quickly": []}
    for seed in range(12):
        clip = generate_clip("LOCOMOTION", seed, 60, "walk")
        for word, found in speeds.items():
            if any(word in caption for caption in clip.captions):
                found.append(path_length(joint(clip, "pelvis")[:, [0, 2]]) / 2)
    assert speeds["slowly"] and max(speeds["slowly"]) < min(speeds["quickly"])


def test_arms_swing_against_the_legs(clips):
    for clip in clips["walk"] + clips["run"]:
        swing = {}
        for name in ("left_wrist", "left_ankle"):
            away = joint(clip, name) - joint(clip, "pelvis")
            ahead = torch.stack([forward(clip, frame) for frame in range(clip.motion.frames)])
            swing[name] = (away * ahead).sum(dim=1)
        assert float(torch.corrcoef(torch.stack(list(swing.values())))[0, 1]) < -0.7


@pytest.mark.parametrize(
    "action, name", [("GESTURE", "wave"), ("GESTURE", "point"), ("MANIPULATION", "reach"), ("MANIPULATION", "throw")]
)
def test_the_named_hand_moves(action: str, name: str):
    sides = set()
    for seed in range(10):
        clip = generate_clip(action, seed, 90, name)
        side = side_of(clip)
        sides.add(side)
        moved = {hand: path_length(joint(clip, f"{hand}_wrist")) for hand in ("left", "right")}
        assert moved[side] > 1.4 * moved[other(side)]
    assert sides == {"left", "right"}


def test_claps_and_jumps_are_counted(clips):
    counts = set()
    for seed in range(4):
        clip = generate_clip("LOCOMOTION", seed, 60 + 60 * seed, "jump")
        counts.add(count_of(clip))
        assert peaks(joints(clip)[:, 10:12, UP].min(dim=1).values, over=0.1) == count_of(clip)
    assert len(counts) > 1
    for seed in range(4):
        clip = generate_clip("GESTURE", seed, 60, "clap")
        apart = (joint(clip, "left_hand") - joint(clip, "right_hand")).norm(dim=1)
        counted = [caption for caption in clip.captions if caption.endswith(tuple(COUNTS))]
        assert all(peaks(-apart, over=-0.08) == count_of(clip) for _ in counted) and float(apart.max()) > 0.3


def test_repeated_gestures_are_counted():
    for seed in range(6):
        clip = generate_clip("GESTURE", seed, 60 + 40 * seed, "raise_arms")
        assert peaks(joint(clip, "left_wrist")[:, UP] - joint(clip, "head")[:, UP], over=0.0) == count_of(clip)


def test_one_leg_carries_the_body():
    for seed in range(6):
        for name in ("one_leg_stand", "one_leg_sway", "tree_pose"):
            clip = generate_clip("BALANCE", seed, 120, name)
            side = re.findall(r"(?:on the|balances on the|stands on the) (left|right)", " ".join(clip.captions))[0]
            middle = 60
            assert float(joint(clip, f"{side}_foot")[middle, UP]) < 0.01
            assert float(joint(clip, f"{other(side)}_foot")[middle, UP]) > 0.12
            places = {part: joint(clip, part)[middle] for part in JOINTS_24}
            mass = sum((share / 2 * (places[a] + places[b]) for (a, b), share in SEGMENTS.items()), torch.zeros(3))
            mass = mass / sum(SEGMENTS.values())
            sole = (places[f"{side}_foot"] + places[f"{side}_ankle"]) / 2
            assert float((mass - sole)[[0, 2]].norm()) < 0.08


def test_postures_and_transitions_have_their_heights():
    for seed in range(4):
        height = {
            name: joint(generate_clip(action, seed, 75, name), "pelvis")[:, UP]
            for action, name in [
                ("POSTURE", "stand"),
                ("POSTURE", "sit"),
                ("POSTURE", "lie"),
                ("POSTURE", "crouch"),
                ("TRANSITION", "sit_down"),
                ("TRANSITION", "stand_up"),
                ("TRANSITION", "kneel_down"),
            ]
        }
        assert height["stand"].min() > 0.85 and height["lie"].max() < 0.25 and height["crouch"].max() < 0.6
        assert height["sit"].max() < 0.65
        assert height["sit_down"][0] > 0.85 and height["sit_down"][-1] < 0.65
        assert height["stand_up"][0] < 0.65 and height["stand_up"][-1] > 0.85
        assert height["kneel_down"][0] > 0.85 and height["kneel_down"][-1] < 0.6


def test_the_named_knee_is_down():
    for seed in range(4):
        clip = generate_clip("TRANSITION", seed, 90, "kneel_down")
        side = re.findall(r"(left|right) knee", " ".join(clip.captions))[0]
        assert float(joint(clip, f"{side}_knee")[-1, UP]) < 0.1
        assert float(joint(clip, f"{other(side)}_knee")[-1, UP]) > 0.35


def test_turning_around_turns_to_the_named_side():
    for seed in range(6):
        clip = generate_clip("TRANSITION", seed, 105, "turn_around")
        angle = turned(clip) * {"left": 1, "right": -1}[side_of(clip)]
        half = any("around" in caption and "steps around" not in caption for caption in clip.captions)
        assert abs(angle - (180 if half else 90)) < 20
        assert path_length(joint(clip, "pelvis")[[0, -1]]) < 0.15


def test_a_clip_is_a_motion_of_24_joints():
    clip = generate_clip("GESTURE", 0, 61)
    assert isinstance(clip.motion, Motion) and clip.motion.rotations.shape == (61, 24, 3, 3)
    identity = clip.motion.rotations @ clip.motion.rotations.transpose(-1, -2)
    assert torch.allclose(identity, torch.eye(3).expand_as(identity), atol=1e-6)

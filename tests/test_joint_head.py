"""The motion head cut by joints: who predicts what, and that its parts are the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_hymotion.config.flow import FlowSection
from ds_hymotion.config.training import TrainingSection
from ds_hymotion.data.batches import Batch
from ds_hymotion.errors import UserError
from ds_hymotion.flow.objective import BodyLosses, FlowObjective
from ds_hymotion.flow.sampler import sample
from ds_hymotion.model.config import ModelConfig
from ds_hymotion.model.generator import MotionGenerator
from ds_hymotion.motion.groups import JointGroups, balance, neighbours
from ds_hymotion.motion.representation import representation
from ds_hymotion.motion.statistics import normalise
from ds_hymotion.parallel.cuts import CutPlan
from ds_hymotion.parallel.joint_head import JointHead, whole_velocity
from ds_hymotion.parallel.mesh import Mesh
from ds_hymotion.parallel.tensor import cut_network, plan_cuts, replica_difference
from ds_hymotion.text.encoder import TextFeatures
from ds_hymotion.training.joints import JointPlan
from tests.corpora import SMALL, wavy_motion
from tests.golden_network import randomised
from tests.ranks import RankPool

SOURCE = "hip,knee,ankle,shoulder:elbow,wrist,neck,spine:others"
SIDED = "left_hip,left_knee,left_ankle,left_shoulder:left_elbow,left_wrist,neck,spine,head,left_collar:others"


def plan_of(groups: str | None, name: str = "smpl24-rotmat", ranks: int = 1, **settings: Any) -> JointPlan:
    return JointPlan(TrainingSection(joint_groups=groups, **settings), representation(name), ranks)


@pytest.mark.parametrize(
    ("groups", "name", "sizes"),
    [
        (SOURCE, "smpl24-rotmat", [75, 72, 72]),
        (SOURCE, "hymotion-201", [75, 72, 54]),
        (SIDED, "smpl24-rotmat", [39, 72, 108]),
        ("0,1,2:3,4,5,6:others", "smpl24-rotmat", [30, 36, 153]),
    ],
)
def test_channels_per_rank(groups: str, name: str, sizes: list[int]) -> None:
    plan = plan_of(groups, name, 3)
    assert [len(channels) for channels in plan.channels] == sizes
    assert sorted(map(len, plan.rank_channels)) == sorted(sizes)
    assert sorted(sum(plan.rank_channels, [])) == list(range(sum(sizes)))
    translation = representation(name).joint_channels(-1).tolist()
    assert set(translation) <= set(plan.channels[0].tolist()) and set(translation) <= set(plan.rank_channels[0])


def test_more_groups_than_ranks_are_balanced() -> None:
    plan = plan_of(SIDED, ranks=2)
    assert [len(channels) for channels in plan.rank_channels] == [111, 108]
    assert plan.by_rank.labels[1] == "others"
    assert "111 (left_hip_left_knee_left_ankle_left_shoulder+" in plan.describe(FlowSection())
    assert "gather" not in plan.describe(FlowSection())
    assert "gather the decoded rotations" in plan.describe(FlowSection(foot_contact_weight=1.0))


@pytest.mark.parametrize(("ranks", "most"), [(1, 219), (2, 111), (4, 57), (5, 45), (10, 27), (24, 12)])
def test_without_groups_joints_are_balanced(ranks: int, most: int) -> None:
    plan = plan_of(None, ranks=ranks)
    assert max(map(len, plan.rank_channels)) == most
    assert sorted(sum(plan.rank_channels, [])) == list(range(219))
    assert plan.groups.labels == ("hip_knee_ankle_shoulder", "elbow_wrist_neck_spine", "others")


def test_fewer_groups_than_ranks_are_refused_with_a_grouping_that_works() -> None:
    with pytest.raises(UserError, match=r"3 group\(s\) for 4 tensor ranks; use at least 4, such as ") as caught:
        plan_of(SOURCE, ranks=4)
    suggested = str(caught.value).rpartition(" ")[2]
    assert [len(part) for part in plan_of(suggested, ranks=4).rank_channels] == [39, 36, 72, 72]
    with pytest.raises(UserError, match="25 joint groups: smpl24-rotmat has 24 joints"):
        plan_of(None, ranks=25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"joint_loss_weights": [1.0]}, "joint_loss_weights has 1 value.* for 3 joint groups.*hip_knee_ankle_shoulder"),
        ({"joint_update_every": [1, 2, 3, 4]}, "joint_update_every has 4 value"),
        ({"joint_loss_weights": [0.0, 0.0, 0.0]}, "are all 0"),
    ],
)
def test_settings_that_do_not_fit_the_groups(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_of(SOURCE, **settings)


def test_suggestions_read_back() -> None:
    names = representation("smpl24-rotmat").joint_names
    for ranks in (1, 2, 5, 24):
        text = plan_of(None, ranks=ranks).suggestion()
        assert JointGroups.parse(text, names).joints == plan_of(None, ranks=ranks).by_rank.joints
    assert (
        JointGroups.parse(SOURCE, names).text(names)
        == "hip,knee,ankle,shoulder:spine,neck,elbow,wrist:pelvis,foot,collar,head,hand"
    )


def test_balance() -> None:
    assert balance([5, 3, 3, 2], 2) == [[0, 3], [1, 2]]
    assert balance([75, 72, 72], 2) == [[0], [1, 2]]
    assert neighbours([12, 9, 9, 9], 2) == [range(0, 2), range(2, 4)]
    assert neighbours([1, 1, 9], 3) == [range(0, 1), range(1, 2), range(2, 3)]
    assert neighbours([4, 1, 1, 4, 2], 2) == [range(0, 3), range(3, 5)]


CHANNELS = [[0, 3, 4], [1], [2, 5]]


def head_job() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A head of six channels on three ranks and the same on one: input gradient, own rows' gradients, whole output."""
    torch.manual_seed(1)
    plain, x, target = nn.Linear(5, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 6)
    own = CHANNELS[dist.get_rank()]
    weight, bias = nn.Parameter(plain.weight[own].detach().clone()), nn.Parameter(plain.bias[own].detach().clone())
    head = JointHead(weight, bias, CHANNELS, dist.group.WORLD)
    x.requires_grad_()
    (plain(x) - target).square().sum().backward()
    assert x.grad is not None and plain.weight.grad is not None and plain.bias.grad is not None
    expected = x.grad.clone()
    x.grad = None
    (head(x) - target[..., own]).square().sum().backward()
    assert weight.grad is not None and bias.grad is not None
    with whole_velocity(head), torch.no_grad():
        whole = head(x)
    empty = torch.zeros(0, 7, 5, requires_grad=True)
    head(empty).sum().backward()
    assert empty.grad is not None and empty.grad.shape == empty.shape
    return (
        (x.grad - expected).abs().max(),
        (weight.grad - plain.weight.grad[own]).abs().max(),
        (bias.grad - plain.bias.grad[own]).abs().max(),
        (whole - plain(x)).abs().max(),
        torch.tensor(head(x).shape),
    )


def test_the_head_alone(ranks: RankPool) -> None:
    for rank, (of_x, of_weight, of_bias, whole, shape) in enumerate(ranks.run(3, head_job)):
        assert max(of_x, of_weight, of_bias, whole) < 1e-5
        assert shape.tolist() == [2, 7, len(CHANNELS[rank])]


def small_generator(name: str = "smpl24-rotmat") -> MotionGenerator:
    generator = MotionGenerator(ModelConfig(**SMALL, input_dim=representation(name).channels))
    randomised(generator)
    return generator


def random_batch(seed: int, name: str = "smpl24-rotmat") -> Batch:
    random = torch.Generator().manual_seed(seed)
    kind = representation(name)
    lengths = torch.randint(2, 13, (3,), generator=random)
    clips = [kind.encode(wavy_motion(int(length), seed)) for length in lengths]
    motion = nn.utils.rnn.pad_sequence(clips, batch_first=True)
    return Batch(
        motion=normalise(motion, torch.zeros(kind.channels), torch.full((kind.channels,), 0.5)),
        noise=torch.randn(motion.shape, generator=random),
        t=torch.rand(3, generator=random),
        lengths=lengths,
        text=torch.randn(3, 4, 128, generator=random),
        text_lengths=torch.randint(1, 5, (3,), generator=random),
        pooled=torch.randn(3, 128, generator=random),
        drop=torch.rand(3, generator=random) < 0.3,
    )


def objectives(
    mesh: Mesh, joints: JointPlan, flow: FlowSection, name: str
) -> tuple[FlowObjective, FlowObjective, CutPlan]:
    """The same objective whole and cut."""
    kind = representation(name)
    body = BodyLosses(kind, torch.zeros(kind.channels), torch.full((kind.channels,), 0.5), 30.0, flow)
    plain, generator = small_generator(name), small_generator(name)
    plan = plan_cuts(generator, generator.config, joints.rank_channels)
    cut_network(generator, plan, mesh.model_rank, mesh.model_group)
    whole = FlowObjective(plain, flow, body, replace(joints.share(mesh), own=None, gather=None, first=True))
    return whole, FlowObjective(generator, flow, body, joints.share(mesh)), plan


def parts_job(batches: int) -> list[tuple[float, float]]:
    """Losses of random batches: whole, and as the sum over the ranks' shares."""
    mesh = Mesh.current(model=dist.get_world_size())
    joints = plan_of(SOURCE, ranks=mesh.model_size, joint_loss_weights=[1.0, 2.0, 0.5])
    whole, cut, _ = objectives(mesh, joints, FlowSection(), "smpl24-rotmat")
    pairs = []
    with torch.no_grad():
        for seed in range(batches):
            batch = random_batch(seed)
            frames = int(batch.lengths.sum())
            loss, parts = whole(batch, frames)
            share, own = cut(batch, frames)
            assert float((mesh.sum_over_all(own) - parts).abs().max() / parts.max()) < 1e-6
            pairs.append((float(loss), float(mesh.sum_over_all(share.clone()))))
    return pairs


def test_the_loss_by_parts_is_the_whole_loss(ranks: RankPool) -> None:
    pairs = ranks.run(2, parts_job, 100)[0]
    worst = max(abs(whole - parts) / whole for whole, parts in pairs)
    print(f"loss by parts against the whole loss: largest relative difference {worst:.1e} over {len(pairs)} batches")
    assert len({round(whole, 6) for whole, _ in pairs}) == 100 and worst < 1e-6


def body_job(name: str) -> tuple[list[Tensor], list[dict[str, Tensor]], float]:
    """Losses on decoded bodies: values, and this rank's gradients beside those of the whole network."""
    mesh = Mesh.current(model=dist.get_world_size())
    flow = FlowSection(joint_position_weight=3.0, foot_contact_weight=0.5)
    whole, cut, plan = objectives(mesh, plan_of(None, name, mesh.model_size), flow, name)
    batch = random_batch(1, name)
    frames = int(batch.lengths.sum())
    losses, gradients = [], []
    for objective in (whole, cut):
        loss, parts = objective(batch, frames)
        loss.backward()
        losses.append(torch.cat([loss.detach().view(1), parts[-2:]]))
        gradients.append({n: p.grad for n, p in objective.generator.named_parameters() if p.grad is not None})
    mesh.sum_over_all(losses[1])
    expected = {n: plan.cut(n, value, mesh.model_rank) for n, value in gradients[0].items()}
    difference = replica_difference(gradients[1].items(), plan, mesh.model_group)
    return losses, [expected, gradients[1]], difference


@pytest.mark.parametrize("name", ["smpl24-rotmat", "hymotion-201"])
def test_losses_on_bodies_gather_rotations_alone(ranks: RankPool, name: str) -> None:
    for (whole, cut), (expected, found), difference in ranks.run(2, body_job, name):
        assert torch.all(whole > 1e-4) and torch.allclose(whole, cut, rtol=1e-5)
        assert expected.keys() == found.keys()
        largest = max(float(gradient.abs().max()) for gradient in expected.values())
        for n, gradient in expected.items():
            assert (gradient - found[n]).abs().max() <= 1e-5 * float(gradient.abs().max()) + 1e-6 * largest, n
        assert difference == 0


def sampling_job() -> float:
    mesh = Mesh.current(model=dist.get_world_size())
    _, cut, _ = objectives(mesh, plan_of(None, ranks=mesh.model_size), FlowSection(), "smpl24-rotmat")
    text = TextFeatures(
        torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(2)), torch.tensor([3, 2]), torch.ones(2, 128)
    )
    lengths = torch.tensor([9, 6])
    plain = sample(small_generator(), text, lengths, seed=3, steps=4, guidance=2.0)
    with whole_velocity(cut.generator):
        together = sample(cut.generator, text, lengths, seed=3, steps=4, guidance=2.0)
    assert plain.abs().max() > 0.1
    return float((together - plain).abs().max())


def test_a_cut_network_samples_like_a_plain_one(ranks: RankPool) -> None:
    assert max(ranks.run(2, sampling_job)) < 1e-4

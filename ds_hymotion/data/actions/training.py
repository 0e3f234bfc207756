"""Training of the action network on the corpus's own motions: from a cut, changed copy to what the clip is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from ds_hymotion.data.actions.features import CHANNELS, VALUES, mirrored
from ds_hymotion.data.actions.network import FRAMES, ActionNetwork
from ds_hymotion.randomness import generator, seed_of

BATCH = 48
FEWEST_STEPS, MOST_STEPS = 300, 1500
_RATE = 4e-3
_SHORTEST_CUT = 0.7  # of the stretch
_SLOWEST, _FASTEST = 0.85, 1.2
_NOISE = 0.1  # in standard deviations


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation [133] of action features, mirrored ones included."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, stretches: Sequence[Tensor]) -> Scale:
        """Over all frames; channels that hardly move (under 0.02 m, m/s or rad/s) are not blown up."""
        count = sum(map(len, stretches))
        both = [features.double() for one in stretches for features in (one, mirrored(one))]
        mean = torch.stack([features.sum(dim=0) for features in both]).sum(dim=0) / (2 * count)
        square = torch.stack([(features - mean).square().sum(dim=0) for features in both]).sum(dim=0) / (2 * count)
        return cls(mean.float(), square.sqrt().clamp(min=0.02).float())

    def __call__(self, features: Tensor) -> Tensor:
        """Standardised features, [..., 133]."""
        return (features - self.mean) / self.std


def steps_for(stretches: int) -> int:
    """Training steps for so many stretches: more for large corpora, always minutes on one core."""
    return min(MOST_STEPS, max(FEWEST_STEPS, stretches // 8))


def train_network(
    stretches: Sequence[Tensor],
    targets: Tensor,
    weights: Tensor,
    scale: Scale,
    seed: int,
    steps: int,
    progress: bool = False,
) -> ActionNetwork:
    """A network that gives every stretch its targets, whatever part of it is seen, at which pace, from which side.

    Adam on the weighted squared error; every batch draws stretches, cuts 70 to 100 % out of each, changes its pace
    by up to a fifth, mirrors half of them and adds noise. Run it in :func:`one_thread` for equal bits.

    Args:
        stretches: N action features [T, 133].
        targets, weights: [N, E]; where a weight is 0, nothing is asked for.
    """
    random = generator(seed, "action network")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "action network", "weights"))
        network = ActionNetwork(targets.shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    lengths = torch.tensor([len(stretch) for stretch in stretches])
    starts = lengths.cumsum(0) - lengths
    frames = torch.cat(list(stretches))
    network.train()
    for _ in tqdm(range(steps), desc="action network", unit="step", disable=not progress):
        drawn = torch.randint(len(stretches), (BATCH,), generator=random)
        seen = _copies(frames, starts[drawn], lengths[drawn], scale, random)
        error = (network(seen) - targets[drawn]).square() * weights[drawn]
        loss = error.sum() / weights[drawn].sum().clamp(min=1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def _copies(frames: Tensor, starts: Tensor, lengths: Tensor, scale: Scale, random: torch.Generator) -> Tensor:
    """Changed copies [B, 133, 64], standardised."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(starts), 1, generator=random)

    room = (lengths - 1)[:, None].float()
    span = room * uniform(_SHORTEST_CUT, 1.0)
    place = (room - span) * uniform(0.0, 1.0) + span * torch.linspace(0, 1, FRAMES)
    before = place.long()
    after = torch.minimum(before + 1, (lengths - 1)[:, None])
    first, second = (frames[starts[:, None] + index] for index in (before, after))
    seen = torch.lerp(first, second, (place - before)[..., None])
    pace = torch.ones(len(starts), 1, CHANNELS)
    pace[..., VALUES:] = uniform(_SLOWEST, _FASTEST)[..., None]
    seen = seen * pace
    seen = torch.where((uniform(0.0, 1.0) < 0.5)[..., None], mirrored(seen), seen)
    return (scale(seen) + _NOISE * torch.randn(seen.shape, generator=random)).transpose(1, 2)

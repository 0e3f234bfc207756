"""What a batch plan depends on, kept with a checkpoint: its position means nothing in another plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ds_hymotion.config.hymotion import HymotionSection
from ds_hymotion.data.corpus import Sample
from ds_hymotion.data.expert_ids import expert_ids
from ds_hymotion.data.mixture import Mixture, traits


def fingerprint(mixture: Mixture, settings: HymotionSection) -> dict[str, Any]:
    """Clips and weights of every corpus, and the settings that the plan follows; JSON-able.

    The number of ranks and the sizes of batches are not in it: a run may go on with others.
    """
    data = settings.data
    return {
        "corpora": {
            part.name: {
                "folder": str(part.corpus.folder),
                "training clips": len(part.samples),
                "frames": sum(sample.frames for sample in part.samples),
                "ids and lengths": _digest(part.samples),
                "an epoch takes": part.amount,
                **dict(traits(part.corpus)),
            }
            for part in mixture.parts
        },
        "settings": {
            "hymotion.training.seed": settings.training.seed,
            "hymotion.flow.timesteps_per_sample": settings.flow.timesteps_per_sample,
            "hymotion.data.bucket_bounds": list(data.bucket_bounds),
            "hymotion.data.short": data.short,
            "hymotion.data.length_jitter": data.length_jitter,
            **_of_experts(mixture, settings),
        },
    }


def _of_experts(mixture: Mixture, settings: HymotionSection) -> dict[str, Any]:
    """What the plan follows where the network has experts; nothing elsewhere."""
    experts = settings.experts
    if not experts.number:
        return {}
    ids = json.dumps(expert_ids(mixture.samples, experts.types, mixture.action_of))
    phases = [phase.model_dump() for phase in experts.phases]
    return {
        "hymotion.experts.names": list(experts.types),
        "hymotion.experts.phases": phases,
        **({"hymotion.experts.class_weights": experts.class_weights} if experts.class_weights else {}),
        "the clips' experts": hashlib.sha256(ids.encode()).hexdigest()[:16],
    }


def difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The first thing in which two fingerprints differ, with both values; "" where the plans are the same.

    Folders may differ: a corpus may have moved.
    """
    names = [", ".join(each["corpora"]) for each in (saved, own)]
    if names[0] != names[1]:
        return f"corpora {names[0]} there, {names[1]} here"
    for name, corpus in own["corpora"].items():
        before = saved["corpora"][name]
        for key, value in corpus.items():
            if key != "folder" and before.get(key) != value:
                return f"{name} ({corpus['folder']}): {key} {before.get(key)} there, {value} here"
    for key, value in own["settings"].items():
        if saved["settings"].get(key) != value:
            return f"{key} = {saved['settings'].get(key)} there, {value} here"
    return ""


def _digest(samples: Sequence[Sample]) -> str:
    rows = json.dumps([[sample.id, sample.frames] for sample in samples])
    return hashlib.sha256(rows.encode()).hexdigest()[:16]

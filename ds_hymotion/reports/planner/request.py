"""From the flags of launch/plan.py to a plan and its verdict."""

from __future__ import annotations

import re
from typing import Any

from ds_hymotion.config.hymotion import parse_section
from ds_hymotion.config.json_files import read_json
from ds_hymotion.config.run_config import RunConfig
from ds_hymotion.data.corpus import Corpus
from ds_hymotion.errors import UserError
from ds_hymotion.parallel.deepspeed_check import check_json
from ds_hymotion.reports.planner.load import Load
from ds_hymotion.reports.planner.plan import Plan, plan_run
from ds_hymotion.reports.planner.remedies import legal_axes, nearest
from ds_hymotion.reports.planner.table import describe, verdict
from ds_hymotion.tiers import GIB, tier_of

AXES_SHOWN = 6
MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(?:gib|gb|g)?", re.IGNORECASE)


def memory_of(text: str) -> int:
    """Bytes of ``24GB``, ``40GiB`` or ``24``: all of them GiB, as cards are sold.

    Raises:
        UserError: not a memory size.
    """
    found = MEMORY.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise UserError(f"--memory {text!r} is not a memory size; give GiB of a card, such as 24GB")
    return int(float(found[1]) * GIB)


def plan_text(path: str, gpus: int | None, memory: str | None, data_dir: str | None, fused: bool = True) -> str:
    """What ``launch/plan.py`` prints.

    Raises:
        UserError: what a run would refuse, and a number of GPUs that the axes do not divide, with legal axes.
    """
    raw, tier = read_json(path), tier_of(path)
    section = parse_section(raw.get("hymotion", {}), path)
    axes = section.parallel.model * section.parallel.pipeline
    least = axes * section.experts.size
    if gpus is not None and gpus < 1:
        raise UserError(f"--gpus {gpus} must be at least 1")
    gpus = gpus or (tier.devices if tier and tier.devices else least)
    corpus = Corpus.open(data_dir) if data_dir else None
    budget = memory_of(memory) if memory else int(tier.budget * GIB) if tier and tier.budget else None
    if gpus % axes:
        raise UserError(
            f"{path}: hymotion.parallel.model x pipeline = {axes} does not divide --gpus {gpus}; "
            f"{_proposal(raw, path, gpus, least, corpus, budget, fused)}"
        )
    config = RunConfig(raw, path, ranks=gpus)
    check_json(config)
    load = Load.of(config, corpus)
    plan = plan_run(config, load, fused)
    text = describe(plan, budget)
    if budget is not None and plan.peak > budget:
        text += f"\n{_advice(plan, raw, load, budget, fused)}"
    return text


def _proposal(
    raw: dict[str, Any], path: str, gpus: int, least: int, corpus: Corpus | None, budget: int | None, fused: bool
) -> str:
    """Legal axes of ``gpus`` ranks, and the first of them that fits."""
    # A batch size in all belongs to the ranks that were asked for.
    alone = RunConfig({key: value for key, value in raw.items() if key != "train_batch_size"}, path, ranks=least)
    check_json(alone)
    load = Load.of(alone, corpus)
    axes = legal_axes(plan_run(alone, load, fused), gpus)[:AXES_SHOWN]
    if not axes:
        return f"use a multiple of {least} GPUs"
    names = [f"data {data} x model {model} x pipe {pipe}" for data, model, pipe in axes]
    fitting = ""
    for (_, model, pipe), name in zip(axes, names):
        values = {"hymotion.parallel.model": model, "hymotion.parallel.pipeline": pipe}
        try:
            plan = plan_run(RunConfig(raw, path, values, gpus), load, fused)
        except UserError:
            continue
        if budget is not None and plan.peak <= budget:
            fitting = f", of which {name} fits {budget / GIB:.1f} GiB with {plan.peak / GIB:.1f}"
            break
    return f"legal axes: {'; '.join(names)}{fitting}"


def _advice(plan: Plan, raw: dict[str, Any], load: Load, budget: int, fused: bool) -> str:
    found = nearest(plan, raw, load, budget, fused)
    if found is None:
        other = " or the Lite network" if plan.config.hymotion.model.preset == "hy-motion-1.0" else ""
        return f"no change that was tried fits: use cards of more memory{other}"
    name, changed = found
    host = f", with {changed.host / GIB:.1f} GiB of host memory" if changed.host else ""
    return f"nearest change that fits: {name}{host}\n  then it {verdict(changed, budget)}"

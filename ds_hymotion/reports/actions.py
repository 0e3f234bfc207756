"""What sorting a corpus into action types gave: sizes, agreement with labels, silhouette, and a picture."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, silhouette_score

from ds_hymotion.data.actions.prompts import nearest_type
from ds_hymotion.data.actions.settings import ActionSettings
from ds_hymotion.data.actions.sorting import Sorted, sort_corpus
from ds_hymotion.data.corpus import ACTION_PICTURE, ACTION_REPORT, Corpus, text_cache_folder
from ds_hymotion.data.splits import SPLITS
from ds_hymotion.formats.tensors import write_json
from ds_hymotion.text.cache import TextCache

_MOST_PAIRED = 2000
"""The silhouette compares every clip with every other: so many drawn ones at most."""
_NO_LABEL = "(no label)"


def sort_with_report(folder: Path, settings: ActionSettings, say: Callable[[str], None] = print) -> Sorted:
    """Sort a corpus into action types; write the types, ``actions.json`` and ``actions.png``; print the table.

    Raises:
        UserError: no corpus, or too little in it for what is asked.
    """
    corpus = Corpus.open(folder)
    found = sort_corpus(corpus, settings, say)
    report = action_report(corpus, found, settings.seed)
    write_json(corpus.folder / ACTION_REPORT, report)
    say(action_table(report))
    if found.points is not None:
        draw_points(found, corpus.folder / ACTION_PICTURE)
        say(str(corpus.folder / ACTION_PICTURE))
    else:
        (corpus.folder / ACTION_PICTURE).unlink(missing_ok=True)  # of an earlier sorting
    return found


def action_report(corpus: Corpus, found: Sorted, seed: int = 0) -> dict[str, Any]:
    """The report as JSON. ``adjusted_rand``, ``named_as_labelled`` (the share of labelled clips whose type has
    their label's name) and ``prompts`` are given per split, where labels or captions allow.
    """
    types, ids = found.types, np.array(found.types.ids)
    rows = []
    for number, name in enumerate(types.names):
        mine = [sample for sample in corpus.samples if types.id_of(sample) == number]
        splits = {split: sum(sample.split == split for sample in mine) for split in SPLITS}
        frames = sum(sample.frames for sample in mine)
        rows.append(
            {"name": name, "from_labels": name in found.matched, "clips": len(mine), **splits, "frames": frames}
        )
    return {
        "mode": types.mode,
        "types": rows,
        "labelled": sum(label is not None for label in found.labels),
        "confusion": _confusion(found),
        "adjusted_rand": {split: _agreement(corpus, found, split) for split in SPLITS},
        "named_as_labelled": {split: _named(corpus, found, split) for split in SPLITS},
        "silhouette": _silhouette(found.points, ids, seed),
        "prompts": {encoder: _prompts(corpus, found, encoder) for encoder in types.captions},
    }


def action_table(report: dict[str, Any]) -> str:
    """The report in lines for the terminal."""
    names = [row["name"] for row in report["types"]]
    width = max(map(len, names))
    lines = [
        f"{'action type':<{max(width, 12)}} {'clips':>7} {'train':>7} {'val':>6} {'test':>6} {'frames':>10}  labels"
    ]
    confusion = report["confusion"]
    for number, row in enumerate(report["types"]):
        inside = sorted(((counts[number], label) for label, counts in confusion.items()), key=lambda c: (-c[0], c[1]))
        told = ", ".join(f"{label} {count:,}" for count, label in inside if count)
        lines.append(
            f"{row['name']:<{max(width, 12)}} {row['clips']:>7,} {row['train']:>7,} {row['val']:>6,} {row['test']:>6,} "
            f"{row['frames']:>10,}  {told}"
        )
    agreements = [f"{split} {value:.3f}" for split, value in report["adjusted_rand"].items() if value is not None]
    parts = [report["mode"]]
    if report["mode"] != "labels" and agreements:
        parts.append(f"adjusted Rand index against {report['labelled']:,} labels: {', '.join(agreements)}")
        shares = report["named_as_labelled"].items()
        right = ", ".join(f"{split} {100 * share:.0f} %" for split, share in shares if share is not None)
        parts.append(f"named as labelled: {right}")
    if report["silhouette"] is not None:
        parts.append(f"silhouette {report['silhouette']:.2f}")
    lines.append("; ".join(parts))
    for encoder, shares in report["prompts"].items():
        told = ", ".join(f"{split} {100 * share:.0f} %" for split, share in shares.items() if share is not None)
        lines.append(f"captions of {encoder} whose nearest type is their clip's: {told}")
    return "\n".join(lines)


def draw_points(found: Sorted, path: Path) -> None:
    """Draw the two main directions of the embedding as a PNG, coloured by type, and by label where there are any."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    assert found.points is not None
    types = [found.types.names[number] for number in found.types.ids]
    pictures = [("type", types, list(found.types.names))]
    if any(found.labels):
        known = sorted({label for label in found.labels if label}, key=_rank(found.types.names))
        pictures.append(("label", [label or _NO_LABEL for label in found.labels], [*known, _NO_LABEL]))
    flat = plane(found.points)
    figure, all_axes = pyplot.subplots(1, len(pictures), figsize=(6 * len(pictures), 5), dpi=110, squeeze=False)
    colours = pyplot.get_cmap("tab10" if len(found.types.names) <= 10 else "tab20")
    for axes, (title, words, legend) in zip(all_axes[0], pictures):
        for number, name in enumerate(legend):
            mine = np.array([word == name for word in words])
            if not mine.any():
                continue
            place = found.types.names.index(name) if name in found.types.names else len(found.types.names) + number
            colour = "lightgrey" if name == _NO_LABEL else colours(place % colours.N)
            axes.scatter(flat[mine, 0], flat[mine, 1], s=9, color=colour, label=f"{name} ({int(mine.sum())})")
        axes.set(title=f"by {title}", xlabel="first component", ylabel="second component")
        axes.legend(fontsize=7)
    figure.tight_layout()
    temporary = path.with_name("." + path.name + ".partial.png")
    figure.savefig(temporary)
    pyplot.close(figure)
    os.replace(temporary, path)


def plane(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Points [N, E] along their two main directions [N, 2]; zeros where there are fewer."""
    flat = np.zeros((len(points), 2))
    directions = min(2, *points.shape)
    if len(points) > 1:
        flat[:, :directions] = PCA(directions, svd_solver="full").fit_transform(points.astype(np.float64))
    return flat


def _rank(names: tuple[str, ...]) -> Callable[[str], tuple[int, str]]:
    return lambda name: (names.index(name) if name in names else len(names), name)


def _confusion(found: Sorted) -> dict[str, list[int]]:
    """Clips by label, and in each row by type."""
    known = sorted({label for label in found.labels if label}, key=_rank(found.types.names))
    table = {label: [0] * len(found.types.names) for label in [*known, _NO_LABEL]}
    for label, number in zip(found.labels, found.types.ids, strict=True):
        table[label or _NO_LABEL][number] += 1
    return {label: counts for label, counts in table.items() if any(counts)}


def _agreement(corpus: Corpus, found: Sorted, split: str) -> float | None:
    pairs = [(found.labels[sample.index], found.types.id_of(sample)) for sample in corpus.split(split)]
    known = [(label, number) for label, number in pairs if label is not None]
    return float(adjusted_rand_score(*zip(*known))) if len(known) > 1 else None


def _named(corpus: Corpus, found: Sorted, split: str) -> float | None:
    known = [sample for sample in corpus.split(split) if found.labels[sample.index] is not None]
    right = sum(found.types.name_of(sample) == found.labels[sample.index] for sample in known)
    return right / len(known) if known else None


def _silhouette(points: NDArray[np.float32] | None, ids: NDArray[np.int64], seed: int) -> float | None:
    if points is None:
        return None
    chosen = np.arange(len(points))
    if len(points) > _MOST_PAIRED:
        chosen = np.random.default_rng(seed).permutation(len(points))[:_MOST_PAIRED]
    kinds = len(set(ids[chosen].tolist()))
    return float(silhouette_score(points[chosen], ids[chosen])) if 1 < kinds < len(chosen) else None


def _prompts(corpus: Corpus, found: Sorted, encoder: str) -> dict[str, float | None]:
    """By split, the share of captions that lead to their own clip's type."""
    cache, centroids = TextCache(text_cache_folder(corpus.folder, encoder)), found.types.captions[encoder]
    shares: dict[str, float | None] = {}
    for split in SPLITS:
        asked = [
            (caption.text, found.types.id_of(sample))
            for sample in corpus.split(split)
            for caption in sample.captions
            if caption.text in cache
        ]
        hits = [nearest_type(centroids, cache.pooled([text])[0]) == number for text, number in asked]
        shares[split] = sum(hits) / len(hits) if hits else None
    return shares

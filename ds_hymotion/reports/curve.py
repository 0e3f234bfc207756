"""Pictures of a run's log."""

from __future__ import annotations

import os
from pathlib import Path

from ds_hymotion.errors import UserError
from ds_hymotion.training.log import read_log


def draw_loss_curve(run: Path, path: Path) -> None:
    """Draw training and evaluation loss of ``run`` over steps as a PNG.

    Raises:
        UserError: the run logged nothing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    train, held_out = read_log(run), read_log(run, "eval")
    if not train:
        raise UserError(f"{run / 'log.jsonl'}: no logged step to draw; give the folder of a run")
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    axes.plot([e["step"] for e in train], [e["loss"] for e in train], color="tab:blue", lw=1, label="training")
    if held_out:
        axes.plot(
            [e["step"] for e in held_out], [e["loss"] for e in held_out], "o-", color="tab:orange", label="evaluation"
        )
    axes.set(xlabel="step", ylabel="velocity loss", yscale="log", title=run.name)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.tight_layout()
    temporary = path.with_name("." + path.name + ".partial.png")
    figure.savefig(temporary)
    pyplot.close(figure)
    os.replace(temporary, path)

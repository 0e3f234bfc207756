"""Train or fine-tune: deepspeed launch/train.py --deepspeed_config FILE --data_dir CORPUS --output_dir RUN."""

from __future__ import annotations

from ds_hymotion.arguments import TrainArguments, parse_flags
from ds_hymotion.errors import command_line
from ds_hymotion.reports.curve import draw_loss_curve
from ds_hymotion.training.start import start_training


def main() -> None:
    """Parse the flags, run, and draw the loss curve."""
    arguments = parse_flags(TrainArguments)
    if run := start_training(arguments):
        draw_loss_curve(run, run / "loss.png")


if __name__ == "__main__":
    command_line(main)

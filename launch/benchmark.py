"""Measure what README claims: python launch/benchmark.py NAME [--json FILE] [--OPTION VALUE ...]"""

from __future__ import annotations

import sys

from ds_hymotion.errors import command_line


def main() -> None:
    """Run one benchmark."""
    from ds_hymotion.reports.measuring.dispatcher import run_benchmark

    run_benchmark(sys.argv[1:])


if __name__ == "__main__":
    command_line(main)

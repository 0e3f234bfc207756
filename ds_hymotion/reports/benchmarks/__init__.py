"""The one home of measured claims: a module per benchmark, run by ``launch/benchmark.py NAME``.

A benchmark is a module with ``def run(...) -> list[Row]``; the arguments of ``run``, which all have defaults, are its
options.
"""

"""How claims are measured: rows of figures, a command with its memory, and the dispatcher of the benchmarks."""

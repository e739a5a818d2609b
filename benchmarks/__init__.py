"""The speed figures, reproducible with one command: ``make bench`` or ``python -m benchmarks``."""

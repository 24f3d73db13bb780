"""Every number in the documentation comes from here: ``python -m benchmarks``."""

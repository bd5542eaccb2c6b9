"""Reproducible benchmarks, each of which also measures the obvious alternative in the same run."""

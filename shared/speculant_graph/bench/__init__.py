"""Reproducible benchmarks; each compares with the obvious alternative in the same run."""

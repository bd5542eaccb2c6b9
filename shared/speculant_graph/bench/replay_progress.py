"""The former place of :mod:`speculant_graph.bench.progress`."""

from speculant_graph.bench.progress import BenchProgress, show_progress

__all__ = ["BenchProgress", "show_progress"]

"""The former place of :mod:`speculant_graph.bench.plot`."""

from speculant_graph.bench.plot import check_plot

__all__ = ["check_plot"]

"""The former place of :mod:`speculant_graph.bench.traces`."""

from speculant_graph.bench.traces import Trace, Workload, read_workloads

__all__ = ["Trace", "Workload", "read_workloads"]

"""Builds: counting, merging and pruning; :mod:`speculant_graph.graph.build.builder` is the way in."""

"""Graph builds: counting, merging and pruning. Start with :mod:`speculant_graph.graph.build.builder`."""

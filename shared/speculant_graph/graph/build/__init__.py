"""Builds graphs: counts, merges and prunes n-grams. Start with :mod:`speculant_graph.graph.build.builder`."""

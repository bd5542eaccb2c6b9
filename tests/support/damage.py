"""Graphs of which words are wrong, as a damaged file has them."""

from __future__ import annotations

import numpy as np

from speculant_graph.graph.layout import Trie
from speculant_graph.graph.ngrams import NgramGraph


def damaged(graph: NgramGraph, random: np.random.Generator) -> NgramGraph:
    """Return a graph with fewer than thirty words changed to what is likely to lead a kernel astray."""
    words, table = graph.trie.words.copy(), graph.trie.table
    places = random.integers(int(table[:-1, 0].min()), words.size, random.integers(0, 30))
    values = random.choice([0, 1, 2**31, 2**32 - 1, 50, 300, 2**21 - 1], places.size)
    words[places] = values ^ random.integers(0, 2, places.size)
    words.flags.writeable = False
    return NgramGraph(Trie(words, table), graph.metadata)

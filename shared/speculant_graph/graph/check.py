"""Whether arrays and metadata are those of a graph: what a build guarantees, checked from what the file states."""

from __future__ import annotations

import numpy as np

from speculant_graph import _core
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.layout import CHILD, CUMULATIVE, Trie, UInt32Array
from speculant_graph.graph.metadata import GraphMetadata


def check_graph(trie: Trie, metadata: GraphMetadata) -> None:
    """Refuse a graph that no build writes, in time linear in its size.

    Raises:
        GraphFileError: something does not fit together.
    """
    damage = _core.find_damage(_core.Trie(trie.words, trie.table), trie.first)
    if damage is not None:
        raise _damaged(damage)
    _check_metadata([trie.level(length) for length in range(1, trie.max_order + 2)], metadata)


def _check_metadata(levels: list[UInt32Array], metadata: GraphMetadata) -> None:
    contexts = tuple(int(np.count_nonzero(np.diff(level[:, CHILD]))) for level in levels[:-1])
    if contexts != metadata.contexts_per_order:
        raise _damaged("it states another number of contexts")
    totals = [int(level[-1, CUMULATIVE]) for level in levels]
    if metadata.min_count > 1:
        is_right = max(totals) <= metadata.num_tokens
    elif metadata.document_boundaries:
        is_right = totals[0] == metadata.num_tokens and totals == sorted(totals, reverse=True)
    else:
        is_right = totals == [max(0, metadata.num_tokens - shorter) for shorter in range(len(totals))]
    if not is_right:
        raise _damaged("its counts do not add up to its tokens")


def _damaged(reason: str) -> GraphFileError:
    return GraphFileError(f"the graph is damaged ({reason}); copy its file or build it again")

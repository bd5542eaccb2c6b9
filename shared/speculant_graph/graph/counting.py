"""Counts all n-grams of a token stream, level by level.

The number of an n-gram is its rank among the n-grams of its length. The (n+1)-gram at a position is then the
pair (number of the n-gram there, next token), so one sort of 64-bit keys per level yields the next level.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from speculant_graph.errors import CorpusError, GraphError
from speculant_graph.graph.trie import MAX_TOKENS, Trie, UInt32Array, best_children


def count_ngrams(
    token_ids: UInt32Array,
    vocabulary_size: int,
    max_order: int,
    on_level: Callable[[int], None] | None = None,
) -> Trie:
    """Count the n-grams of 1 to ``max_order + 1`` tokens, the shorter ones up to the very end of the stream.

    Args:
        token_ids: the stream, shape ``[num_tokens]``.
        vocabulary_size: ids are below it.
        max_order: longest context.
        on_level: told the number of levels that are done, after each.

    Raises:
        CorpusError: the stream is empty.
        GraphError: it is too long, or has ids outside the vocabulary.
    """
    if not token_ids.size:
        raise CorpusError("the corpus has no tokens; name files that hold text")
    if token_ids.size > MAX_TOKENS:
        raise GraphError(f"the corpus has {token_ids.size} tokens and a graph holds {MAX_TOKENS}; split the corpus")
    if int(token_ids.max()) >= vocabulary_size:
        raise GraphError(
            f"token id {token_ids.max()} is outside a vocabulary of {vocabulary_size}; check the tokenizer"
        )
    level_tokens: list[UInt32Array] = []
    level_counts: list[UInt32Array] = []
    level_offsets: list[UInt32Array] = []
    keys = token_ids.astype(np.uint64)
    for length in range(1, max_order + 2):
        distinct, nodes, counts = np.unique(keys, return_inverse=True, return_counts=True)
        parents, tokens = np.divmod(distinct, np.uint64(vocabulary_size))
        if length > 1:
            num_parents = level_tokens[-1].size
            num_children = np.bincount(parents.astype(np.intp), minlength=num_parents)
            offsets = np.zeros(num_parents + 1, np.uint32)
            np.cumsum(num_children, out=offsets[1:])
            level_offsets.append(offsets)
        level_tokens.append(tokens.astype(np.uint32))
        level_counts.append(counts.astype(np.uint32))
        keys = nodes[: max(0, token_ids.size - length)].astype(np.uint64)
        keys *= np.uint64(vocabulary_size)
        keys += token_ids[length:]
        if on_level is not None:
            on_level(length)
    return Trie(
        token_ids=tuple(level_tokens),
        counts=tuple(level_counts),
        child_offsets=tuple(level_offsets),
        best_children=tuple(map(best_children, level_counts[1:], level_offsets)),
    )

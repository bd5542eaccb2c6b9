"""A graph's memory layout: a sorted forward trie of all n-grams of 1 to N+1 tokens, in 32-bit words.

Level L holds one record per distinct L-gram, in lexicographic order of token ids. The children of a record are the
tokens that follow its L-gram in the text. The children of a record are contiguous in level L+1 and sorted by token id.
A record of a level L <= N therefore also represents a context of order L, and its children are the context's successor
distribution.

.. code-block:: text

    level 1..N   token | best << 21, cumulative, child, link      16 bytes
    level N+1    token, cumulative, link                          12 bytes
    first        token id -> first record of level 1 with this token id or a higher one
    model        the words of a neural model, as in ``native/neural/model.hpp``; not every graph has one

One block contains these arrays in this order, each aligned to 64 bytes.

``cumulative`` is the running total of counts in the level: a record's count is the next record's total minus its own.
``child`` is the index of the first child; the row of children ends at the next record's first child. ``link`` is the
index of the n-gram without its first token, in level L-1. ``best`` is the offset of the most frequent child in the row
of children; all bits are set if the offset does not fit. Every level ends with one extra record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import GraphError

UInt32Array = NDArray[np.uint32]
UInt64Array = NDArray[np.uint64]
Int64Array = NDArray[np.int64]

TOKEN_BITS = 21
TOKEN_MASK = (1 << TOKEN_BITS) - 1
MAX_VOCABULARY = TOKEN_MASK
"""Exclusive upper bound of token ids: an id is stored in 21 bits, and the keys of a build store the id plus 1."""
MAX_NODES = 2**32 - 2
"""Maximum number of tokens in a corpus, and of n-grams in a level, because counts and indices have 32 bits."""

TOKEN, CUMULATIVE, CHILD, LINK = 0, 1, 2, 3
"""Column indices of the words in a record."""
INNER_WORDS, LEAF_WORDS = 4, 3
"""Number of words in a record of levels 1 to N, and in a record of level N+1."""
_ALIGNMENT_WORDS = 16


@dataclass(frozen=True, slots=True)
class Trie:
    """The arrays of a graph in one block of 32-bit words."""

    words: UInt32Array
    """All arrays, at the offsets of :func:`array_offsets`, shape ``[num_words]``; read-only, mapped or in memory."""
    table: Int64Array
    """Positions and sizes of the arrays, shape ``[N + 3, 2]``. The first N + 1 rows are (first word, number of n-grams)
    of the levels 1 to N+1. The next row is (first word, vocabulary size) of ``first``; the last row is (N, number of
    words)."""
    num_model_words: int = 0
    """Number of words of the neural model, which is the last array; 0 without a model."""

    @property
    def max_order(self) -> int:
        """Longest context N, in tokens."""
        return int(self.table.shape[0]) - 3

    @property
    def nodes_per_level(self) -> tuple[int, ...]:
        """Number of distinct n-grams of each length, 1 to N+1 tokens."""
        return tuple(self.table[: self.max_order + 1, 1].tolist())

    @property
    def vocabulary_size(self) -> int:
        """Size of the vocabulary: token ids are below it."""
        return int(self.table[self.max_order + 1, 1])

    @property
    def first(self) -> UInt32Array:
        """The array ``first``, shape ``[vocabulary_size + 1]``."""
        start, size = self.table[self.max_order + 1].tolist()
        return self.words[start : start + size + 1]

    @property
    def model(self) -> UInt32Array | None:
        """The neural model as 32-bit words; None without a model."""
        return self.words[-self.num_model_words :] if self.num_model_words else None

    def level(self, length: int) -> UInt32Array:
        """Return the records of the n-grams of one length, and the extra last record, shape ``[n + 1, 3 or 4]``."""
        start, size = self.table[length - 1].tolist()
        width = record_words(length, self.max_order)
        return self.words[start : start + (size + 1) * width].reshape(-1, width)


def record_words(length: int, max_order: int) -> int:
    """Return the number of words in a record of n-grams of this length."""
    return INNER_WORDS if length <= max_order else LEAF_WORDS


def array_offsets(nodes_per_level: tuple[int, ...], vocabulary_size: int, num_model_words: int = 0) -> tuple[int, ...]:
    """Return the index of every array's first word, and the total number of words.

    The arrays are the levels in order, then ``first``, then the model if there is one.
    """
    max_order = len(nodes_per_level) - 1
    levels = [(size + 1) * record_words(length, max_order) for length, size in enumerate(nodes_per_level, start=1)]
    offsets, end = [], 0
    for num_words in (*levels, vocabulary_size + 1, *((num_model_words,) if num_model_words else ())):
        offsets.append(-(-end // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS)
        end = offsets[-1] + num_words
    return (*offsets, end)


def trie_of(
    words: UInt32Array, nodes_per_level: tuple[int, ...], vocabulary_size: int, num_model_words: int = 0
) -> Trie:
    """Assemble a trie.

    Args:
        words: the block, at least as long as :func:`array_offsets` returns.
        nodes_per_level: numbers of distinct n-grams of 1 to N+1 tokens.
        vocabulary_size: size of the vocabulary; all token ids are below it.
        num_model_words: number of words of the neural model.
    """
    *offsets, num_words = array_offsets(nodes_per_level, vocabulary_size, num_model_words)
    offsets = offsets[: len(nodes_per_level) + 1]
    sizes = (*nodes_per_level, vocabulary_size)
    table = np.array([*zip(offsets, sizes, strict=True), (len(nodes_per_level) - 1, num_words)], np.int64)
    table.flags.writeable = False
    return Trie(words[:num_words], table, num_model_words)


def require_vocabulary(vocabulary_size: int) -> None:
    """Raise an error if the ids of a vocabulary do not fit into a record.

    Raises:
        GraphError: the vocabulary is too large.
    """
    if not 0 < vocabulary_size <= MAX_VOCABULARY:
        raise GraphError(
            f"a vocabulary of {vocabulary_size} ids does not fit: a graph holds ids below {MAX_VOCABULARY}; "
            "use another tokenizer"
        )

"""Keys: n-grams of N+1 tokens packed into words, sorted streams of weighted keys, and their records on disk.

A token is stored as its id plus 1 in ``bits`` bits; 0 means the end of the stream or of a document. Sorting keys word
by word gives the lexicographic order of their n-grams, each n-gram before its continuations.

A graph is the sum of its keys: every (N+1)-gram, plus shorter n-grams that end a document or whose continuations were
pruned. Merging, updating and pruning therefore use the same code as a build to write records from keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speculant_graph import _core
from speculant_graph.files import write_all
from speculant_graph.graph.layout import INNER_WORDS, Int64Array, Trie, UInt64Array

_KEYS_AT_A_TIME = 1 << 16
_RECORDS = 1 << 15
"""Number of records that one write adds to a level; this many fit into a CPU core's cache."""
_WORD_BITS = 63  # not 64, so that every word is also non-negative as a signed number


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The layout of packed n-grams."""

    length: int
    """Tokens per key, N+1."""
    bits: int
    """Bits per token."""
    per_word: int
    """Tokens per word; the first token is in the highest bits."""
    num_words: int
    """Words per key."""

    @classmethod
    def of(cls, vocabulary_size: int, max_order: int) -> KeyLayout:
        """Return the layout for a vocabulary size and a maximum context length."""
        length, bits = max_order + 1, vocabulary_size.bit_length()
        per_word = min(length, _WORD_BITS // bits)
        return cls(length, bits, per_word, -(-length // per_word))

    @property
    def bytes(self) -> int:
        """Size of a key in bytes."""
        return 8 * self.num_words

    def pack(self, ngram: tuple[int, ...]) -> list[int]:
        """Return the words that an n-gram of up to N+1 tokens is packed into."""
        values = [*(token_id + 1 for token_id in ngram), *(0,) * (self.per_word * self.num_words - len(ngram))]
        words = []
        for start in range(0, len(values), self.per_word):
            word = 0
            for value in values[start : start + self.per_word]:
                word = word << self.bits | value
            words.append(word)
        return words


@dataclass(frozen=True, slots=True)
class WeightedKeys:
    """A chunk of a stream of ascending keys, with a weight for each key."""

    keys: UInt64Array
    """The keys, shape ``[n, num_words]``."""
    weights: Int64Array
    """Number of occurrences per key, shape ``[n]``; negative to subtract occurrences."""


KeyStream = Iterator[WeightedKeys]


def keys_of(trie: Trie, layout: KeyLayout, min_count: int = 1) -> KeyStream:
    """Yield the keys of a graph in ascending order.

    Args:
        trie: the graph's arrays.
        layout: layout of keys.
        min_count: minimum count; n-grams with lower counts are left out.
    """
    reader = _core.KeyReader(_core.Trie(trie.words, trie.table), layout.bits, min_count)
    while True:
        keys = np.empty((_KEYS_AT_A_TIME, layout.num_words), np.uint64)
        weights = np.empty(_KEYS_AT_A_TIME, np.int64)
        num_keys = reader.read(keys, weights)
        if not num_keys:
            return
        yield WeightedKeys(keys[:num_keys], weights[:num_keys])


def keys_of_ngrams(ngrams: dict[tuple[int, ...], int], layout: KeyLayout) -> KeyStream:
    """Yield the keys and weights of a few n-grams of up to N+1 tokens; leave out zero weights."""
    packed = sorted((layout.pack(ngram), weight) for ngram, weight in ngrams.items() if weight)
    if packed:
        keys, weights = zip(*packed, strict=True)
        yield WeightedKeys(np.array(keys, np.uint64), np.array(weights, np.int64))


def merged(first: KeyStream, second: KeyStream) -> KeyStream:
    """Merge two streams: yield their keys in ascending order, with the weights of equal keys summed."""
    ours, theirs = next(first, None), next(second, None)
    row, other_row = 0, 0
    while ours is not None and theirs is not None:
        most = ours.weights.size + theirs.weights.size
        keys, weights = np.empty((most, ours.keys.shape[1]), np.uint64), np.empty(most, np.int64)
        num_keys, row, other_row = _core.merge_keys(
            ours.keys, ours.weights, theirs.keys, theirs.weights, row, other_row, keys, weights
        )
        if num_keys:
            yield WeightedKeys(keys[:num_keys], weights[:num_keys])
        if row == ours.weights.size:
            ours, row = next(first, None), 0
        if other_row == theirs.weights.size:
            theirs, other_row = next(second, None), 0
    for rest, start, stream in ((ours, row, first), (theirs, other_row, second)):
        if rest is not None:
            yield WeightedKeys(rest.keys[start:], rest.weights[start:])
            yield from stream


@dataclass(frozen=True, slots=True)
class PartRecords:
    """The records on disk of one part of the keys; each part numbers its records from 0."""

    prefix: tuple[int, ...]
    """Common prefix of all keys of the part: token ids plus 1."""
    num_nodes: tuple[int, ...]
    """Number of records per level."""
    totals: tuple[int, ...]
    """Sum of the records' counts per level."""
    files: tuple[Path, ...]
    """One file per level, with 16-byte records; records of the last level have child index 0."""


def emitter_bytes(layout: KeyLayout) -> int:
    """Return the bytes of memory that :func:`emit_records` needs."""
    return layout.length * _RECORDS * INNER_WORDS * 4


def emit_records(
    keys: Iterable[tuple[UInt64Array, Int64Array | None]], layout: KeyLayout, stem: Path, prefix: tuple[int, ...] = ()
) -> PartRecords:
    """Write the records of sorted keys for all levels in one pass.

    The number of tokens that a key shares with the previous key determines on which levels a new record starts.

    Args:
        keys: ascending keys in chunks of shape ``[n, num_words]``, each chunk with its counts, shape ``[n]``. If the
            counts are None, each key has a count of 1.
        layout: layout of keys.
        stem: path of the files, without the suffix for the level: the files are named ``stem.1``, ``stem.2``, ...
        prefix: common prefix of all keys.
    """
    emitter = _core.Emitter(layout.length, layout.bits, _RECORDS)
    files = tuple(stem.with_name(f"{stem.name}.{length}") for length in range(1, layout.length + 1))
    outputs = [file.open("wb", buffering=0) for file in files]
    try:
        for portion, weights in keys:
            row = 0
            while row < len(portion):
                row = emitter.emit(portion, weights, row)
                for output, records in zip(outputs, emitter.records, strict=True):
                    if len(records):
                        write_all(output, records)
    finally:
        for output in outputs:
            output.close()
    return PartRecords(prefix, tuple(emitter.num_nodes), tuple(emitter.totals), files)

"""Keys: n-grams of N+1 tokens packed into words, streams of sorted ones with weights, and their records on disk.

A token takes ``bits`` bits as its id plus 1; 0 stands for the end of the stream or of a document. The order of keys,
word by word, is the lexicographic order of their n-grams, shorter ones first.

A graph is the sum of its keys: every (N+1)-gram, and every shorter n-gram as often as it ended with a document or lost
its continuations to pruning. So union, update and pruning need no loop of their own that writes records: their keys
go to the one that a build uses.
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
"""Records of a level that are written at a time; they stay in a core's cache until then."""
_WORD_BITS = 63  # 64 would do; one spare bit keeps every word non-negative as a signed number


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """How n-grams are packed."""

    length: int
    """Tokens of a key, N+1."""
    bits: int
    """Bits of a token."""
    per_word: int
    """Tokens in a word, the first one in the highest bits."""
    num_words: int
    """Words of a key."""

    @classmethod
    def of(cls, vocabulary_size: int, max_order: int) -> KeyLayout:
        """Return the layout for a vocabulary and a longest context."""
        length, bits = max_order + 1, vocabulary_size.bit_length()
        per_word = min(length, _WORD_BITS // bits)
        return cls(length, bits, per_word, -(-length // per_word))

    @property
    def bytes(self) -> int:
        """Size of a key."""
        return 8 * self.num_words

    def pack(self, ngram: tuple[int, ...]) -> list[int]:
        """Return the words of one n-gram of up to N+1 tokens."""
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
    """Some keys of a stream, ascending."""

    keys: UInt64Array
    """Shape ``[n, num_words]``."""
    weights: Int64Array
    """Shape ``[n]``, how often each occurs; below zero to take something away."""


KeyStream = Iterator[WeightedKeys]


def keys_of(trie: Trie, layout: KeyLayout, min_count: int = 1) -> KeyStream:
    """Yield the keys of a graph, ascending.

    Args:
        trie: the graph's arrays.
        layout: how keys are packed.
        min_count: n-grams with lower counts are pruned.
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
    """Yield the keys of a few n-grams of up to N+1 tokens with their weights, zero weights left out."""
    packed = sorted((layout.pack(ngram), weight) for ngram, weight in ngrams.items() if weight)
    if packed:
        keys, weights = zip(*packed, strict=True)
        yield WeightedKeys(np.array(keys, np.uint64), np.array(weights, np.int64))


def merged(first: KeyStream, second: KeyStream) -> KeyStream:
    """Yield the keys of two streams, ascending, the weights of equal keys added."""
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
    """The records of a part of the keys on disk, numbered from its own beginning."""

    prefix: tuple[int, ...]
    """What all keys of the part begin with: token ids plus 1."""
    num_nodes: tuple[int, ...]
    """Records of every level."""
    totals: tuple[int, ...]
    """Sum of counts of every level."""
    files: tuple[Path, ...]
    """One file per level of 16-byte records; those of the last level have the child 0."""


def emitter_bytes(layout: KeyLayout) -> int:
    """Return the memory that emitting takes."""
    return layout.length * _RECORDS * INNER_WORDS * 4


def emit_records(
    keys: Iterable[tuple[UInt64Array, Int64Array | None]], layout: KeyLayout, stem: Path, prefix: tuple[int, ...] = ()
) -> PartRecords:
    """Write the records of sorted keys, of all levels in one pass.

    How many tokens a key shares with the key before it determines which levels begin a new record.

    Args:
        keys: ascending, in portions of shape ``[n, num_words]``, with how often each occurs, ``[n]``; None: once each.
        layout: how they are packed.
        stem: the files are named ``stem.1``, ``stem.2``, ...
        prefix: what all of them begin with.
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

"""Keys: n-grams of N+1 tokens packed into words, gathered from a token stream and sorted.

A token takes ``bits`` bits as its id plus 1; 0 stands for the end of the stream or of a document. The order of keys,
word by word, is the lexicographic order of their n-grams, shorter ones first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import Int64Array, UInt32Array, UInt64Array

_WORD_BITS = 63  # 64 would do; one spare bit keeps every word non-negative as a signed number
_INSERTION = 48
_WIDE_DIGITS = 8192
_SEPARATOR = np.uint32(DOCUMENT_SEPARATOR)


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


@inlined
def value_at(token_ids: UInt32Array, position: Integer) -> Any:
    """Return a token's value in a key: its id plus 1, or 0 past the end and at a separator."""
    if position >= token_ids.size or token_ids[position] == _SEPARATOR:
        return np.uint64(0)
    return np.uint64(token_ids[position]) + np.uint64(1)


@inlined
def key_token(keys: UInt64Array, row: Integer, depth: Integer, bits: Integer, per_word: Integer) -> Any:
    """Return the value of one token of a key."""
    shift = np.uint64(bits * (per_word - 1 - depth % per_word))
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return (keys[row, depth // per_word] >> shift) & mask


@compiled
def gather_keys(
    token_ids: UInt32Array,
    prefix: UInt64Array,
    low: int,
    high: int,
    length: int,
    bits: int,
    per_word: int,
    keys: UInt64Array,
) -> int:
    """Pack the n-grams of all positions whose next values are ``prefix`` and then one of ``low`` to ``high - 1``.

    Returns:
        Their number; ``keys``, shape ``[at least so many, num_words]``, holds them in the order of positions.
    """
    found = 0
    depth = prefix.size
    num_words = keys.shape[1]
    for position in range(token_ids.size):
        value = value_at(token_ids, position + depth)
        if value < low or value >= high:
            continue
        matches = depth == 0 or value_at(token_ids, position) != 0
        for index in range(depth):
            matches = matches and value_at(token_ids, position + index) == prefix[index]
        if not matches:
            continue
        place = position
        remaining = length
        for word_index in range(num_words):
            word = np.uint64(0)
            for _ in range(per_word):
                word <<= np.uint64(bits)
                if remaining > 0:
                    value = value_at(token_ids, place)
                    place += 1
                    remaining = remaining - 1 if value != 0 else 0
                    word |= value
            keys[found, word_index] = word
        found += 1
    return found


@compiled
def count_values(token_ids: UInt32Array, prefix: UInt64Array, counts: Int64Array) -> None:
    """Count which values follow a prefix: ``counts[value] += 1``, shape ``[vocabulary_size + 1]``."""
    depth = prefix.size
    for position in range(token_ids.size):
        matches = value_at(token_ids, position) != 0
        for index in range(depth):
            matches = matches and value_at(token_ids, position + index) == prefix[index]
        if matches:
            counts[np.int64(value_at(token_ids, position + depth))] += 1


@inlined
def _is_less(keys: UInt64Array, row: Integer, words: UInt64Array) -> Any:
    for index in range(words.size):
        if words[index] != keys[row, index]:
            return words[index] < keys[row, index]
    return False


@inlined
def _insertion_sort(keys: UInt64Array, start: Integer, stop: Integer, words: UInt64Array) -> None:
    for row in range(start + 1, stop):
        for index in range(words.size):
            words[index] = keys[row, index]
        place = row
        while place > start and _is_less(keys, place - 1, words):
            for index in range(words.size):
                keys[place, index] = keys[place - 1, index]
            place -= 1
        for index in range(words.size):
            keys[place, index] = words[index]


@inlined
def _scatter(
    source: UInt64Array,
    target: UInt64Array,
    start: Integer,
    stop: Integer,
    word: Integer,
    shift: Any,
    mask: Any,
    places: Int64Array,
) -> None:
    num_words = source.shape[1]
    if num_words == 2:
        for row in range(start, stop):
            digit = (source[row, word] >> shift) & mask
            place = places[digit]
            places[digit] = place + 1
            target[place, 0] = source[row, 0]
            target[place, 1] = source[row, 1]
    else:
        for row in range(start, stop):
            digit = (source[row, word] >> shift) & mask
            place = places[digit]
            places[digit] = place + 1
            for index in range(num_words):
                target[place, index] = source[row, index]


@compiled
def sort_keys(
    keys: UInt64Array,
    spare: UInt64Array,
    num_keys: int,
    depth: int,
    low: int,
    high: int,
    length: int,
    bits: int,
    per_word: int,
) -> None:
    """Sort keys in place.

    They are scattered by the token at ``depth`` first, so that the radix passes over the tokens behind it work on
    buckets that mostly fit into a core's cache.

    Args:
        keys: shape ``[>= num_keys, num_words]``.
        spare: same shape, overwritten.
        num_keys: keys to sort.
        depth: number of leading tokens that all keys share.
        low: lowest value of the next token.
        high: all its values are below it.
        length: tokens of a key.
        bits: bits of a token.
        per_word: tokens in a word.
    """
    num_words = keys.shape[1]
    bounds = np.zeros(high - low + 1, np.int64)
    for row in range(num_keys):
        bounds[np.int64(key_token(keys, row, depth, bits, per_word)) - low + 1] += 1
    for bucket in range(high - low):
        bounds[bucket + 1] += bounds[bucket]
    places = bounds[:-1].copy()
    for row in range(num_keys):
        first = np.int64(key_token(keys, row, depth, bits, per_word)) - low
        target_row = places[first]
        places[first] = target_row + 1
        for index in range(num_words):
            spare[target_row, index] = keys[row, index]
    first_word = depth // per_word
    first_bits = bits * (per_word - 1 - depth % per_word)
    unused_bits = bits * (per_word * num_words - length)
    histogram = np.empty((8, 2048), np.int64)
    words = np.empty(num_words, np.uint64)
    for bucket in range(high - low):
        start, stop = bounds[bucket], bounds[bucket + 1]
        size = stop - start
        if size == 0:
            continue
        if size <= _INSERTION:
            _insertion_sort(spare, start, stop, words)
            for row in range(start, stop):
                for index in range(num_words):
                    keys[row, index] = spare[row, index]
            continue
        source, target = spare, keys
        is_in_keys = False
        widest = 11 if size >= _WIDE_DIGITS else 8
        for word in range(num_words - 1, first_word - 1, -1):
            bottom = unused_bits if word == num_words - 1 else 0
            top = first_bits if word == first_word else bits * per_word
            if top <= bottom:
                continue
            passes = (top - bottom + widest - 1) // widest
            width = (top - bottom + passes - 1) // passes
            mask = np.uint64((1 << width) - 1)
            histogram[:passes, : 1 << width] = 0
            for row in range(start, stop):
                rest = source[row, word] >> np.uint64(bottom)
                for digit in range(passes):
                    histogram[digit, rest & mask] += 1
                    rest >>= np.uint64(width)
            for digit in range(passes):
                counts = histogram[digit]
                total: Integer = start
                is_constant = False
                for value in range(1 << width):
                    count = counts[value]
                    is_constant = is_constant or count == size
                    counts[value] = total
                    total += count
                if is_constant:
                    continue
                _scatter(source, target, start, stop, word, np.uint64(bottom + digit * width), mask, counts)
                source, target = target, source
                is_in_keys = not is_in_keys
        if not is_in_keys:
            for row in range(start, stop):
                for index in range(num_words):
                    keys[row, index] = spare[row, index]

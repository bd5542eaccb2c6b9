"""A sequence of tokens that finds its own past: where did the last few tokens stand before?

A ring of tokens in which every position links to the previous one that ended in the same tokens, as dictionary
compressors do (hash chains). Adding a token takes a few writes whatever the length, forgetting takes none: positions
that the ring has overwritten are recognised by their number. Hash collisions put foreign positions into a chain; every
match is compared token by token, so they cost time and nothing else.

There is one chain per length: a long one finds old places of a rare phrase, a short one the
newest places of a frequent token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from speculant_graph.graph.compiled import Integer, compiled, embedded, inlined
from speculant_graph.graph.layout import MAX_VOCABULARY, Int64Array

Int32Array = NDArray[np.int32]

WINDOW = 32
"""Longest match that is measured, in tokens; longer ones count as this long."""
SEPARATOR = -1
"""Stands between sequences in one history; no context contains it."""
NOTHING = -2
"""Stands in a window where the sequence has not begun, and for what is no token; equal to nothing."""

SESSION_CHAINS = (4, 1)
"""Lengths of the chains of one sequence."""
LEARNED_CHAINS = (4, 2)
"""Lengths of the chains of many sequences: single tokens are too frequent there to say anything."""

_FIRST_CAPACITY = 512
_MULTIPLIER = np.int64(0x1E3779B97F4A7C15)


class HistoryArrays(NamedTuple):
    """What kernels see of a history."""

    tokens: Int32Array
    """The ring, shape ``[capacity]``, a power of two."""
    chains: Int32Array
    """Distance from a position to the one before in its chain, 0 for none, shape ``[chains, capacity]``."""
    heads: Int64Array
    """Newest position of every chain, -1 for none, shape ``[chains, buckets]``, a power of two."""
    lengths: Int64Array
    """Tokens that positions of a chain have in common, longest first, shape ``[chains]``."""
    bounds: Int64Array
    """(tokens added so far, tokens that may be looked back on), shape ``[2]``."""


class History:
    """Tokens in order, the newest ones kept."""

    def __init__(self, max_tokens: int, lengths: tuple[int, ...] = SESSION_CHAINS) -> None:
        """Make an empty history.

        Args:
            max_tokens: most tokens kept; memory grows with what is added, 28 bytes for each, of a power of two.
            lengths: lengths of the chains, longest first.
        """
        self._max_tokens = max_tokens
        self._lengths = np.array(lengths, np.int64)
        self.arrays = self._make(min(_power_of_two(max_tokens), _FIRST_CAPACITY))

    def __len__(self) -> int:
        """Tokens added so far, forgotten ones included."""
        return int(self.arrays.bounds[0])

    @property
    def num_bytes(self) -> int:
        """Memory taken."""
        return sum(array.nbytes for array in self.arrays)

    def append(self, token_ids: Int64Array) -> None:
        """Add tokens, shape ``[n]``; takes about 20 ns for each."""
        self.reserve(token_ids.size)
        append_tokens(self.arrays, token_ids)

    def reserve(self, num_tokens: int) -> None:
        """Make room for so many tokens more, so that kernels may add them."""
        capacity = self.arrays.tokens.size
        if capacity >= self._max_tokens:
            return
        wanted = min(len(self) + num_tokens, self._max_tokens)
        if wanted <= capacity:
            return
        kept = self.latest(capacity)
        first = len(self) - kept.size
        self.arrays = self._make(_power_of_two(wanted))
        self.arrays.bounds[0] = first
        append_tokens(self.arrays, kept)

    def latest(self, num_tokens: int) -> Int64Array:
        """Return the newest tokens that are kept, oldest first, shape ``[at most num_tokens]``."""
        size = min(len(self), num_tokens, self.arrays.tokens.size, self._max_tokens)
        places = np.arange(len(self) - size, len(self)) & (self.arrays.tokens.size - 1)
        newest: Int64Array = self.arrays.tokens[places].astype(np.int64)
        return newest

    def _make(self, capacity: int) -> HistoryArrays:
        num_chains = self._lengths.size
        return HistoryArrays(
            tokens=np.full(capacity, SEPARATOR, np.int32),
            chains=np.zeros((num_chains, capacity), np.int32),
            heads=np.full((num_chains, capacity), -1, np.int64),
            lengths=self._lengths,
            bounds=np.array([0, min(capacity, self._max_tokens)], np.int64),
        )


def as_tokens(token_ids: object) -> Int64Array:
    """Return tokens as an array for kernels; what can't be an id of a vocabulary becomes :data:`NOTHING`."""
    tokens = np.ascontiguousarray(token_ids, np.int64)
    return np.where((tokens < 0) | (tokens >= MAX_VOCABULARY), NOTHING, tokens)


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 1).bit_length()


@inlined
def hash_of(window: Int64Array, end: Integer, length: Integer, size: Integer) -> Any:
    """Return the bucket of the ``length`` tokens of ``window`` before ``end``; ``size`` is a power of two."""
    value = np.int64(length)
    for back in range(1, length + 1):
        value = (value ^ (window[end - back] + 3)) * _MULTIPLIER
        value ^= value >> np.int64(29)
    return (value >> np.int64(8)) & (size - 1)


@embedded
def fill_window(history: HistoryArrays, window: Int64Array) -> None:
    """Write the last tokens of a history to ``window[:WINDOW]``, :data:`NOTHING` where there are none."""
    count = history.bounds[0]
    mask = history.tokens.size - 1
    kept = min(count, history.bounds[1])
    for back in range(1, WINDOW + 1):
        token_id = np.int64(history.tokens[(count - back) & mask]) if back <= kept else np.int64(NOTHING)
        window[WINDOW - back] = token_id if token_id >= 0 else NOTHING


@embedded
def append_token(history: HistoryArrays, window: Int64Array, token_id: int) -> None:
    """Add a token to a history that has room for it or has reached its bound, and to ``window``, its last tokens."""
    for place in range(WINDOW - 1):
        window[place] = window[place + 1]
    window[WINDOW - 1] = token_id if token_id >= 0 else NOTHING
    position = history.bounds[0]
    place = position & (history.tokens.size - 1)
    # What is no token is stored as one thing and looked for as another, so that it never matches itself.
    history.tokens[place] = token_id if token_id >= 0 else SEPARATOR
    for chain in range(history.lengths.size):
        history.chains[chain, place] = 0
        length = history.lengths[chain]
        if position + 1 >= length:
            bucket = hash_of(window, WINDOW, length, history.heads.shape[1])
            head = history.heads[chain, bucket]
            if head >= 0 and position - head < history.tokens.size:
                history.chains[chain, place] = position - head
            history.heads[chain, bucket] = position
    history.bounds[0] = position + 1


@compiled
def append_tokens(history: HistoryArrays, token_ids: Int64Array) -> None:
    """Add tokens to a history that has room for them or has reached its bound."""
    window = np.empty(WINDOW, np.int64)
    fill_window(history, window)
    for token_id in token_ids:
        append_token(history, window, token_id)

"""Entries of histories: the places that end in the same tokens, and those that match but for the last one."""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.history import WINDOW, HistoryArrays, hash_of
from speculant_graph.draft.sources import (
    GAP,
    MAX_DISTINCT,
    MAX_MATCHES,
    MIN_GAP_MATCH,
    Entries,
    close_entry,
)
from speculant_graph.graph.compiled import Integer, embedded, inlined
from speculant_graph.graph.layout import Int64Array


@embedded
def find_places(
    history: HistoryArrays,
    window: Int64Array,
    end: Integer,
    which: Integer,
    chain: Integer,
    count: Integer,
    entries: Entries,
) -> Any:
    """Add the places of one chain that end in the same tokens as ``window[:end]``, the longest matches first.

    Args:
        history: where to look.
        window: tokens; those before ``end`` are the context.
        end: where the next token would stand.
        which: 0 for the session, 1 for what was learned.
        chain: the chain to walk; what the ones before it have found is not found again.
        count: places found by those.
        entries: ``places`` takes the result.

    Returns:
        How many places there are now.
    """
    positions, lengths = entries.places[2 * which], entries.places[2 * which + 1]
    first = count
    ring = history.tokens
    mask = ring.size - 1
    newest = history.bounds[0] - 1
    oldest = history.bounds[0] - min(history.bounds[0], history.bounds[1])
    least = history.lengths[chain]
    limit = history.lengths[chain - 1] if chain > 0 else np.int64(WINDOW + 1)
    position = history.heads[chain, hash_of(window, end, least, history.heads.shape[1])]
    for _ in range(MAX_MATCHES):
        if position < oldest or position < 0:
            break
        if position < newest:
            length = np.int64(0)
            most = min(np.int64(WINDOW), position - oldest + 1)
            while length < most and np.int64(ring[(position - length) & mask]) == window[end - 1 - length]:
                length += 1
            if least <= length < limit:
                place = count
                while place > first and lengths[place - 1] < length:
                    lengths[place] = lengths[place - 1]
                    positions[place] = positions[place - 1]
                    place -= 1
                lengths[place] = length
                positions[place] = position + 1
                count += 1
        distance = np.int64(history.chains[chain, position & mask])
        if distance == 0:
            break
        position -= distance
    return count


@inlined
def _count_token(
    tokens: Int64Array,
    counts: Int64Array,
    start: Integer,
    size: Integer,
    token_id: Integer,
) -> Any:
    """Count a token in a tally and return the tally's new size; what does not fit is dropped."""
    for index in range(start, start + size):
        if tokens[index] == token_id:
            counts[index] += 1
            return size
    if size < MAX_DISTINCT:
        tokens[start + size] = token_id
        counts[start + size] = 1
        return size + 1
    return size


@embedded
def add_gap(history: HistoryArrays, window: Int64Array, end: Integer, entries: Entries) -> None:
    """Add the places that match all but the last token."""
    chain = history.lengths.size - 1
    ring = history.tokens
    mask = ring.size - 1
    last = window[end - 1]
    newest = history.bounds[0] - 1
    oldest = history.bounds[0] - min(history.bounds[0], history.bounds[1])
    position = history.heads[chain, hash_of(window, end - 1, history.lengths[chain], history.heads.shape[1])]
    start = entries.start[entries.size[0]]
    distinct, total, longest = np.int64(0), np.int64(0), np.int64(0)
    for _ in range(MAX_MATCHES):
        if position < oldest or position < 0:
            break
        if position + 1 < newest and np.int64(ring[(position + 1) & mask]) != last:
            length = np.int64(0)
            most = min(np.int64(WINDOW) - 1, position - oldest + 1)
            while length < most and np.int64(ring[(position - length) & mask]) == window[end - 2 - length]:
                length += 1
            if length >= MIN_GAP_MATCH:
                longest = max(longest, length)
                total += 1
                token_id = np.int64(ring[(position + 2) & mask])
                if token_id >= 0:
                    distinct = _count_token(entries.tokens, entries.counts, start, distinct, token_id)
        distance = np.int64(history.chains[chain, position & mask])
        if distance == 0:
            break
        position -= distance
    if distinct > 0:
        close_entry(entries, GAP, longest, total, distinct, 0, start + distinct)


@embedded
def add_places(
    history: HistoryArrays,
    source: Integer,
    which: Integer,
    first: Integer,
    count: Integer,
    seen: Integer,
    entries: Entries,
) -> Any:
    """Add the places of one match length, from ``first`` on, to those of longer matches; return (next, distinct)."""
    positions, lengths = entries.places[2 * which], entries.places[2 * which + 1]
    tokens, counts = entries.tally[2 * which], entries.tally[2 * which + 1]
    mask = history.tokens.size - 1
    length = lengths[first]
    while first < count and lengths[first] == length:
        token_id = np.int64(history.tokens[positions[first] & mask])
        if token_id >= 0:
            seen = _count_token(tokens, counts, 0, seen, token_id)
        first += 1
    start = entries.start[entries.size[0]]
    if seen > 0:
        for index in range(seen):
            entries.tokens[start + index] = tokens[index]
            entries.counts[start + index] = counts[index]
        close_entry(entries, source, length, first, seen, 0, start + seen)
    return first, seen

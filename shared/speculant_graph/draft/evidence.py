"""What every source says about the next token: successor counts of the contexts that match, longest first.

An *entry* is one context of one source: how long it is, how often it occurred, how many tokens followed it, and the
most frequent of those. A draft's distribution is mixed from the entries of its context (``calibration.py``).

Sources:

* **corpus**: the matching orders of the graph, from the longest down;
* **session**: places in the sequence itself that end in the same tokens, whatever the length;
* **gap**: places in the sequence where the tokens *before* the last one match and the last one differs, so that a copy
  goes on behind a token that was changed;
* **learned**: places in what earlier sequences accepted;
* **recycled**: the target's own latest top tokens after the last token.

A context that occurs exactly where the next longer one of its source does says nothing new and makes no entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from speculant_graph.draft.history import WINDOW, HistoryArrays, Int32Array, hash_of
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import CUMULATIVE, TOKEN_MASK, Int64Array, UInt32Array
from speculant_graph.graph.lookup import _linked, _row, _width

SESSION, CORPUS, GAP, LEARNED, RECYCLED = range(5)
"""Numbers of the sources."""
NUM_SOURCES = 5

MAX_MATCHES = 64
"""Most places of a history that one chain contributes; the newest are taken."""
MAX_DISTINCT = 64
"""Most different successors of places in a history."""
TOP_SUCCESSORS = 16
"""Most successors of a graph's context that are looked at: the most frequent."""
LONG_ROW = 64
"""Contexts of a graph with more successors are remembered with their most frequent ones."""
MIN_GAP_MATCH = 2
"""Tokens that must match before a gap."""
MAX_ENTRIES = 128
_MAX_COUNTS = 8_192
ROW_SLOTS = 8_192
"""Contexts with many successors that are remembered; a power of two."""


class GraphArrays(NamedTuple):
    """What kernels see of a graph."""

    words: UInt32Array
    table: Int64Array
    row_keys: Int64Array
    """Which long row is remembered in a slot, -1 for none, shape ``[ROW_SLOTS]``."""
    row_tokens: Int32Array
    """Its most frequent successors, shape ``[ROW_SLOTS, TOP_SUCCESSORS]``."""
    row_counts: Int64Array
    """Their counts."""


class RecycledArrays(NamedTuple):
    """What kernels see of the target's rows."""

    keys: Int64Array
    """The token that a row follows, -1 for none, shape ``[slots]``, a power of two."""
    rows: Int32Array
    """Most probable next tokens, best first, -1 for none, shape ``[slots, width]``."""


class Sources(NamedTuple):
    """Everything that one sequence drafts from."""

    graph: GraphArrays
    session: HistoryArrays
    learned: HistoryArrays
    recycled: RecycledArrays
    enabled: Int64Array
    """1 for every source that may be used, shape ``[NUM_SOURCES]``."""


class Entries(NamedTuple):
    """Entries of one context, longest first; ``size[0]`` of them."""

    size: Int64Array
    source: Int64Array
    length: Int64Array
    """Tokens of the context (the longest match of the entry's places)."""
    total: Int64Array
    """How often it occurred."""
    distinct: Int64Array
    """How many different tokens followed it."""
    node: Int64Array
    """Corpus: the context's record."""
    start: Int64Array
    """First of its successors in ``tokens``; the entry's end is the next one's start, shape ``[MAX_ENTRIES + 1]``."""
    tokens: Int64Array
    counts: Int64Array
    places: Int64Array
    """Scratch: positions and match lengths of the session, then of what was learned, shape ``[4, 2 * MAX_MATCHES]``."""
    tally: Int64Array
    """Scratch: running successors and counts of the same, shape ``[4, MAX_DISTINCT]``."""


def make_entries() -> Entries:
    """Return room for the entries of one context."""

    def numbers(*shape: int) -> Int64Array:
        return np.zeros(shape, np.int64)

    return Entries(
        size=numbers(1),
        source=numbers(MAX_ENTRIES),
        length=numbers(MAX_ENTRIES),
        total=numbers(MAX_ENTRIES),
        distinct=numbers(MAX_ENTRIES),
        node=numbers(MAX_ENTRIES),
        start=numbers(MAX_ENTRIES + 1),
        tokens=numbers(_MAX_COUNTS),
        counts=numbers(_MAX_COUNTS),
        places=numbers(4, 2 * MAX_MATCHES),
        tally=numbers(4, MAX_DISTINCT),
    )


@compiled
def _matches(history: HistoryArrays, window: Int64Array, end: Integer, which: Integer, entries: Entries) -> Any:
    """Find the places of a history that end in the same tokens as ``window[:end]``, the longest matches first."""
    positions, lengths = entries.places[2 * which], entries.places[2 * which + 1]
    count = np.int64(0)
    ring = history.tokens
    mask = ring.size - 1
    newest = history.bounds[0] - 1
    oldest = history.bounds[0] - min(history.bounds[0], history.bounds[1])
    limit = np.int64(WINDOW + 1)
    for chain in range(history.lengths.size):
        least = history.lengths[chain]
        position = history.heads[chain, hash_of(window, end, least, history.heads.shape[1])]
        for _ in range(MAX_MATCHES):
            if position < oldest or position < 0:
                break
            if position < newest:
                length = np.int64(0)
                most = min(np.int64(WINDOW), position - oldest + 1)
                while length < most and np.int64(ring[(position - length) & mask]) == window[end - 1 - length]:
                    length += 1
                # What a chain of longer matches has found is not counted twice.
                if least <= length < limit:
                    place = count
                    while place > 0 and lengths[place - 1] < length:
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
        limit = least
    return count


@inlined
def _count_token(tokens: Int64Array, counts: Int64Array, start: Integer, size: Integer, token_id: Integer) -> Any:
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


@inlined
def _close(
    entries: Entries, source: Integer, length: Integer, total: Integer, distinct: Integer, node: Integer, stop: Integer
) -> None:
    index = entries.size[0]
    entries.source[index] = source
    entries.length[index] = length
    entries.total[index] = total
    entries.distinct[index] = distinct
    entries.node[index] = node
    entries.start[index + 1] = stop
    entries.size[0] = index + 1


@compiled
def _add_gap(history: HistoryArrays, window: Int64Array, end: Integer, entries: Entries) -> None:
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
        _close(entries, GAP, longest, total, distinct, 0, start + distinct)


@compiled
def _add_row(graph: GraphArrays, order: Integer, node: Integer, low: Integer, high: Integer, entries: Entries) -> None:
    """Add a context of the graph that has successors."""
    step = _width(graph.table, order + 1)
    base = graph.table[order, 0] + CUMULATIVE
    words = graph.words
    total = np.int64(words[base + high * step]) - np.int64(words[base + low * step])
    start = entries.start[entries.size[0]]
    distinct = high - low
    if distinct > LONG_ROW:
        slot = _remembered(graph, order, node, low, high, entries)
        for index in range(TOP_SUCCESSORS):
            entries.tokens[start + index] = np.int64(graph.row_tokens[slot, index])
            entries.counts[start + index] = graph.row_counts[slot, index]
        kept = np.int64(TOP_SUCCESSORS)
    else:
        kept = _most_frequent(graph, order, low, high, entries.tokens, entries.counts, start)
    _close(entries, CORPUS, order, total, distinct, node, start + kept)


@compiled
def _most_frequent(
    graph: GraphArrays,
    order: Integer,
    low: Integer,
    high: Integer,
    tokens: Int64Array,
    counts: Int64Array,
    start: Integer,
) -> Any:
    """Write the most frequent successors of a row from ``start`` on, of equals the lowest ids; return their number."""
    words = graph.words
    step = _width(graph.table, order + 1)
    place = graph.table[order, 0] + low * step
    kept = np.int64(0)
    before = np.int64(words[place + CUMULATIVE])
    for _ in range(low, high):
        after = np.int64(words[place + step + CUMULATIVE])
        count = after - before
        if kept < TOP_SUCCESSORS or count > counts[start + kept - 1]:
            index = start + min(kept, TOP_SUCCESSORS - 1)
            while index > start and counts[index - 1] < count:
                counts[index] = counts[index - 1]
                tokens[index] = tokens[index - 1]
                index -= 1
            counts[index] = count
            tokens[index] = np.int64(words[place]) & TOKEN_MASK
            kept = min(kept + 1, np.int64(TOP_SUCCESSORS))
        before = after
        place += step
    return kept


@compiled
def _remembered(
    graph: GraphArrays, order: Integer, node: Integer, low: Integer, high: Integer, entries: Entries
) -> Any:
    """Return the slot of a long row, after reading the row if another one is there."""
    key = (np.int64(order) << 40) | node
    slot = ((key * np.int64(0x1E3779B97F4A7C15)) >> np.int64(40)) & (ROW_SLOTS - 1)
    if graph.row_keys[slot] != key:
        scratch = entries.start[entries.size[0]]
        _most_frequent(graph, order, low, high, entries.tokens, entries.counts, scratch)
        for index in range(TOP_SUCCESSORS):
            graph.row_tokens[slot, index] = entries.tokens[scratch + index]
            graph.row_counts[slot, index] = entries.counts[scratch + index]
        graph.row_keys[slot] = key
    return slot


@compiled
def _add_recycled(recycled: RecycledArrays, last: Integer, entries: Entries) -> None:
    """Add the target's latest row after a token: the first counts most, each further one half of it."""
    slot = last & (recycled.keys.size - 1)
    if last < 0 or recycled.keys[slot] != last:
        return
    start = entries.start[entries.size[0]]
    size, total = np.int64(0), np.int64(0)
    weight = np.int64(1) << (recycled.rows.shape[1] - 1)
    for rank in range(recycled.rows.shape[1]):
        if recycled.rows[slot, rank] < 0:
            break
        entries.tokens[start + size] = np.int64(recycled.rows[slot, rank])
        entries.counts[start + size] = weight
        total += weight
        size += 1
        weight >>= 1
    if size > 0:
        _close(entries, RECYCLED, 1, total, size, 0, start + size)


@compiled
def _add_places(
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
        _close(entries, source, length, first, seen, 0, start + seen)
    return first, seen


@compiled
def gather(sources: Sources, window: Int64Array, end: Integer, order: Integer, node: Integer, entries: Entries) -> None:
    """Write the entries of a context.

    Args:
        sources: what to look in.
        window: tokens; those before ``end`` are the context, at least :data:`WINDOW` of them.
        end: where the next token would stand.
        order: longest order of the graph that is known here, 0 for none.
        node: its record.
        entries: output.
    """
    entries.size[0] = 0
    entries.start[0] = 0
    session_count, learned_count = np.int64(0), np.int64(0)
    if sources.enabled[SESSION] > 0:
        session_count = _matches(sources.session, window, end, np.int64(0), entries)
    if sources.enabled[LEARNED] > 0:
        learned_count = _matches(sources.learned, window, end, np.int64(1), entries)
    session_next, learned_next = np.int64(0), np.int64(0)
    session_seen, learned_seen = np.int64(0), np.int64(0)
    before = np.int64(-1)
    short = False
    if sources.enabled[CORPUS] == 0:
        order = np.int64(0)
    while entries.size[0] < MAX_ENTRIES - 4:
        session_length = entries.places[1, session_next] if session_next < session_count else np.int64(0)
        learned_length = entries.places[3, learned_next] if learned_next < learned_count else np.int64(0)
        longest = max(order, session_length, learned_length)
        if longest <= 2 and not short:
            short = True
            if sources.enabled[GAP] > 0:
                _add_gap(sources.session, window, end, entries)
            if sources.enabled[RECYCLED] > 0:
                _add_recycled(sources.recycled, window[end - 1], entries)
        if longest == 0:
            break
        if session_length == longest:
            session_next, session_seen = _add_places(
                sources.session, SESSION, np.int64(0), session_next, session_count, session_seen, entries
            )
        elif learned_length == longest:
            learned_next, learned_seen = _add_places(
                sources.learned, LEARNED, np.int64(1), learned_next, learned_count, learned_seen, entries
            )
        else:
            low, high = _row(sources.graph.words, sources.graph.table, order, node)
            step = _width(sources.graph.table, order + 1)
            base = sources.graph.table[order, 0] + CUMULATIVE
            words = sources.graph.words
            total = np.int64(words[base + high * step]) - np.int64(words[base + low * step])
            if high > low and total != before and total > 0:
                before = total
                _add_row(sources.graph, order, node, low, high, entries)
            if order > 1:
                node = _linked(sources.graph.words, sources.graph.table, order, node)
            order -= 1

"""What every source says about the next token: successor counts of the contexts that match, longest first.

An *entry* is one context of one source: how long it is, how often it occurred, how many tokens followed it, and the
most frequent of those. A draft's distribution is mixed from the entries of its context (``calibration.py``).

Sources:

* **corpus**: the matching orders of the graph, from the longest down;
* **session**: places in the sequence itself that end in the same tokens, whatever the length;
* **gap**: places in the sequence where the tokens *before* the last one match and the last one differs, so that a copy
  goes on behind a token that was changed;
* **learned**: places in what earlier sequences accepted;
* **recycled**: the target's own latest top tokens after the last two tokens, and after the last one.

A context that occurs exactly where the next longer one of its source does says nothing new and makes no entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.escapes import (
    SMALLEST_SHARE,
    Float64Array,
    escape_of,
    kind_of,
)
from speculant_graph.draft.history import WINDOW, HistoryArrays
from speculant_graph.draft.places import add_gap, add_places, find_places
from speculant_graph.draft.sources import (
    CORPUS,
    GAP,
    LEARNED,
    LONG_ROW,
    MAX_ENTRIES,
    RECYCLED,
    ROW_DEPTH,
    ROW_SLOTS,
    ROW_WIDTH,
    SESSION,
    TOP_SUCCESSORS,
    Entries,
    GraphArrays,
    RecycledArrays,
    Sources,
    close_entry,
    row_key,
    row_slot,
)
from speculant_graph.graph.compiled import Integer, embedded, inlined
from speculant_graph.graph.layout import CHILD, CUMULATIVE, INNER_WORDS, TOKEN_MASK, Int64Array
from speculant_graph.graph.lookup import _linked, _row, _width
from speculant_graph.graph.prefetch import prefetch


@embedded
def _add_row(
    graph: GraphArrays,
    order: Integer,
    node: Integer,
    low: Integer,
    high: Integer,
    entries: Entries,
) -> None:
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
    close_entry(entries, CORPUS, order, total, distinct, node, start + kept)


@embedded
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
    total = np.int64(words[place + (high - low) * step + CUMULATIVE]) - before
    for _ in range(low, high):
        after = np.int64(words[place + step + CUMULATIVE])
        # In a damaged file a part may be more than the whole.
        count = min(max(after - before, np.int64(0)), max(total, np.int64(0)))
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


@embedded
def _remembered(
    graph: GraphArrays,
    order: Integer,
    node: Integer,
    low: Integer,
    high: Integer,
    entries: Entries,
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


@embedded
def _add_recycled(recycled: RecycledArrays, before: Integer, last: Integer, length: Integer, entries: Entries) -> None:
    """Add the target's latest rows after a context: in a row the first token counts most, each further one half of it.

    An older row counts half as much as the one that came after it.
    """
    if last < 0 or (length == 2 and before < 0):
        return
    key = row_key(before, last, length)
    slot = row_slot(key, recycled.keys.size)
    if recycled.keys[slot] != key:
        return
    start = entries.start[entries.size[0]]
    size, total, num_rows = np.int64(0), np.int64(0), np.int64(0)
    for age in range(ROW_DEPTH):
        if recycled.rows[slot, age * ROW_WIDTH] < 0:
            break
        num_rows += 1
        weight = np.int64(1) << (ROW_WIDTH - 1 + ROW_DEPTH - 1 - age)
        for rank in range(ROW_WIDTH):
            token_id = np.int64(recycled.rows[slot, age * ROW_WIDTH + rank])
            if token_id < 0:
                break
            place = start
            while place < start + size and entries.tokens[place] != token_id:
                place += 1
            if place == start + size:
                entries.tokens[place] = token_id
                entries.counts[place] = 0
                size += 1
            entries.counts[place] += weight
            total += weight
            weight >>= 1
    if size > 0:
        close_entry(entries, RECYCLED, length, total, size, num_rows, start + size)


@embedded
def _prefetch_rows(graph: GraphArrays, order: Integer, node: Integer) -> None:
    """Ask for the rows of a context and of all shorter ones: they are far apart, and waiting for each takes longest."""
    while order > 0:
        child = np.int64(graph.words[graph.table[order - 1, 0] + node * INNER_WORDS + CHILD])
        if child < graph.table[order, 1]:
            prefetch(graph.words, graph.table[order, 0] + child * _width(graph.table, order + 1))
        if order > 1:
            node = _linked(graph.words, graph.table, order, node)
        order -= 1


@inlined
def _limit(history: HistoryArrays, chain: Integer) -> Any:
    """Return the match length from which on the chains before this one have found all places."""
    return history.lengths[chain - 1] if chain > 0 else np.int64(WINDOW + 1)


@embedded
def gather(
    sources: Sources,
    escapes: Float64Array,
    window: Int64Array,
    end: Integer,
    order: Integer,
    node: Integer,
    entries: Entries,
) -> None:
    """Write the entries of a context, until what is left for shorter ones is too little to matter.

    Args:
        sources: what to look in.
        escapes: (visits, escapes) of every kind of context; see ``calibration.py``.
        window: tokens; those before ``end`` are the context, at least :data:`WINDOW` of them.
        end: where the next token would stand.
        order: longest order of the graph that is known here, 0 for none.
        node: its record.
        entries: output.
    """
    entries.size[0] = 0
    entries.start[0] = 0
    session, learned = sources.session, sources.learned
    session_chain = np.int64(0) if sources.enabled[SESSION] > 0 else session.lengths.size
    learned_chain = np.int64(0) if sources.enabled[LEARNED] > 0 else learned.lengths.size
    session_count, learned_count = np.int64(0), np.int64(0)
    session_next, learned_next = np.int64(0), np.int64(0)
    session_seen, learned_seen = np.int64(0), np.int64(0)
    before = np.int64(-1)
    short = False
    left, weighed = 1.0, np.int64(0)
    if sources.enabled[CORPUS] == 0:
        order = np.int64(0)
    _prefetch_rows(sources.graph, order, node)
    while entries.size[0] < MAX_ENTRIES - 5:
        while weighed < entries.size[0]:
            left *= escape_of(escapes, kind_of(entries, weighed))
            weighed += 1
        if left < SMALLEST_SHARE:
            break
        session_length = entries.places[1, session_next] if session_next < session_count else np.int64(0)
        learned_length = entries.places[3, learned_next] if learned_next < learned_count else np.int64(0)
        longest = max(order, session_length, learned_length)
        # Shorter matches are looked for only once longer ones have left something to them.
        if session_chain < session.lengths.size and longest < _limit(session, session_chain):
            session_count = find_places(session, window, end, np.int64(0), session_chain, session_count, entries)
            session_chain += 1
            continue
        if learned_chain < learned.lengths.size and longest < _limit(learned, learned_chain):
            learned_count = find_places(learned, window, end, np.int64(1), learned_chain, learned_count, entries)
            learned_chain += 1
            continue
        if longest <= 2 and not short:
            short = True
            if sources.enabled[GAP] > 0:
                add_gap(session, window, end, entries)
            if sources.enabled[RECYCLED] > 0:
                for length in (2, 1):
                    _add_recycled(sources.recycled, window[end - 2], window[end - 1], np.int64(length), entries)
            continue
        if longest == 0:
            break
        if session_length == longest:
            session_next, session_seen = add_places(
                session,
                SESSION,
                np.int64(0),
                session_next,
                session_count,
                session_seen,
                entries,
            )
        elif order == longest:
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
        else:
            learned_next, learned_seen = add_places(
                learned,
                LEARNED,
                np.int64(1),
                learned_next,
                learned_count,
                learned_seen,
                entries,
            )

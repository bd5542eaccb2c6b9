"""The server's usual step: sessions that go on where they stand, and chains from the graph.

One call reads a request, takes the tokens of all its sequences, drafts, and writes the answer. It is what
``speculant_drafter.steps`` does in Python, for requests in which nothing is unusual; it changes nothing before it knows
that, and says :data:`UNUSUAL` otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speculant_graph.draft.chain_batch import greedy_batch, sample_batch
from speculant_graph.draft.history import NOTHING, WINDOW, append_token, fill_window
from speculant_graph.draft.views import open_own_history, open_own_state
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import Int64Array, UInt32Array
from speculant_graph.graph.lookup import _advance
from speculant_graph.rpc.kernels.protobuf import (
    FIXED64,
    LENGTH,
    MAX_FIELDS,
    NO_TYPE,
    VARINT,
    Bytes,
    now_ns,
    put_fixed32,
    put_fixed64,
    put_head,
    put_varint,
    read_fixed32,
    read_fixed64,
    scan,
    varint_size,
)
from speculant_graph.rpc.kernels.sessions import (
    DRAFTED,
    GRAPH,
    IDLE_TIMEOUT,
    IS_PLAIN,
    LAST_USED,
    MARK,
    POSITION,
    STEPS,
    TENANT,
    find_row,
)

UNUSUAL = -1
"""The step must be answered by other means; nothing was changed, or nothing that may not be done twice."""
OTHER_GRAPH = -2
"""As before, but only because the first sequence is of another graph."""

GENERATION, NEXT_DRAFT_ID, ONLY_TENANT, MAX_SEQUENCES, MAX_TOKENS, MAX_NODES = range(6)
BUDGET, STRATEGY, MAX_CANDIDATES, VOCABULARY_SIZE = range(6, 10)
OUT_SEQUENCES, OUT_NODES, OUT_EMPTY, OUT_NS, OUT_GENERATION, MAX_STEP_NODES, COUPLING = range(10, 17)
"""Entries of what a call is told: generation of the graph; id of the answer; the only tenant that may be served, -1 for
all; limits; what requests leave to the server (nodes, strategy, candidates); ids below which are
tokens. And of what it tells: sequences; nodes drafted; sequences without any; time in nanoseconds; the
generation of the other graph. And one limit more, nodes of all sequences, and one thing more that requests leave to
the server."""
NUM_SETTINGS = 17

GREEDY, SAMPLING = 1, 2
"""Numbers of strategies on the wire."""
NOT_COUPLED, COUPLED = 1, 2
"""Numbers of couplings on the wire."""

_ENVELOPE = np.full(MAX_FIELDS, NO_TYPE)
_ENVELOPE[1], _ENVELOPE[2] = FIXED64, LENGTH
_REQUEST = np.full(MAX_FIELDS, NO_TYPE)
_REQUEST[[2, 3, 4, 5, 6, 7, 8]] = LENGTH
_OPTIONS = np.full(MAX_FIELDS, NO_TYPE)
_OPTIONS[[1, 5, 11, 13]] = VARINT
_NO_ATTENTION = np.zeros(0)
FIXED_BYTES, SEQUENCE_BYTES, NODE_BYTES, ENTRY_BYTES = 128, 24, 16, 8
"""At least what an answer has besides its arrays, and in them for every sequence, node and entry of a distribution."""


@inlined
def _entry32(data: Bytes, fields: Int64Array, number: Integer, place: Integer, default: Integer) -> Any:
    if fields[number, 1] == 0:
        return np.int64(default)
    return read_fixed32(data, fields[number, 0] + 4 * place)


@inlined
def _entry64(data: Bytes, fields: Int64Array, number: Integer, place: Integer) -> Any:
    if fields[number, 1] == 0:
        return np.int64(0)
    return read_fixed64(data, fields[number, 0] + 8 * place)


@compiled
def answer_step(
    data: Bytes,
    is_enveloped: bool,
    words: UInt32Array,
    table: Int64Array,
    index: Int64Array,
    sessions: Int64Array,
    handles: Int64Array,
    settings: Int64Array,
    out: Bytes,
) -> int:
    """Answer a step in which all is usual.

    Args:
        data: a StreamDraftRequest, or a DraftRequest.
        is_enveloped: whether it is the former.
        words: the block of the graph's trie.
        table: its table.
        index: hash table of the sessions' rows, each plus 1; 0 is free, a negative number was in use.
        sessions: the table of sessions, changed.
        handles: per row the handles of a session's own history and of its place in the graph.
        settings: what the call is told, and what it tells.
        out: output; its size is that of the largest answer.

    Returns:
        Bytes of the answer, which is of the kind of the request; :data:`UNUSUAL` or :data:`OTHER_GRAPH`.
    """
    started_ns = now_ns()
    fields = np.empty((MAX_FIELDS, 2), np.int64)
    start, end, step_id = np.int64(0), np.int64(data.size), np.int64(0)
    if is_enveloped:
        if not scan(data, start, end, _ENVELOPE, fields):
            return UNUSUAL
        if fields[1, 1]:
            step_id = read_fixed64(data, fields[1, 0])
        start, end = fields[2, 0], fields[2, 0] + fields[2, 1]
    options = np.empty((MAX_FIELDS, 2), np.int64)
    if not scan(data, start, end, _REQUEST, fields) or fields[4, 1] % 4 != 0 or fields[4, 1] == 0:
        return UNUSUAL
    count, num_tokens = fields[4, 1] // 4, fields[5, 1] // 4
    if count > settings[MAX_SEQUENCES] or num_tokens > settings[MAX_TOKENS] or fields[5, 1] % 4 != 0:
        return UNUSUAL
    if fields[2, 1] != 8 * count or fields[3, 1] not in (0, 8 * count) or fields[8, 1] not in (0, 8 * count):
        return UNUSUAL
    if fields[6, 1] not in (0, 4 * count):
        return UNUSUAL
    if not scan(data, fields[7, 0], fields[7, 0] + fields[7, 1], _OPTIONS, options):
        return UNUSUAL
    strategy = options[1, 0] or settings[STRATEGY]
    max_candidates = options[5, 0] if options[5, 1] else settings[MAX_CANDIDATES]
    if strategy != GREEDY and strategy != SAMPLING:
        return UNUSUAL
    if not 0 <= max_candidates < 1 << 32:
        return UNUSUAL
    coupling = options[13, 0] or settings[COUPLING]
    if coupling != NOT_COUPLED and coupling != COUPLED:
        return UNUSUAL

    # Everything is looked at before anything is changed.
    rows = np.empty(count, np.int64)
    taken, wanted = np.int64(0), np.int64(0)
    for number in range(count):
        row = find_row(index, sessions, _entry64(data, fields, 2, number))
        if row < 0 or sessions[row, IS_PLAIN] == 0 or sessions[row, MARK] == settings[NEXT_DRAFT_ID]:
            return UNUSUAL
        if settings[ONLY_TENANT] >= 0 and sessions[row, TENANT] != settings[ONLY_TENANT]:
            return UNUSUAL
        if sessions[row, GRAPH] != settings[GENERATION]:
            settings[OUT_GENERATION] = sessions[row, GRAPH]
            return OTHER_GRAPH if number == 0 else UNUSUAL
        if started_ns - sessions[row, LAST_USED] > sessions[row, IDLE_TIMEOUT]:
            return UNUSUAL
        size = _entry32(data, fields, 4, number, 0)
        history = open_own_history(handles[row])
        if (
            _entry64(data, fields, 3, number) != sessions[row, POSITION]
            or history.bounds[0] + size > history.tokens.size
            or _entry32(data, fields, 6, number, settings[BUDGET]) > settings[MAX_NODES]
        ):
            return UNUSUAL
        sessions[row, MARK] = settings[NEXT_DRAFT_ID]
        rows[number] = row
        taken += size
        wanted += _entry32(data, fields, 6, number, settings[BUDGET])
    if taken != num_tokens or wanted > settings[MAX_STEP_NODES]:
        return UNUSUAL

    states = np.empty((count, 2), np.int64)
    budgets, seeds, positions = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    window = np.empty(WINDOW, np.int64)
    place = fields[5, 0]
    for number in range(count):
        row = rows[number]
        history, state = open_own_history(handles[row]), open_own_state(handles[row])
        size = _entry32(data, fields, 4, number, 0)
        if size > 0:
            fill_window(history, window)
        order, node = state[0], state[1]
        for _ in range(size):
            token_id = read_fixed32(data, place)
            place += 4
            if token_id >= settings[VOCABULARY_SIZE]:
                token_id = np.int64(NOTHING)
            append_token(history, window, token_id)
            order, node = _advance(words, table, order, node, token_id)
        state[0], state[1] = order, node
        states[number, 0], states[number, 1] = order, node
        sessions[row, POSITION] += size
        sessions[row, LAST_USED] = started_ns
        sessions[row, STEPS] += 1
        budgets[number] = _entry32(data, fields, 6, number, settings[BUDGET])
        seeds[number] = _entry64(data, fields, 8, number)
        positions[number] = sessions[row, POSITION]

    counts = np.empty(0, np.int64)
    support, probabilities = np.empty(0, np.uint32), np.empty(0, np.float32)
    if strategy == GREEDY:
        lengths, tokens = greedy_batch(words, table, states, budgets, _NO_ATTENTION)
    else:
        # At least 1, as 0 would omit them.
        room = (out.size - FIXED_BYTES - SEQUENCE_BYTES * count - NODE_BYTES * wanted) // ENTRY_BYTES
        max_support = int(0 if options[11, 0] else max(room, np.int64(1)))
        lengths, tokens, counts, support, probabilities = sample_batch(
            words, table, states, budgets, seeds, positions, max_candidates, max_support, coupling == COUPLED,
            1.0, _NO_ATTENTION,
        )  # fmt: skip
    settings[OUT_SEQUENCES], settings[OUT_NODES], settings[OUT_EMPTY] = count, tokens.size, 0
    for number in range(count):
        sessions[rows[number], DRAFTED] += lengths[number]
        settings[OUT_EMPTY] += np.int64(lengths[number] == 0 and budgets[number] > 0)
    if SEQUENCE_BYTES * count + NODE_BYTES * tokens.size + ENTRY_BYTES * support.size + FIXED_BYTES > out.size:
        return UNUSUAL
    settings[OUT_NS] = now_ns() - started_ns
    drafted = lengths, tokens, counts, support, probabilities
    return int(_write(step_id, is_enveloped, settings, drafted, positions, budgets, out))


@inlined
def _array_size(number_of_entries: Integer, width: Integer) -> Any:
    size = number_of_entries * width
    return np.int64(0) if size == 0 else 1 + varint_size(size) + size


@compiled
def _write(
    step_id: Integer,
    is_enveloped: bool,
    settings: Int64Array,
    drafted: Any,
    positions: Int64Array,
    budgets: Int64Array,
    out: Bytes,
) -> int:
    """Write the answer; fields in the order of their numbers, as protobuf does."""
    lengths, tokens, counts, support, probabilities = drafted
    count, nodes = lengths.size, tokens.size
    seconds, nanoseconds = settings[OUT_NS] // 1_000_000_000, settings[OUT_NS] % 1_000_000_000
    time_size = np.int64(0)
    if seconds > 0:
        time_size += 1 + varint_size(seconds)
    if nanoseconds > 0:
        time_size += 1 + varint_size(nanoseconds)
    size = (
        np.int64(18)
        + _array_size(count, 4) * 3
        + _array_size(count, 8)
        + _array_size(nodes, 4) * 2
        + _array_size(counts.size, 4)
        + _array_size(support.size, 4) * 2
        + 1
        + varint_size(time_size)
        + time_size
    )
    place = np.int64(0)
    if is_enveloped:
        if step_id != 0:
            out[0] = np.uint8(1 << 3 | FIXED64)
            place = put_fixed64(out, np.int64(1), step_id)
        place = put_head(out, place, 2, size)
    for number, value in ((1, settings[GENERATION]), (2, settings[NEXT_DRAFT_ID])):
        out[place] = np.uint8(number << 3 | FIXED64)
        place = put_fixed64(out, place + 1, value)
    place = put_head(out, place, 3, 4 * count)
    for _ in range(count):
        place = put_fixed32(out, place, np.int64(1))
    place = put_head(out, place, 4, 8 * count)
    for number in range(count):
        place = put_fixed64(out, place, positions[number])
    place = put_head(out, place, 5, 4 * count)
    for number in range(count):
        place = put_fixed32(out, place, lengths[number])
    if nodes > 0:
        place = put_head(out, place, 6, 4 * nodes)
        for node in range(nodes):
            place = put_fixed32(out, place, tokens[node])
        place = put_head(out, place, 7, 4 * nodes)
        for number in range(count):
            for node in range(lengths[number]):
                place = put_fixed32(out, place, np.int64(node))
    if counts.size > 0:
        place = put_head(out, place, 9, 4 * counts.size)
        for node in range(counts.size):
            place = put_fixed32(out, place, counts[node])
        place = put_head(out, place, 10, 4 * support.size)
        for entry in range(support.size):
            place = put_fixed32(out, place, np.int64(support[entry]))
        place = put_head(out, place, 11, 4 * support.size)
        bits = probabilities.view(np.uint32)
        for entry in range(support.size):
            place = put_fixed32(out, place, np.int64(bits[entry]))
    place = put_head(out, place, 12, time_size)
    if seconds > 0:
        out[place] = np.uint8(1 << 3)
        place = put_varint(out, place + 1, seconds)
    if nanoseconds > 0:
        out[place] = np.uint8(2 << 3)
        place = put_varint(out, place + 1, nanoseconds)
    place = put_head(out, place, 13, 4 * count)
    for number in range(count):
        place = put_fixed32(out, place, np.int64(lengths[number] < budgets[number]))
    return int(place)

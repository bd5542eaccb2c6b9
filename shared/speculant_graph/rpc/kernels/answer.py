"""The client's usual answer: read, checked and laid out for Python by one call.

Checks all that :func:`speculant_graph.rpc.convert.answers.decode_step_answer` does, which is asked wherever one fails,
and then says what is wrong.
"""

from __future__ import annotations

import numpy as np

from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import Int64Array
from speculant_graph.rpc.kernels.protobuf import (
    FIXED64,
    LENGTH,
    MAX_FIELDS,
    NO_TYPE,
    VARINT,
    Bytes,
    read_fixed32,
    read_fixed64,
    scan,
)

UNUSUAL = -1
"""The answer must be read by other means."""

GENERATION, DRAFT_ID, SERVER_NS, NODES, CANDIDATES, SUPPORT, PROBABILITIES = range(7)
"""What comes first in the output: generation; id of the answer; time in the server; number of nodes; the byte at which
the tokens of distributions begin; their number; the byte at which their probabilities begin."""
NUM_FIRST = 7

_ENVELOPE = np.full(MAX_FIELDS, NO_TYPE)
_ENVELOPE[1], _ENVELOPE[2] = FIXED64, LENGTH
_ANSWER = np.full(MAX_FIELDS, LENGTH)
_ANSWER[[0, 8, 14, 15]] = NO_TYPE  # with path probabilities or several generations Python takes its time
_ANSWER[[1, 2]] = FIXED64
_DURATION = np.full(MAX_FIELDS, NO_TYPE)
_DURATION[[1, 2]] = VARINT
_OK = 1
_ONE_IN_FLOAT32 = 0x3F800000
_MASS_TOLERANCE = 1e-3
_MOST_SECONDS = 1 << 30


@inlined
def _size(fields: Int64Array, number: Integer, width: Integer) -> Integer:
    """Return the entries of an array; -1 if its bytes are no whole number of them."""
    return fields[number, 1] // width if fields[number, 1] % width == 0 else np.int64(-1)


@compiled
def read_answer(data: Bytes, budgets: Int64Array, vocabulary_size: int, numbers: Int64Array) -> int:
    """Read a StreamDraftResponse whose drafts are chains.

    Args:
        data: the message.
        budgets: most nodes asked for, per sequence.
        vocabulary_size: token ids must be below it.
        numbers: output, large enough for ``NUM_FIRST + 4 * sequences + 2 * nodes + 1`` numbers, else the answer is
            unusual: what comes first; per sequence status, next position, nodes, and whether it ended early, one array
            after the other; tokens of the nodes; if there are distributions, where those of each begin, and the end.

    Returns:
        How many numbers were written, or :data:`UNUSUAL`.
    """
    fields = np.empty((MAX_FIELDS, 2), np.int64)
    time = np.empty((MAX_FIELDS, 2), np.int64)
    if not scan(data, np.int64(0), np.int64(data.size), _ENVELOPE, fields) or fields[2, 1] == 0:
        return UNUSUAL
    if not scan(data, fields[2, 0], fields[2, 0] + fields[2, 1], _ANSWER, fields):
        return UNUSUAL
    if not scan(data, fields[12, 0], fields[12, 0] + fields[12, 1], _DURATION, time):
        return UNUSUAL
    count, nodes = budgets.size, _size(fields, 6, 4)
    if _size(fields, 3, 4) != count or _size(fields, 4, 8) != count or _size(fields, 5, 4) != count or nodes < 0:
        return UNUSUAL
    if fields[7, 1] != 4 * nodes or fields[13, 1] not in (0, 4 * count):
        return UNUSUAL
    if not (0 <= time[1, 0] < _MOST_SECONDS and 0 <= time[2, 0] < 1_000_000_000):
        return UNUSUAL
    num_counts, support = _size(fields, 9, 4), _size(fields, 10, 4)
    if num_counts not in (0, nodes) or support < 0 or fields[11, 1] != 4 * support:
        return UNUSUAL
    if numbers.size < NUM_FIRST + 4 * count + 2 * nodes + 1:
        return UNUSUAL

    numbers[GENERATION] = read_fixed64(data, fields[1, 0]) if fields[1, 1] else 0
    numbers[DRAFT_ID] = read_fixed64(data, fields[2, 0]) if fields[2, 1] else 0
    numbers[SERVER_NS] = time[1, 0] * 1_000_000_000 + time[2, 0]
    numbers[NODES], numbers[CANDIDATES] = nodes, fields[10, 0]
    numbers[SUPPORT], numbers[PROBABILITIES] = support, fields[11, 0]
    if numbers[GENERATION] <= 0 or numbers[DRAFT_ID] <= 0:
        return UNUSUAL
    node = np.int64(0)
    for index in range(count):
        place = NUM_FIRST + index
        numbers[place] = read_fixed32(data, fields[3, 0] + 4 * index)
        numbers[place + count] = read_fixed64(data, fields[4, 0] + 8 * index)
        length = read_fixed32(data, fields[5, 0] + 4 * index)
        numbers[place + 2 * count] = length
        numbers[place + 3 * count] = read_fixed32(data, fields[13, 0] + 4 * index) if fields[13, 1] else 0
        if numbers[place] != _OK or numbers[place + count] < 0 or length > budgets[index] or length > nodes - node:
            return UNUSUAL
        for depth in range(length):
            if read_fixed32(data, fields[7, 0] + 4 * (node + depth)) != depth:
                return UNUSUAL
        node += length
    if node != nodes:
        return UNUSUAL
    first = NUM_FIRST + 4 * count
    for index in range(nodes):
        token_id = read_fixed32(data, fields[6, 0] + 4 * index)
        if token_id >= vocabulary_size:
            return UNUSUAL
        numbers[first + index] = token_id
    if num_counts == 0:
        return int(first + nodes) if support == 0 else UNUSUAL
    bits = np.empty(1, np.uint32)
    value = bits.view(np.float32)
    begin = np.int64(0)
    for index in range(nodes):
        numbers[first + nodes + index] = begin
        end = begin + read_fixed32(data, fields[9, 0] + 4 * index)
        if end > support:
            return UNUSUAL
        before, mass, has_token = np.int64(-1), 0.0, False
        for entry in range(begin, end):
            token_id = read_fixed32(data, fields[10, 0] + 4 * entry)
            bits[0] = np.uint32(read_fixed32(data, fields[11, 0] + 4 * entry))
            if token_id <= before or bits[0] > _ONE_IN_FLOAT32:
                return UNUSUAL
            before = token_id
            mass += np.float64(value[0])
            has_token |= token_id == numbers[first + index] and bits[0] > 0
        if before >= vocabulary_size or not has_token or abs(mass - 1.0) > _MASS_TOLERANCE:
            return UNUSUAL
        begin = end
    numbers[first + 2 * nodes] = begin
    return int(first + 2 * nodes + 1) if begin == support else UNUSUAL

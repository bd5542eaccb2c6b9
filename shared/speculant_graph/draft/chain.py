"""The kernels that draft chains by sampling and by attention; ``reference.py`` is what they do, word for word.

As in :mod:`speculant_graph.graph.lookup`, no index that comes from a file is used before it is compared with its
bounds, and no row is read that is longer than the vocabulary: a damaged file gives wrong drafts at worst.

Attention reads the successors of the last token alone at every step, and twice: a step takes as long as that token has
successors, 4 to 7 ns each, and those after frequent tokens are tens of thousands: 0.2 ms for 50,000 of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.draft.masses import last_kept, temper
from speculant_graph.graph.compiled import Integer, compiled, inlined
from speculant_graph.graph.layout import CUMULATIVE, TOKEN_MASK, Int64Array, UInt32Array
from speculant_graph.graph.lookup import _advance, _linked, _row, _settle, _width
from speculant_graph.random_stream import PROPOSAL_STREAM

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

_ORDER, _COUNT, _ENTROPY, _TEMPERATURE = 0, 1, 2, 3
_FIRST_ROOM = 512
_COUNT_LOG_COUNT = np.array([count * math.log(count) if count else 0.0 for count in range(1 << 10)])
"""A logarithm takes ten times as long as reading one, and most counts are small."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_OFFSET = np.uint64(0xD1B54A32D192ED03)
_11, _12, _27, _30, _31 = np.uint64(11), np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


@inlined
def _scramble(value: Any) -> Any:
    value = (value ^ (value >> _30)) * _FIRST_FACTOR
    value = (value ^ (value >> _27)) * _SECOND_FACTOR
    return value ^ (value >> _31)


@compiled
def uniform(seed: int, position: int, stream: int) -> float:
    """Return the number of :func:`speculant_graph.random_stream.uniform`; all arguments are signed 64-bit integers."""
    word = _scramble(np.uint64(seed) + _GOLDEN * np.uint64(stream + 1))
    word = _scramble(word ^ _scramble(np.uint64(position) * _GOLDEN + _OFFSET))
    return float(word >> _11) * 2.0**-53


@inlined
def noise_key(seed: Any, position: Any) -> Any:
    """Return what :func:`noise_word` takes for a position."""
    return _scramble(_scramble(np.uint64(seed) + _GOLDEN) ^ (np.uint64(position) * _GOLDEN + _FIRST_FACTOR))


@inlined
def noise_word(key: Any, token_id: Any) -> Any:
    """Return the 64 random bits of a token."""
    return _scramble(key ^ (np.uint64(token_id) * _FIRST_FACTOR + _GOLDEN))


@inlined
def noise_of(word: Any) -> Any:
    """Return the Gumbel noise that the first 52 bits of a word make."""
    return -math.log(-math.log((float(word >> _12) + 0.5) * 2.0**-52))


@compiled
def gumbel(seed: int, position: int, token_id: int) -> float:
    """Return the number of :func:`speculant_graph.random_stream.gumbel_noise` for a token; up to the last bit."""
    return float(noise_of(noise_word(noise_key(seed, position), token_id)))


@inlined
def _successors(words: UInt32Array, table: Int64Array, order: Integer, node: Integer) -> Any:
    """Return a context's row, no longer than a row can be; a damaged file could make it as long as its level."""
    low, high = _row(words, table, order, node)
    return low, min(high, low + table[table.shape[0] - 2, 1])


@inlined
def _count(words: UInt32Array, place: Integer, width: Integer) -> Any:
    """Return the count of the record at a place; never 0, which a damaged file may hold."""
    return max(np.int64(np.uint32(words[place + width + CUMULATIVE] - words[place + CUMULATIVE])), np.int64(1))


@compiled
def _frequencies(words: UInt32Array, table: Int64Array, order: int, low: int, high: int) -> Any:
    """Return the counts of a row as float64, and their sum."""
    width = _width(table, order + 1)
    start = table[order, 0] + low * width
    counts, total = np.empty(high - low), np.int64(0)
    for index in range(high - low):
        count = _count(words, start + index * width, width)
        counts[index] = count
        total += count
    return counts, float(total)


@compiled
def _score(
    words: UInt32Array, table: Int64Array, order: int, node: int, low: int, high: int, attention: Float64Array
) -> Any:
    """Return the score of a context, and the sum of the counts of its row."""
    width = _width(table, order + 1)
    start = table[order, 0] + low * width
    total, weighted = np.int64(0), 0.0
    if attention[_ENTROPY] > 0.0:
        for index in range(high - low):
            count = _count(words, start + index * width, width)
            total += count
            weighted += _COUNT_LOG_COUNT[count] if count < _COUNT_LOG_COUNT.size else count * math.log(count)
    else:
        for index in range(high - low):
            total += _count(words, start + index * width, width)
    # -sum(p ln p) with p = count/total, so that there is one division.
    entropy = math.log(total) - weighted / total
    context_width = _width(table, order)
    occurrences = _count(words, table[order - 1, 0] + node * context_width, context_width)
    score = attention[_ORDER] * order + attention[_COUNT] * math.log(1.0 + occurrences) - attention[_ENTROPY] * entropy
    return score, float(total)


@compiled
def _mixture(words: UInt32Array, table: Int64Array, order: int, node: int, attention: Float64Array) -> Any:
    """Mix the successors of all known contexts.

    What followed a context followed each shorter one, so the row of order 1 holds all of them, and the links of a row's
    records lead to the same tokens in the row of the next shorter context: masses are handed down, never searched.

    Args:
        words: the block of the trie.
        table: its table.
        order: order of the longest known context, at least 1.
        node: its record.
        attention: weights of order, logarithm of the count and entropy; temperature.

    Returns:
        (first record of the row of order 1, probability of each of its records); they sum to 1 up to rounding.
    """
    lows, highs = np.empty(order + 1, np.int64), np.empty(order + 1, np.int64)
    weights, totals = np.empty(order + 1), np.empty(order + 1)
    for level in range(order, 0, -1):
        lows[level], highs[level] = _successors(words, table, level, node)
        weights[level], totals[level] = -np.inf, 1.0
        if lows[level] < highs[level]:  # always, unless the file is damaged
            weights[level], totals[level] = _score(words, table, level, node, lows[level], highs[level], attention)
        if level > 1:
            node = _linked(words, table, level, node)
    highest, normaliser = -np.inf, 0.0
    for level in range(1, order + 1):
        highest = max(highest, weights[level])
    for level in range(order, 0, -1):
        weights[level] = math.exp((weights[level] - highest) / attention[_TEMPERATURE])
        normaliser += weights[level]
    masses = np.empty(0)
    for level in range(order, 0, -1):
        low, size = lows[level], highs[level] - lows[level]
        longer, masses = masses, np.zeros(size)
        for index in range(longer.size):
            place = _linked(words, table, level + 2, lows[level + 1] + index) - low
            if 0 <= place < size:
                masses[place] += longer[index]
        width = _width(table, level + 1)
        start = table[level, 0] + low * width
        weight = weights[level] / normaliser
        for index in range(size):
            masses[index] += weight * (_count(words, start + index * width, width) / totals[level])
    return lows[1], masses


@compiled
def propose(
    words: UInt32Array,
    place: int,
    width: int,
    masses: Float64Array,
    total: float,
    max_candidates: int,
    number: float,
    token_ids: UInt32Array,
    probabilities: Float32Array,
) -> Any:
    """Write out the distribution q of a row and draw from it.

    Args:
        words: the block of the trie.
        place: first word of the row.
        width: words of its records.
        masses: what the probabilities are proportional to, shape ``[size of the row]``.
        total: their sum.
        max_candidates: most tokens that are kept; 0 keeps all.
        number: quantile to draw at.
        token_ids: output, the tokens that are possible.
        probabilities: output, their probabilities.

    Returns:
        (how many were written, number in the row of the token drawn); (0, -1) if the masses make no distribution.
    """
    last, threshold = masses.size, -1.0
    if 0 < max_candidates < masses.size:
        last = last_kept(masses, max_candidates)
        threshold = masses[last]
        total = 0.0
        for index in range(masses.size):
            if masses[index] > threshold or (masses[index] == threshold and index <= last):
                total += masses[index]
    if not total > 0.0:
        return 0, -1
    size, drawn, cumulative, is_drawn = 0, -1, 0.0, False
    for index in range(masses.size):
        if masses[index] > threshold or (masses[index] == threshold and index <= last):
            probability = np.float32(masses[index] / total)
            if probability > 0.0:
                token_ids[size] = words[place + index * width] & np.uint32(TOKEN_MASK)
                probabilities[size] = probability
                size += 1
                cumulative += np.float64(probability)
                if not is_drawn:
                    # Rounding may leave the sum below 1: the rest belongs to the last token that is possible.
                    drawn, is_drawn = index, bool(cumulative > number)
    return size, drawn


@compiled
def couple(
    words: UInt32Array,
    place: int,
    width: int,
    seed: int,
    position: int,
    token_ids: UInt32Array,
    probabilities: Float32Array,
) -> Any:
    """Draw from a distribution q by the noise of a position: the token of the largest log q + noise.

    Args:
        words: the block of the trie.
        place: first word of the row that q was written out from.
        width: words of its records.
        seed: seed of the noise, a signed 64-bit integer, as is the position.
        position: index in the sequence of the token drawn.
        token_ids: the support of q, which is not empty, in the order of the row.
        probabilities: their probabilities, which are positive.

    Returns:
        Number in the row of the token drawn; of equals the first one.
    """
    key = noise_key(seed, position)
    best, highest = 0, -np.inf
    for index in range(token_ids.size):
        value = math.log(np.float64(probabilities[index])) + noise_of(noise_word(key, token_ids[index]))
        if value > highest:
            best, highest = index, value
    drawn = best  # a row has all of the support, and tokens of no probability between
    while words[place + drawn * width] & np.uint32(TOKEN_MASK) != token_ids[best]:
        drawn += 1
    return drawn


@compiled
def sample(
    words: UInt32Array,
    table: Int64Array,
    order: int,
    node: int,
    num_tokens: int,
    seed: int,
    position: int,
    max_candidates: int,
    is_coupled: bool,
    temperature: float,
    attention: Float64Array,
) -> Any:
    """Draft by drawing each token from the distribution of its context.

    Args:
        words: the block of the trie.
        table: its table.
        order: order of the longest known context; 0 if none is known.
        node: its record.
        num_tokens: most tokens to draft.
        seed: seed of the draws, a signed 64-bit integer, as is the position.
        position: index in the sequence of the first token drafted.
        max_candidates: most tokens that a distribution keeps, the most probable ones and of equals the lowest ids; 0
            keeps all.
        is_coupled: whether to draw by the noise that a verifier shares.
        temperature: each distribution is raised to the power of 1 / temperature before it is capped.
        attention: weights of order, logarithm of the count and entropy; temperature. Empty: the longest known context
            alone, whose order is kept while the window slides.

    Returns:
        ``(token_ids, ends, support, probabilities)``: the n tokens drafted; where the distribution of each ends, shape
        ``[n]``; the distributions one after another, uint32 and float32.
    """
    drafted, ends = np.empty(num_tokens, np.int64), np.empty(num_tokens, np.int64)
    support, probabilities = np.empty(_FIRST_ROOM, np.uint32), np.empty(_FIRST_ROOM, np.float32)
    size = step = 0
    while step < num_tokens and order > 0:
        if attention.size > 0:
            level = 1
            low, masses = _mixture(words, table, order, node, attention)
            total = 1.0
        else:
            level = order
            low, high = _successors(words, table, order, node)
            masses, total = _frequencies(words, table, order, low, high)
        if temperature != 1.0:
            total = temper(masses, temperature)
        room = min(masses.size, max_candidates) if max_candidates > 0 else masses.size
        if size + room > support.size:
            grown = np.empty(2 * size + room, np.uint32), np.empty(2 * size + room, np.float32)
            for place in range(size):  # assigning slices would compile for seconds
                grown[0][place], grown[1][place] = support[place], probabilities[place]
            support, probabilities = grown
        width = _width(table, level + 1)
        place = table[level, 0] + low * width
        number = uniform(seed, position + step, PROPOSAL_STREAM)
        written, drawn = propose(
            words, place, width, masses, total, max_candidates, number, support[size:], probabilities[size:]
        )
        if drawn < 0:
            break
        if is_coupled:
            end = size + written
            drawn = couple(words, place, width, seed, position + step, support[size:end], probabilities[size:end])
        token_id = np.int64(words[place + drawn * width]) & TOKEN_MASK
        size += written
        drafted[step], ends[step] = token_id, size
        step += 1
        if attention.size > 0:
            order, node = _advance(words, table, order, node, token_id)
        else:
            order, node = _settle(words, table, order, _linked(words, table, order + 1, low + drawn))
    return drafted[:step], ends[:step], support[:size], probabilities[:size]


@compiled
def draft_attentively(
    words: UInt32Array, table: Int64Array, order: int, node: int, token_ids: Int64Array, attention: Float64Array
) -> int:
    """Draft the most probable token of the mixture of all known contexts, of equals the lowest id, step by step.

    Args:
        words: the block of the trie.
        table: its table.
        order: order of the longest known context; 0 if none is known.
        node: its record.
        token_ids: output; its size is the most that is asked for.
        attention: weights of order, logarithm of the count and entropy; temperature.

    Returns:
        How many tokens were drafted.
    """
    for step in range(token_ids.size):
        if order == 0:
            return step
        low, masses = _mixture(words, table, order, node, attention)
        best, most = -1, 0.0
        for index in range(masses.size):
            if masses[index] > most:
                best, most = index, masses[index]
        if best < 0:
            return step
        width = _width(table, 2)
        token_ids[step] = np.int64(words[table[1, 0] + (low + best) * width]) & TOKEN_MASK
        order, node = _advance(words, table, order, node, token_ids[step])
    return token_ids.size

"""Slow reference for a neural model's proposals, in integer arithmetic; for tests.

``shared/native/neural/model.hpp`` defines the model and the layout of its words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import TokenId

WIDTH, HIDDEN, PLACES, LOOK_BACK, MAX_ROWS = 64, 128, 8, 80, 2**16 - 1
FREQUENT, MOST_OTHERS, MOST_PROPOSALS, WHOLE = 512, 1_024, 32, 10_000
"""Number of frequent tokens, which are always scored; most other scored tokens; most proposals; sum of all counts."""


@dataclass(frozen=True, slots=True)
class NeuralTables:
    """Arrays of a model's words, as 64-bit integers."""

    fractions: tuple[int, int, int, int]
    """Binary places of R, V, A and B."""
    index: NDArray[np.int64]
    tokens: NDArray[np.int64]
    bias: NDArray[np.int64]
    context: NDArray[np.int64]
    output: NDArray[np.int64]
    hidden_in: NDArray[np.int64]
    hidden_out: NDArray[np.int64]
    hidden_bias: NDArray[np.int64]
    scales: NDArray[np.int64]


def arrays_of(words: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a model's words by name, as views."""
    vocabulary_size, num_rows = words[1:3].tolist()
    shapes = {
        "index": (np.uint16, vocabulary_size),
        "tokens": (np.uint32, num_rows),
        "bias": (np.int16, num_rows),
        "context": (np.int8, num_rows, WIDTH),
        "output": (np.int8, num_rows, WIDTH),
        "hidden_in": (np.int8, HIDDEN, WIDTH),
        "hidden_out": (np.int8, WIDTH, HIDDEN),
        "hidden_bias": (np.int16, HIDDEN),
        "scales": (np.int16, PLACES + 1, WIDTH),
    }
    arrays, end = {}, 7
    for name, (dtype, *shape) in shapes.items():
        start = -(-end // 16) * 16
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        end = start + -(-num_bytes // 4)
        arrays[name] = words[start:end].view(np.uint8)[:num_bytes].view(dtype).reshape(shape)
    return arrays


def num_words_of(vocabulary_size: int, num_rows: int) -> int:
    """Return the number of words of a model."""
    sizes = (2 * vocabulary_size, 4 * num_rows, 2 * num_rows, num_rows * WIDTH, num_rows * WIDTH, HIDDEN * WIDTH,
             HIDDEN * WIDTH, 2 * HIDDEN, 2 * (PLACES + 1) * WIDTH)  # fmt: skip
    end = 7
    for size in sizes:
        end = -(-end // 16) * 16 + -(-size // 4)
    return end


def random_words(random: np.random.Generator, token_ids: Sequence[TokenId], vocabulary_size: int) -> NDArray[np.uint32]:
    """Return the words of an untrained model of some tokens: random weights, valid tables."""
    words = np.zeros(num_words_of(vocabulary_size, len(token_ids)), np.uint32)
    words[:7] = [1, vocabulary_size, len(token_ids), *random.integers(0, 17, 4)]
    arrays = arrays_of(words)
    for name, array in arrays.items():
        limits = np.iinfo(array.dtype)
        spread = int(random.choice([1, 5, 100, limits.max]))
        if name not in ("index", "tokens"):
            array[:] = random.integers(max(limits.min, -spread), spread, array.shape, endpoint=True)
    arrays["tokens"][:] = token_ids
    arrays["index"][np.array(token_ids, np.int64)] = np.arange(1, len(token_ids) + 1)
    return words


def read_tables(words: NDArray[np.uint32]) -> NeuralTables:
    """Return the arrays of a model's words."""
    arrays = {name: array.astype(np.int64) for name, array in arrays_of(words).items()}
    arrays["tokens"] &= 2**21 - 1
    return NeuralTables(tuple(words[3:7].tolist()), **arrays)


def propose(
    tables: NeuralTables, context: Sequence[TokenId | None], others: Sequence[TokenId]
) -> list[tuple[TokenId, int]]:
    """Return the most probable tokens after a context, with counts that sum to about ``WHOLE``.

    Args:
        tables: the model.
        context: preceding tokens; None for an invalid id.
        others: further tokens to score, besides the most frequent ones.
    """
    query = _query(tables, [_row(tables, token_id) for token_id in reversed(context[-LOOK_BACK:])])
    frequent = range(min(FREQUENT, len(tables.tokens)))
    known = [row for row in (_row(tables, token_id) for token_id in others) if row is not None]
    rows = [*dict.fromkeys([*frequent, *known])][: len(frequent) + MOST_OTHERS]
    scores = [(int(tables.output[row] @ query) >> tables.fractions[1]) + int(tables.bias[row]) for row in rows]
    weights = [_power(max(scores) - score) for score in scores]
    total = sum(weights)
    least = total // 500
    while len(likely := [index for index, weight in enumerate(weights) if weight > least]) > MOST_PROPOSALS:
        least *= 2
    return [(int(tables.tokens[rows[index]]), (weights[index] * WHOLE + total // 2) // total) for index in likely]


def confidence_class(count: int) -> int:
    """Return the class of the best proposal's count, which serves as the length of a neural context."""
    return sum(count > bound for bound in (300, 600, 1_000, 1_700, 2_700, 4_000, 5_500, 7_000, 8_500, 9_500))


def _row(tables: NeuralTables, token_id: TokenId | None) -> int | None:
    if token_id is None or not 0 <= token_id < len(tables.index):
        return None
    row = int(tables.index[token_id]) - 1
    return row if 0 <= row < len(tables.tokens) else None


def _query(tables: NeuralTables, rows: Sequence[int | None]) -> NDArray[np.int64]:
    """Return the query vector q for the rows of the preceding tokens, newest first; None for a token without a row."""
    places, mean = np.zeros((2, WIDTH), np.int64)
    weight = 0.03 * 256
    for place, row in enumerate(rows):
        if row is not None:
            if place < PLACES:
                places += tables.scales[place] * tables.context[row]
            mean += int(weight + 0.5) * tables.context[row]
        weight *= 0.97
    in_r, _, in_a, in_b = tables.fractions
    x = _narrow((places + (tables.scales[PLACES] * mean >> 6)) >> (2 + in_r))
    hidden = np.maximum(_narrow((tables.hidden_in @ x >> in_a) + tables.hidden_bias), 0)
    return _narrow(x + (tables.hidden_out @ hidden >> in_b))


def _narrow(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.clip(values, -(2**15), 2**15 - 1)


def _power(distance: int) -> int:
    """Return 2 ** (-distance / 1024) as a fixed-point number with 20 binary places, within 0.01 %."""
    octaves, rest = divmod(distance, 1024)
    power = 0
    for term in (40_846, 241_149, 724_548, 1_048_495):
        power = term - (power * rest >> 10)
    return power >> octaves

"""Slow reference for the mixer: the features of candidates, and the network over them; for tests.

It follows the rules of ``shared/native/mixer``. All numbers are 32-bit floats, added in the same order, so that results
are equal.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import TokenId
from support.neural_reference import NeuralTables
from support.oracle import OracleGraph
from support.tree_reference import CORPUS, GAP, LEARNED, NEURAL, RECYCLED, SESSION, Entry, Text

NUM_SLOTS, NUM_COMMON, NUM_FEATURES, WIDTH = 17, 56, 105, 32
"""Number of context slots; features of a position; features of a position and a candidate; hidden units."""
INSIDE, UNCLAIMED, CANDIDATES, TOKENS, LONGEST_MATCH = range(3 * NUM_SLOTS, NUM_COMMON)
(
    CALIBRATED, INTERPOLATED, IS_FIRST, IS_SECOND, RANK, IS_OTHERS, BEHIND_BEST, IS_MODELS_BEST, IS_MODELLED, MODEL_ROW,
    MODEL_BIAS, IS_IN_SEQUENCE, RECENCY, IS_IN_GRAPH, GRAPH_COUNT,
) = range(NUM_COMMON + 2 * NUM_SLOTS, NUM_FEATURES)  # fmt: skip
MOST_SCORED, LEAST_SCORED, LEAST_OTHERS = 32, 2.0**-9, 0.003
"""Maximum scored candidates; least probability of a path that ends in one; least probability of all other tokens."""

F = np.float32
Features = list[tuple[int, np.float32]]


@dataclass(frozen=True, slots=True)
class MixerTables:
    """Weights of the mixer, by layer."""

    hidden: NDArray[np.float32]
    bias: NDArray[np.float32]
    output: NDArray[np.float32]
    linear: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Position:
    """Inputs of the mixer at a position, apart from its candidates."""

    entries: Sequence[Entry]
    text: Text  # searched text of the sequence, without the path
    num_tokens: int  # length of the sequence
    sources: frozenset[str]
    graph: OracleGraph | None
    model: NeuralTables | None
    inside: bool
    reach: float


def read_tables(values: NDArray[np.float32]) -> MixerTables:
    """Split weights, in the order of their file, into layers."""
    hidden, bias, output, linear = np.split(values, np.cumsum([NUM_FEATURES * WIDTH, WIDTH, WIDTH]))
    return MixerTables(hidden.reshape(NUM_FEATURES, WIDTH), bias, output, linear)


def octaves(value: float) -> np.float32:
    """Return an approximate base-2 logarithm."""
    [bits] = struct.unpack("<I", struct.pack("<f", value))
    [mantissa] = struct.unpack("<f", struct.pack("<I", bits & 0x007FFFFF | 0x3F800000))
    part = F(mantissa) - F(1)
    total = ((F(0.15026015) - F(0.04529863) * part) * part - F(0.26887908)) * part + F(0.44225097)
    return F((bits >> 23) - 127) + (part + part * (F(1) - part) * total)


def octaves_of(count: int) -> np.float32:
    """Return the approximate base-2 logarithm of ``count + 1``."""
    return octaves(F(count) + F(1))


def exponential(value: np.float32) -> np.float32:
    """Return an approximate exponential of a number that is at most 0."""
    value = max(value, F(-80))
    whole = int(value * F(1.44269504) - F(0.5))
    rest = (value - F(whole) * F(0.693359375)) + F(whole) * F(2.12194440e-4)
    total = F(0)
    for divisor in (5040, 720, 120, 24, 6, 2, 1, 1):  # Taylor series
        total = total * rest + F(1) / F(divisor)
    return total * F(2.0**whole)


def slot_of(entry: Entry) -> int:
    """Return the slot of a context, by source and length."""
    match entry.source:
        case source if source == CORPUS:
            return min(entry.length, 5) - 1
        case source if source == SESSION:
            return 4 + sum(entry.length >= least for least in (1, 2, 3, 4, 6, 12))
        case source if source == GAP:
            return 11
        case source if source == LEARNED:
            return 12 + (entry.length >= 6)
        case source if source == RECYCLED:
            return 13 + entry.length
    return 16


def mixed(
    tables: MixerTables, position: Position, calibrated: Mapping[TokenId, float], interpolated: Mapping[TokenId, float]
) -> dict[TokenId, float]:
    """Return the probabilities of candidates after the mixer, in the same order.

    Args:
        tables: the mixer's weights.
        position: its other inputs at the position.
        calibrated: the candidates' probabilities after calibration by bins.
        interpolated: the candidates' probabilities before calibration.
    """
    possible = [token_id for token_id in calibrated if calibrated[token_id] * position.reach >= LEAST_SCORED]
    scored = sorted(possible, key=lambda token_id: -calibrated[token_id])[:MOST_SCORED]
    if not scored:
        return dict(calibrated)
    total = 0.0
    for token_id in scored:
        total += min(calibrated[token_id], 1.0)
    features = [
        features_of(position, token_id, rank, calibrated[token_id], interpolated[token_id])
        for rank, token_id in enumerate(scored)
    ]
    features.append([(IS_OTHERS, F(1))])
    firsts = [octaves(min(calibrated[token_id], 1.0)) for token_id in scored]
    firsts.append(octaves(max(LEAST_OTHERS, 1.0 - total)))
    common = weighed(tables, tables.bias, common_features(position, list(calibrated.values())))
    scores = [score(tables, common, first, each) for first, each in zip(firsts, features, strict=True)]
    best = max(scores)
    powers = [exponential((each - best) * F(0.69314718)) for each in scores]
    whole = F(0)
    for each in powers:
        whole += each
    *probabilities, rest = (float(each / whole) for each in powers)
    scale = min(rest / max(LEAST_OTHERS, 1.0 - total), 1.0)
    of_scored = dict(zip(scored, probabilities, strict=True))
    return {token_id: of_scored.get(token_id, each * scale) for token_id, each in calibrated.items()}


def weighed(tables: MixerTables, start: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
    """Return the hidden layer's sums: ``start`` plus the weighted features."""
    total = start
    for feature, value in features:
        total = total + value * tables.hidden[feature]
    return total


def score(tables: MixerTables, common: NDArray[np.float32], first: np.float32, features: Features) -> np.float32:
    """Return the score of a candidate."""
    total = first
    for feature, value in features:
        total += value * tables.linear[feature]
    products = np.maximum(weighed(tables, common, features), F(0)) * tables.output
    parts = products[:8]
    for start in range(8, WIDTH, 8):
        parts = parts + products[start : start + 8]
    for half in (4, 2, 1):
        parts = parts[:half] + parts[half:]
    return total + parts[0]


def common_features(position: Position, calibrated: list[float]) -> Features:
    """Return the features of a position, given the calibrated probabilities of all its candidates."""
    features: Features = []
    for slot in dict.fromkeys(map(slot_of, position.entries)):
        entry = next(entry for entry in position.entries if slot_of(entry) == slot)
        occurrences = entry.length + 1 if entry.source == NEURAL else entry.num_rows or entry.total
        features += [
            (3 * slot, F(1)),
            (3 * slot + 1, octaves_of(occurrences) * F(0.125)),
            (3 * slot + 2, octaves_of(len(entry.counts)) * F(0.125)),
        ]
    total = 0.0
    for probability in calibrated:
        total += probability
    longest = max((entry.length for entry in position.entries if entry.source == SESSION), default=0)
    return [
        *features,
        (LONGEST_MATCH, octaves_of(longest) * F(0.25)),
        *([(INSIDE, F(1))] if position.inside else []),
        (UNCLAIMED, F(max(1.0 - total, 0.0))),
        (CANDIDATES, octaves_of(len(calibrated)) * F(0.125)),
        (TOKENS, octaves_of(position.num_tokens) * F(0.125)),
    ]


def features_of(position: Position, token_id: TokenId, rank: int, calibrated: float, interpolated: float) -> Features:
    """Return the features of a candidate."""
    features: Features = []
    met = set()
    for entry in position.entries:
        slot = slot_of(entry)
        if token_id not in entry.kept or slot in met:
            continue
        met.add(slot)
        count, most = entry.kept[token_id], max(entry.kept.values())
        share = octaves(F(count) + F(0.1))
        first = NUM_COMMON + 2 * slot
        features.append((first, (share - octaves(F(entry.total) + F(0.3))) * F(0.25) + F(1)))
        features.append((first + 1, octaves_of(count) * F(0.25)))
        if entry.source == NEURAL:
            features.append((BEHIND_BEST, (share - octaves(F(most) + F(0.1))) * F(0.25)))
            features += [(IS_MODELS_BEST, F(1))] if count == most else []
    features.append((CALIBRATED, octaves(min(calibrated, 1.0)) * F(0.25)))
    features.append((INTERPOLATED, octaves(interpolated) * F(0.25)))
    features += [(IS_FIRST + rank, F(1))] if rank < 2 else []
    features.append((RANK, octaves_of(rank) * F(0.25)))
    model, graph, text = position.model, position.graph, position.text
    is_modelled = False
    if "neural" in position.sources and model is not None and token_id < len(model.index):
        row = int(model.index[token_id]) - 1
        if is_modelled := 0 <= row < len(model.tokens):
            features.append((IS_MODELLED, F(1)))
            features.append((MODEL_ROW, octaves_of(row) * F(0.125)))
            features.append((MODEL_BIAS, F(model.bias[row]) * F(2.0**-13)))
    if "session" in position.sources and token_id in text:
        features.append((IS_IN_SEQUENCE, F(1)))
        features.append((RECENCY, octaves_of(text[::-1].index(token_id)) * F(0.125)))
    has_graph = not is_modelled and "corpus" in position.sources and graph is not None
    if has_graph and (counts := graph.context_index.get((token_id,))):
        features.append((IS_IN_GRAPH, F(1)))
        features.append((GRAPH_COUNT, octaves_of(counts.total()) * F(0.125)))
    return features

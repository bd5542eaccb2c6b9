"""How far each kind of evidence can be trusted: learned while drafting, from every token that was accepted.

Two tables make a distribution of the entries of a context.

*Escapes.* Going from the longest context to shorter ones, entry k keeps the share 1 - e of what is left and passes e
on: P(x) = sum over k of (prod of e before k) (1 - e_k) count_k(x) / total_k. That is Jelinek and Mercer's interpolated
model (1980), and e is learned as theirs is, by expectation and maximisation, here online: once the true token is known,
every entry is credited with the probability that the token came from it. There is one e for each kind of context
(source, length, occurrences, distinct successors), so that a kind that is often wrong soon counts for little.
(Estimating e as the share of tokens that were new to a context, as PPM does, drafts about 1.2 % worse.)

*Agreement.* The mixture does not know that a candidate which the sequence and the corpus both support is better than
one that a single long context supports. So a second table counts, for each range of P(x) and set of contexts that
support x, how often x was right, and moves P(x) towards that rate. Each candidate is moved by itself: those of one
context may add up to a little more than 1 (0.3 % of contexts do).
"""

from __future__ import annotations

import io
import math
from typing import Any, NamedTuple

import numpy as np

from speculant_graph.draft.escapes import (
    NUM_DISTINCT,
    NUM_LENGTHS,
    NUM_OCCURRENCES,
    SMALLEST_SHARE,
    Float64Array,
    escape_of,
    kind_of,
)
from speculant_graph.draft.sources import (
    CORPUS,
    GAP,
    LEARNED,
    MAX_ENTRIES,
    NUM_SOURCES,
    RECYCLED,
    SESSION,
    Entries,
    GraphArrays,
)
from speculant_graph.errors import ConfigError
from speculant_graph.graph.compiled import Integer, embedded, inlined
from speculant_graph.graph.layout import CUMULATIVE, Int64Array
from speculant_graph.graph.lookup import _find_child, _row, _width

MAX_CANDIDATES = 256
"""Most tokens of a mixed distribution."""
SMALLEST_CANDIDATE = 2.0**-10
"""Less probable candidates are neither adjusted nor drafted."""

_PROBABILITIES, _SUPPORTS = 20, 1 << 12
_INSIDE = 1 << 11
_SLOTS = 1_024
_UNSEEN = 1e-4
"""Probability that the model grants to a token that no entry holds."""
_ESCAPE_MEMORY, _AGREEMENT_MEMORY = 0.9995, 0.999
"""What a visit counts for after one more."""
_ESCAPE_PRIOR = 2.0
"""Visits that the first estimate is worth."""
_AGREEMENT_PRIOR = 5.0
"""Hits, and misses, that were as expected before the first one came."""
_MOST_VISITS = 1.01 / (1.0 - max(_ESCAPE_MEMORY, _AGREEMENT_MEMORY))
"""More than any row can have."""
_FORMAT = 1


class CalibrationArrays(NamedTuple):
    """What kernels see of a calibration."""

    escapes: Float64Array
    """(visits, escapes) of every kind of context, shape ``[kinds, 2]``."""
    agreements: Float64Array
    """(visits, sum of probabilities, hits) of every range of probability and set of contexts, shape
    ``[ranges * sets, 3]``."""


class Mixture(NamedTuple):
    """A distribution over candidates, and scratch."""

    size: Int64Array
    tokens: Int64Array
    probabilities: Float64Array
    supports: Int64Array
    """Which contexts hold the candidate: longest of the sequence, of the corpus, of what was learned, and others."""
    slots: Int64Array
    """Scratch: hash table from tokens to candidates, -1 for none."""
    shares: Float64Array
    """Scratch, shape ``[2, MAX_ENTRIES]``."""


class Calibration:
    """The tables; shared by the sequences of a graph, changed by what they accept."""

    def __init__(self) -> None:
        """Make tables that know nothing yet: longer contexts are trusted more."""
        escapes = np.zeros((NUM_SOURCES, NUM_LENGTHS, NUM_OCCURRENCES, NUM_DISTINCT, 2))
        escapes[..., 0] = _ESCAPE_PRIOR
        for length in range(NUM_LENGTHS):
            escapes[:, length, ..., 1] = _ESCAPE_PRIOR * max(0.08, 0.85 * 0.75 ** (max(1, min(length, 5)) - 1))
        escapes[GAP, ..., 1] = _ESCAPE_PRIOR * 0.8
        escapes[RECYCLED, ..., 1] = _ESCAPE_PRIOR * 0.7
        self.arrays = CalibrationArrays(escapes.reshape(-1, 2), np.zeros((_PROBABILITIES * _SUPPORTS, 3)))

    def copy(self) -> Calibration:
        """Return tables that change apart from these."""
        copy = Calibration()
        copy.arrays = CalibrationArrays(*(table.copy() for table in self.arrays))
        return copy

    def save(self) -> bytes:
        """Return the tables as bytes."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            format=_FORMAT,
            escapes=self.arrays.escapes,
            agreements=self.arrays.agreements,
        )
        return buffer.getvalue()

    @classmethod
    def load(cls, saved: bytes) -> Calibration:
        """Make the tables of :meth:`save` again.

        Raises:
            ConfigError: the bytes are not such tables, or those of another release.
        """
        calibration = cls()
        try:
            with np.load(io.BytesIO(saved), allow_pickle=False) as content:
                if int(content["format"]) != _FORMAT:
                    raise ValueError("format")
                for name, table in calibration.arrays._asdict().items():
                    values = content[name]
                    if values.shape != table.shape or values.dtype != table.dtype:
                        raise ValueError(name)
                    visits = values[:, :1]
                    # Rounding may lift a sum of probabilities a little above the visits.
                    if not ((visits <= _MOST_VISITS) & (values >= 0) & (values <= visits * (1.0 + 1e-9))).all():
                        raise ValueError(name)
                    table[:] = values
        except Exception as error:
            raise ConfigError(
                "the saved calibration is damaged or of another release; delete it to start anew"
            ) from error
        return calibration


def make_mixture() -> Mixture:
    """Return room for the distribution of one context."""
    return Mixture(
        size=np.zeros(1, np.int64),
        tokens=np.zeros(MAX_CANDIDATES, np.int64),
        probabilities=np.zeros(MAX_CANDIDATES),
        supports=np.zeros(MAX_CANDIDATES, np.int64),
        slots=np.full(_SLOTS, -1, np.int64),
        shares=np.zeros((2, MAX_ENTRIES)),
    )


@inlined
def _with_support(support: Integer, source: Integer, length: Integer) -> Any:
    """Add an entry to the set of contexts that hold a candidate; of each source the first counts, which is longest."""
    if source == SESSION:
        if support & 7 == 0:
            support |= length if length <= 2 else (np.int64(3) if length <= 5 else np.int64(4 if length <= 11 else 5))
    elif source == CORPUS:
        if support & (15 << 3) == 0:
            support |= min(length, np.int64(10)) << 3
    elif source == LEARNED:
        if support & (3 << 7) == 0:
            support |= np.int64(1 << 7) if length < 6 else np.int64(2 << 7)
    elif support & (3 << 9) == 0:
        support |= np.int64(1 << 9) if source == GAP else np.int64(2 << 9 if length == 1 else 3 << 9)
    return support


@inlined
def _agreement_row(probability: float, support: Integer) -> Any:
    """Return the row of a candidate in the table of agreements; probabilities are told apart by half octaves."""
    mantissa, exponent = math.frexp(max(probability, 1e-6))
    half: Any = -2 * exponent + (np.int64(1) if mantissa < 0.7071 else np.int64(0))
    return min(max(half, 0), _PROBABILITIES - 1) * _SUPPORTS + support


@embedded
def blend(calibration: CalibrationArrays, entries: Entries, mixture: Mixture, inside: int) -> None:
    """Mix the entries of a context to a distribution, before agreement is taken into account.

    Args:
        calibration: how far to trust the entries.
        entries: the context's.
        mixture: output.
        inside: 1 if the last token of the context was drafted itself (in a draft, or accepted from one), else 0: who
            has just been right is right more often.
    """
    left = 1.0
    count = np.int64(0)
    slots, tokens = mixture.slots, mixture.tokens
    mask = slots.size - 1
    for index in range(entries.size[0]):
        escape = escape_of(calibration.escapes, kind_of(entries, index))
        unit = left * (1.0 - escape) / entries.total[index]
        source, length = entries.source[index], entries.length[index]
        for place in range(entries.start[index], entries.start[index + 1]):
            token_id = entries.tokens[place]
            slot = ((token_id * np.int64(0x1E3779B97F4A7C15)) >> np.int64(40)) & mask
            while slots[slot] >= 0 and tokens[slots[slot]] != token_id:
                slot = (slot + 1) & mask
            candidate = slots[slot]
            if candidate < 0:
                if count == MAX_CANDIDATES:
                    continue
                candidate = count
                slots[slot] = candidate
                tokens[candidate] = token_id
                mixture.probabilities[candidate] = 0.0
                mixture.supports[candidate] = 0
                count += 1
            mixture.probabilities[candidate] += unit * entries.counts[place]
            mixture.supports[candidate] = _with_support(mixture.supports[candidate], source, length)
        left *= escape
        if left < SMALLEST_SHARE:
            break
    for candidate in range(count):
        mixture.supports[candidate] |= _INSIDE * inside
        # In a damaged file a row may hold a token twice.
        mixture.probabilities[candidate] = min(mixture.probabilities[candidate], 1.0)
        slot = ((tokens[candidate] * np.int64(0x1E3779B97F4A7C15)) >> np.int64(40)) & mask
        while slots[slot] >= 0:
            slots[slot] = -1
            slot = (slot + 1) & mask
    mixture.size[0] = count


@inlined
def agreed(calibration: CalibrationArrays, probability: float, support: Integer) -> Any:
    """Return the probability of a candidate with its support taken into account."""
    row = _agreement_row(probability, support)
    agreements = calibration.agreements
    visits, expected, hits = agreements[row, 0], agreements[row, 1], agreements[row, 2]
    # The rarer outcome is what is scaled, so that 0.99 and 0.9 stay apart although they share a row.
    if probability <= 0.5:
        return probability * (hits + _AGREEMENT_PRIOR) / (expected + _AGREEMENT_PRIOR)
    return 1.0 - (1.0 - probability) * (visits - hits + _AGREEMENT_PRIOR) / (visits - expected + _AGREEMENT_PRIOR)


@inlined
def _count_in_entry(graph: GraphArrays, entries: Entries, index: Integer, token_id: Integer) -> Any:
    """Return how often a token followed the context of an entry."""
    start, stop = entries.start[index], entries.start[index + 1]
    for place in range(start, stop):
        if entries.tokens[place] == token_id:
            return entries.counts[place]
    if entries.source[index] == CORPUS and stop - start < entries.distinct[index]:
        order = entries.length[index]
        low, high = _row(graph.words, graph.table, order, entries.node[index])
        child = _find_child(graph.words, graph.table, order, low, high, token_id)
        if child >= 0:
            step = _width(graph.table, order + 1)
            place = graph.table[order, 0] + child * step + CUMULATIVE
            count = np.int64(graph.words[place + step]) - np.int64(graph.words[place])
            return min(max(count, np.int64(0)), entries.total[index])  # a file may be damaged
    return np.int64(0)


@embedded
def learn(
    calibration: CalibrationArrays,
    graph: GraphArrays,
    entries: Entries,
    mixture: Mixture,
    token_id: int,
) -> None:
    """Learn from the token that really followed a context.

    Args:
        calibration: the tables to change.
        graph: where the entries of the corpus come from.
        entries: the context's.
        mixture: their mixture by :func:`blend`.
        token_id: the token.
    """
    escapes, agreements = calibration.escapes, calibration.agreements
    for candidate in range(mixture.size[0]):
        probability = mixture.probabilities[candidate]
        if probability >= SMALLEST_CANDIDATE:
            row = _agreement_row(probability, mixture.supports[candidate])
            hit = 1.0 if mixture.tokens[candidate] == token_id else 0.0
            agreements[row, 0] = agreements[row, 0] * _AGREEMENT_MEMORY + 1.0
            agreements[row, 1] = agreements[row, 1] * _AGREEMENT_MEMORY + probability
            agreements[row, 2] = agreements[row, 2] * _AGREEMENT_MEMORY + hit
    kept, whole = mixture.shares[0], mixture.shares[1]
    below = _UNSEEN
    for index in range(entries.size[0] - 1, -1, -1):
        escape = escape_of(escapes, kind_of(entries, index))
        share = _count_in_entry(graph, entries, index, token_id) / entries.total[index]
        kept[index] = (1.0 - escape) * share
        below = kept[index] + escape * below
        whole[index] = below
    reached = 1.0
    for index in range(entries.size[0]):
        came_from_here = kept[index] / whole[index]
        kind = kind_of(entries, index)
        memory = 1.0 - (1.0 - _ESCAPE_MEMORY) * reached
        escapes[kind, 0] = escapes[kind, 0] * memory + reached
        escapes[kind, 1] = escapes[kind, 1] * memory + reached * (1.0 - came_from_here)
        reached *= 1.0 - came_from_here
        if reached < 0.01:
            break

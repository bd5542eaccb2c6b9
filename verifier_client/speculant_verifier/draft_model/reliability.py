"""How reliable a draft model is beside n-grams: learned online, from every token that followed.

N-grams come as candidates with calibrated probabilities, the model as a row of its most probable tokens. Both are mixed
as contexts of the calibrated drafter are: P(x) = s P_model(x) + (1 - s) P_ngrams(x). There is one share s for each
kind of situation (how sure the n-grams are, and how sure the model is), learned by expectation and maximisation online
(Jelinek and Mercer 1980): once the true token is known, either is credited with the probability that it came from it.
A table of bins then moves P(x) to the rate at which such candidates were right.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from speculant_graph.types import DraftSourceName, TokenId

_SURENESS = (1e-9, 0.25, 0.5, 0.75, 0.9, 0.97)
"""Bounds of classes of the best candidate's probability; below the first there is none."""
_CLASSES = len(_SURENESS) + 1
_UNSEEN = 1e-4
"""Probability of a token that neither holds."""
_SHARE_MEMORY, _BIN_MEMORY, _RIGHT_MEMORY = 0.998, 0.998, 0.97
_SHARE_PRIOR, _BIN_PRIOR, _RIGHT_PRIOR = 4.0, 5.0, 4.0
_HALF_OCTAVES = 20
_SMALLEST = 2.0**-10
"""Less probable candidates are left out."""

Candidate = tuple[TokenId, float]


class Situation(NamedTuple):
    """Where the model may be asked, as far as that predicts how good it will be."""

    is_root: bool
    sureness: float
    """At the root, how often the model was right lately in this sequence; below, the probability of the node."""


class Mixed(NamedTuple):
    """A candidate of both."""

    token_id: TokenId
    probability: float
    source: DraftSourceName


class Reliability:
    """How often one model was right so far, by kinds of situations."""

    def __init__(self) -> None:
        """Begin with equal shares where both have candidates."""
        self._shares = [[_SHARE_PRIOR, 0.5 * _SHARE_PRIOR] for _ in range(_CLASSES * _CLASSES)]
        for sureness in range(_CLASSES):
            self._shares[sureness] = [_SHARE_PRIOR, 0.9 * _SHARE_PRIOR]  # without candidates of n-grams
        self._bins = [[0.0, 0.0, 0.0] for _ in range(_HALF_OCTAVES * 4)]
        # By situation: visits, and at how many of them the model was right. The prior
        # assumes a good model.
        self._model = [
            [_RIGHT_PRIOR, (0.4 + 0.6 * sureness) * _RIGHT_PRIOR] for _ in range(2) for sureness in (0.0, *_SURENESS)
        ]
        # By the same and the sureness of the n-grams: at how many of them the next token was drafted.
        self._mixed = [[0.0, 0.0] for _ in range(len(self._model) * _CLASSES)]

    def mix(self, ngrams: Sequence[Candidate], row: Sequence[Candidate]) -> list[Mixed]:
        """Return the candidates of both, the most probable first.

        Args:
            ngrams: calibrated candidates, best first; none if nothing is known.
            row: the model's most probable tokens, best first.
        """
        mixed = [
            Mixed(each.token_id, self._calibrated(each.probability, kind), each.source)
            for each, kind in self._interpolated(ngrams, row)
        ]
        return sorted((each for each in mixed if each.probability > _SMALLEST), key=lambda each: -each.probability)

    def learn(
        self,
        ngrams: Sequence[Candidate],
        row: Sequence[Candidate],
        token_id: TokenId,
        situation: Situation,
        *,
        is_drafted: bool,
    ) -> bool:
        """Learn from the token that followed a node of which both were known.

        Args:
            ngrams: candidates of the n-grams.
            row: the model's.
            token_id: what followed.
            situation: where.
            is_drafted: whether that was drafted there.

        Returns:
            Whether it was the model's most probable one.
        """
        is_right = bool(row) and row[0][0] == token_id
        kind = _kind_of(situation)
        for counts, was_right in (
            (self._model[kind], is_right),
            (self._mixed[kind * _CLASSES + _class_of(ngrams)], is_drafted),
        ):
            counts[0] = counts[0] * _RIGHT_MEMORY + 1.0
            counts[1] = counts[1] * _RIGHT_MEMORY + was_right
        for each, support in self._interpolated(ngrams, row):
            if each.probability > _SMALLEST:
                counts = self._bins[_bin_of(each.probability, support)]
                counts[0] = counts[0] * _BIN_MEMORY + 1.0
                counts[1] = counts[1] * _BIN_MEMORY + each.probability
                counts[2] = counts[2] * _BIN_MEMORY + (each.token_id == token_id)
        share = self._shares[_class_of(ngrams) * _CLASSES + _class_of(row)]
        ours = share[1] / share[0]
        of_model = ours * dict(row).get(token_id, _UNSEEN)
        of_ngrams = (1.0 - ours) * dict(ngrams).get(token_id, _UNSEEN)
        share[0] = share[0] * _SHARE_MEMORY + 1.0
        share[1] = share[1] * _SHARE_MEMORY + of_model / (of_model + of_ngrams)
        return is_right

    def gain(self, ngrams: Sequence[Candidate], situation: Situation) -> float:
        """Return what asking the model is expected to bring: how much likelier the next token is drafted then."""
        kind = _kind_of(situation)
        before = min(1.0, sum(probability for _, probability in ngrams))
        visits, hits = self._model[kind]
        expected = max(before, hits / visits)
        visits, hits = self._mixed[kind * _CLASSES + _class_of(ngrams)]
        after = (hits + _RIGHT_PRIOR * expected) / (visits + _RIGHT_PRIOR)
        return max(0.0, after - before)

    def _interpolated(self, ngrams: Sequence[Candidate], row: Sequence[Candidate]) -> list[tuple[Mixed, int]]:
        share = self._shares[_class_of(ngrams) * _CLASSES + _class_of(row)]
        ours = share[1] / share[0]
        known = dict(ngrams)
        mixed = []
        for rank, (token_id, probability) in enumerate(row):
            of_ngrams = known.pop(token_id, None)
            both = of_ngrams is not None
            kind = 1 if both else 2 if rank == 0 else 3
            total = ours * probability + (1.0 - ours) * (of_ngrams or 0.0)
            mixed.append((Mixed(token_id, min(1.0, total), "both" if both else "model"), kind))
        mixed += [
            (Mixed(token_id, min(1.0, (1.0 - ours) * probability), "ngrams"), 0)
            for token_id, probability in known.items()
        ]
        return mixed

    def _calibrated(self, probability: float, kind: int) -> float:
        if probability <= _SMALLEST:
            return 0.0
        visits, expected, hits = self._bins[_bin_of(probability, kind)]
        # The rarer outcome is what is scaled, so that 0.99 and 0.9 stay apart although they share a bin.
        if probability <= 0.5:
            return min(1.0, probability * (hits + _BIN_PRIOR) / (expected + _BIN_PRIOR))
        misses = (1.0 - probability) * (visits - hits + _BIN_PRIOR) / (visits - expected + _BIN_PRIOR)
        return max(0.0, 1.0 - misses)


def _class_of(candidates: Sequence[Candidate]) -> int:
    return bisect_right(_SURENESS, candidates[0][1]) if candidates else 0


def _kind_of(situation: Situation) -> int:
    return situation.is_root * _CLASSES + bisect_right(_SURENESS, situation.sureness)


def _bin_of(probability: float, kind: int) -> int:
    return min(_HALF_OCTAVES - 1, int(-2.0 * math.log2(probability))) * 4 + kind

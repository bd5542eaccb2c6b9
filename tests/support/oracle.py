"""The slow and obvious graph that fast ones are held against: dictionaries, and drafting word for word."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from speculant_graph.random_stream import PROPOSAL_STREAM, gumbel_noise, uniform
from speculant_graph.types import CouplingName, StrategyName


class OracleGraph:
    """Counts of all n-grams as Python objects; for tests with short texts."""

    def __init__(self, documents: Sequence[Sequence[int]], max_order: int, min_count: int = 1) -> None:
        """Count every n-gram of 1 to ``max_order + 1`` tokens that lies within a document.

        Args:
            documents: a single one if n-grams may cross everything.
            max_order: longest context.
            min_count: n-grams that occur less often are forgotten.
        """
        self.max_order = max_order
        self.ngram_counts: Counter[tuple[int, ...]] = Counter()
        self.context_index: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for token_ids in documents:
            for length in range(1, max_order + 2):
                for start in range(len(token_ids) - length + 1):
                    self.ngram_counts[tuple(token_ids[start : start + length])] += 1
        for ngram, count in list(self.ngram_counts.items()):
            if count < min_count:
                del self.ngram_counts[ngram]
            elif len(ngram) > 1:
                self.context_index[ngram[:-1]][ngram[-1]] = count
        self.context_index.default_factory = None

    def longest_context(self, context: Sequence[int]) -> tuple[int, ...] | None:
        """Return the longest known end of ``context``."""
        for order in range(min(self.max_order, len(context)), 0, -1):
            if tuple(context[-order:]) in self.context_index:
                return tuple(context[-order:])
        return None

    def draft(
        self,
        prompt: Sequence[int],
        k: int,
        strategy: StrategyName,
        seed: int = 0,
        max_candidates: int = 0,
        coupling: CouplingName = "none",
        temperature: float = 1.0,
    ) -> tuple[list[int], list[dict[int, float]]]:
        """Draft by the loops of the requirements; return the tokens and the distribution behind each."""
        draft_tokens: list[int] = []
        distributions: list[dict[int, float]] = []
        current_context = list(prompt)
        while len(draft_tokens) < k:
            matched = False
            # A context shorter than the largest order starts at its own length.
            for order in range(min(self.max_order, len(current_context)), 0, -1):
                context_ngram = tuple(current_context[-order:])
                if context_ngram in self.context_index:
                    matched = True
                    while len(draft_tokens) < k:
                        distribution = self.distribution(context_ngram, max_candidates, temperature)
                        if strategy == "greedy":
                            successors = self.context_index[context_ngram]
                            next_token = min(successors, key=lambda token: (-successors[token], token))
                        elif coupling == "gumbel":
                            next_token = draw_coupled(distribution, seed, len(current_context))
                        else:
                            number = uniform(seed, len(current_context), PROPOSAL_STREAM)
                            next_token = draw(distribution, number)
                        draft_tokens.append(next_token)
                        distributions.append(distribution)
                        current_context.append(next_token)
                        context_ngram = tuple(current_context[-order:])
                        if context_ngram not in self.context_index:
                            break
                    break
            if not matched:
                break
        return draft_tokens, distributions

    def distribution(
        self, context: tuple[int, ...], max_candidates: int = 0, temperature: float = 1.0
    ) -> dict[int, float]:
        """Return q by ascending token id, as float32 values: the most frequent successors, renormalised."""
        return normalised(tempered(self.context_index[context], temperature), max_candidates)


def tempered(weights: Mapping[int, float], temperature: float) -> Mapping[int, float]:
    """Return weights to the power of 1 / temperature, the largest one being 1."""
    if temperature == 1.0:
        return weights
    largest = max(weights.values())
    return {token: (weight / largest) ** (1.0 / temperature) for token, weight in weights.items()}


def normalised(weights: Mapping[int, float], max_candidates: int) -> dict[int, float]:
    """Return a distribution as float32 values: the largest weights, of equals those of the lowest ids."""
    kept = sorted(sorted(weights, key=lambda token: (-weights[token], token))[: max_candidates or None])
    total = 0.0
    for token in kept:  # as kernels do; ``sum`` makes up for rounding since Python 3.12
        total += weights[token]
    shares = {token: float(np.float32(weights[token] / total)) for token in kept}
    return {token: share for token, share in shares.items() if share > 0.0}


def draw(distribution: dict[int, float], number: float) -> int:
    """Return the first token whose cumulative probability exceeds ``number``, or the last one."""
    cumulative = 0.0
    for token, probability in distribution.items():
        cumulative += probability
        if cumulative > number:
            return token
    return token


def draw_coupled(distribution: dict[int, float], seed: int, position: int) -> int:
    """Return the token of the largest log probability plus noise, of equals the lowest id."""

    def score(token: int) -> float:
        return math.log(distribution[token]) + float(gumbel_noise(seed, position, np.array([token]))[0])

    return max(distribution, key=score)

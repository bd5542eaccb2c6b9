"""The slow and obvious graph that fast ones are held against: dictionaries, and drafting word for word."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

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
                        distribution = self.distribution(context_ngram, max_candidates)
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

    def distribution(self, context: tuple[int, ...], max_candidates: int = 0) -> dict[int, float]:
        """Return q by ascending token id, as float32 values: the most frequent successors, renormalised."""
        successors = self.context_index[context]
        kept = sorted(successors, key=lambda token: (-successors[token], token))[: max_candidates or None]
        total = sum(successors[token] for token in kept)
        return {token: float(np.float32(successors[token] / total)) for token in sorted(kept)}


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

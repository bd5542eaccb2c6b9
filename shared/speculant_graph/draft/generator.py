"""Drafts chains of tokens from a graph: longest known context first, then along it to its dead end.

Knows neither sockets nor models. ``draft`` is the hot path and works on token ids; ``generate`` takes text,
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.graph.ngrams import Match, NgramGraph
from speculant_graph.graph.store import load_graph
from speculant_graph.random_stream import PROPOSAL_STREAM, uniform
from speculant_graph.types import Draft, Proposal, StrategyName, TokenId

STRATEGY_NAMES: tuple[str, ...] = get_args(StrategyName)


class DraftGenerator:
    """Drafts from one graph; safe to share between threads once it is made."""

    def __init__(
        self, graph: NgramGraph, config: DraftConfig | None = None, tokenizer: CorpusTokenizer | None = None
    ) -> None:
        """Make a generator.

        Args:
            graph: what to draft from.
            config: defaults of :meth:`generate`.
            tokenizer: tokenises prompts that are text; otherwise the graph's own is loaded by name when
                needed.

        Raises:
            TokenizerMismatchError: the tokenizer is not the one of the graph.
        """
        self.graph = graph
        self.config = config or DraftConfig()
        self._tokenizer = tokenizer
        if tokenizer is not None:
            tokenizer.require(graph.metadata.tokenizer)
        self._hf_token: str | None = None
        graph.warm_up()

    @classmethod
    def from_file(
        cls, path: str | Path, config: DraftConfig | None = None, hf_token: str | None = None
    ) -> DraftGenerator:
        """Make a generator from a graph file.

        Args:
            path: the file.
            config: defaults of :meth:`generate`.
            hf_token: access token, if the graph's tokenizer is a gated one on the hub.

        Raises:
            GraphFileError: the file can't be read.
        """
        generator = cls(load_graph(path), config)
        generator._hf_token = hf_token
        return generator

    def generate(
        self,
        prompt: str | Sequence[TokenId],
        k: int | None = None,
        strategy: StrategyName | None = None,
        seed: int = 0,
    ) -> Draft:
        """Draft what may follow a prompt.

        Args:
            prompt: text or token ids.
            k: most tokens to draft; the configured number if None.
            strategy: how to choose them; the configured one if None.
            seed: seed of the strategy ``sampling``.

        Raises:
            ConfigError: there is no such strategy, or the tokenizer for a text prompt can't be loaded.
            TokenizerMismatchError: the tokenizer of the graph's name is not the one the graph was built with.
        """
        context = self._encoded(prompt) if isinstance(prompt, str) else prompt
        return self.draft(
            context,
            self.config.k if k is None else k,
            strategy or self.config.strategy,
            seed,
            max_candidates=self.config.max_candidates,
        )

    def draft(
        self,
        context: Sequence[TokenId],
        k: int,
        strategy: StrategyName,
        seed: int = 0,
        position: int | None = None,
        max_candidates: int = 0,
    ) -> Draft:
        """Draft up to k tokens that may follow ``context``; a pure function of its arguments.

        The longest context that is known decides. Its order is kept while the window slides, until the window
        is unknown; then the longest known context is searched again.

        Args:
            context: at least the last N tokens of the sequence, or all of them if there are fewer.
            k: most tokens to draft; none if it is not positive.
            strategy: ``greedy`` takes the most frequent successor, of equals the lowest id; ``sampling``
                draws from
                the distribution of successors and returns it.
            seed: seed of the draws.
            position: index in the sequence of the first token drafted, ``len(context)`` by default.
            max_candidates: most successors that a distribution keeps; 0 keeps all.

        Raises:
            ConfigError: there is no such strategy.
        """
        if strategy not in STRATEGY_NAMES:
            raise ConfigError(f"no strategy {strategy!r}; choose one of {', '.join(STRATEGY_NAMES)}")
        proposals: list[Proposal] = []
        if strategy == "greedy":
            token_ids = self.graph.draft_greedy(context, k)
        else:
            start = len(context) if position is None else position
            token_ids, proposals = self._sampled(context, k, seed, start, max_candidates)
        return Draft(
            token_ids=tuple(token_ids),
            parents=tuple(range(len(token_ids))),
            proposals=tuple(proposals),
            strategy=strategy,
            terminated_early=len(token_ids) < k,
        )

    def _sampled(
        self, context: Sequence[TokenId], k: int, seed: int, start: int, max_candidates: int
    ) -> tuple[list[TokenId], list[Proposal]]:
        token_ids: list[TokenId] = []
        proposals: list[Proposal] = []
        match = self.graph.match(context)
        while match is not None and len(token_ids) < k:
            proposal = self._proposal(match, max_candidates)
            token_id = draw(proposal, uniform(seed, start + len(token_ids), PROPOSAL_STREAM))
            token_ids.append(token_id)
            proposals.append(proposal)
            try:
                match = self.graph.slide(match, token_id)
            except GraphError:  # a damaged file, whose successors can't all be found again
                break
        return token_ids, proposals

    def _proposal(self, match: Match, max_candidates: int) -> Proposal:
        successors = self.graph.successors(match)
        token_ids, counts = successors.token_ids, successors.counts
        if 0 < max_candidates < counts.size:
            # Stable, and ids ascend: of equally frequent successors those with the lowest ids stay.
            kept = np.sort(np.argsort(-counts.astype(np.int64), kind="stable")[:max_candidates])
            token_ids, counts = token_ids[kept], counts[kept]
        counts = np.maximum(counts, 1)  # a damaged file may hold zeros, which make no distribution
        return Proposal(token_ids, (counts / counts.sum()).astype(np.float32))

    def _encoded(self, text: str) -> list[TokenId]:
        if self._tokenizer is None:
            expected = self.graph.metadata.tokenizer
            tokenizer = CorpusTokenizer.load(expected.name, self._hf_token)
            tokenizer.require(expected)
            self._tokenizer = tokenizer
        return self._tokenizer.encode(text)


def draw(proposal: Proposal, number: float) -> TokenId:
    """Return the token at a quantile: the first whose cumulative probability exceeds it.

    Args:
        proposal: distribution to draw from.
        number: quantile in [0, 1).
    """
    cumulative = np.cumsum(proposal.probabilities, dtype=np.float64)
    # float32 rounding may leave the sum below 1: the rest belongs to the last token, and all of them are
    # possible.
    index = min(int(np.searchsorted(cumulative, number, side="right")), cumulative.size - 1)
    return int(proposal.token_ids[index])

"""Drafts chains of tokens from a graph, greedily or by sampling.

Knows neither sockets nor models. ``draft`` is the hot path and works on token ids; ``generate`` takes text,
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft import chain, chain_batch
from speculant_graph.draft.batch import DraftBatch
from speculant_graph.draft.sampled_tree import TreeShape, draw_trees
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import load_graph
from speculant_graph.types import CouplingName, Draft, Proposal, StrategyName, TokenId

MAX_SUPPORT = 1 << 27
"""Entries of distributions that take a gigabyte."""
_FIRST_PARENTS = np.arange(1_024)
CHAIN_STRATEGY_NAMES: tuple[StrategyName, ...] = ("greedy", "sampling")
"""What a graph alone can do."""


class DraftGenerator:
    """Drafts from one graph; safe to share between threads once it is made."""

    def __init__(
        self, graph: NgramGraph, config: DraftConfig | None = None, tokenizer: CorpusTokenizer | None = None
    ) -> None:
        """Make a generator.

        Args:
            graph: what to draft from.
            config: mixing, and defaults of :meth:`generate`.
            tokenizer: tokenises prompts that are text, as the verifier does; otherwise the graph's own is loaded by
                name when needed.

        Raises:
            TokenizerMismatchError: the tokenizer is not the one of the graph.
        """
        self.graph = graph
        self.config = config or DraftConfig()
        self._attention = _attention_of(self.config)
        self._tokenizer = tokenizer
        if tokenizer is not None:
            tokenizer.require(graph.metadata.tokenizer)
        self._hf_token: str | None = None
        graph.warm_up()
        self._warm_up()

    @classmethod
    def from_file(
        cls, path: str | Path, config: DraftConfig | None = None, hf_token: str | None = None
    ) -> DraftGenerator:
        """Make a generator from a graph file.

        Args:
            path: the file.
            config: mixing, and defaults of :meth:`generate`.
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
            prompt: text, which is encoded as the verifier does it, or token ids.
            k: most tokens to draft; the configured number if None.
            strategy: how to choose them; if None the one that somebody has set in the configuration, else ``greedy``.
            seed: seed of the strategy ``sampling``.

        Raises:
            ConfigError: there is no such strategy, it needs more than a graph, or the tokenizer for a text prompt
                can't be loaded.
            TokenizerMismatchError: the tokenizer of the graph's name is not the one the graph was built with.
        """
        context = self._encoded(prompt) if isinstance(prompt, str) else prompt
        configured = self.config.strategy if "strategy" in self.config.model_fields_set else "greedy"
        return self.draft(
            context,
            self.config.k if k is None else k,
            strategy or configured,
            seed,
            max_candidates=self.config.max_candidates,
            coupling=self.config.coupling,
            temperature=self.config.temperature,
        )

    def draft(
        self,
        context: Sequence[TokenId],
        k: int,
        strategy: StrategyName,
        seed: int = 0,
        position: int | None = None,
        max_candidates: int = 0,
        coupling: CouplingName = "none",
        temperature: float = 1.0,
        tree: TreeShape | None = None,
    ) -> Draft:
        """Draft up to k tokens that may follow ``context``; a pure function of its arguments and the configuration.

        The longest context that is known decides. Its order is kept while the window slides, until the window
        is unknown; then the longest known context is searched again. If the configured mixing is ``attention``, all
        known contexts decide together, and are matched anew after every token.

        Args:
            context: at least the last N tokens of the sequence, or all of them if there are fewer.
            k: most tokens to draft; none if it is not positive.
            strategy: ``greedy`` takes the most probable successor, of equals the lowest id; ``sampling`` draws from
                the distribution of successors and returns it.
            seed: seed of the draws.
            position: index in the sequence of the first token drafted, ``len(context)`` by default.
            max_candidates: most successors that a distribution keeps; 0 keeps all.
            coupling: how ``sampling`` draws chains.
            temperature: ``sampling`` draws from the distribution to the power of 1 / temperature, then capped.
            tree: has ``sampling`` draw a tree.

        Raises:
            ConfigError: there is no such strategy, or it needs more than a graph.
        """
        if strategy not in CHAIN_STRATEGY_NAMES:
            raise ConfigError(_refusal(strategy))
        proposals: list[Proposal] = []
        start = len(context) if position is None else position
        if strategy == "greedy":
            token_ids = self._greedy(context, k)
        elif tree is not None:
            match = self.graph.match(context)
            state = (0, 0) if match is None else (match.order, match.node)
            return self._trees([state], [k], tree, [seed], [start], max_candidates, MAX_SUPPORT, temperature)[0]
        else:
            token_ids, proposals = self._sampled(context, k, seed, start, max_candidates, coupling, temperature)
        return Draft(
            token_ids=tuple(token_ids),
            parents=tuple(range(len(token_ids))),
            proposals=tuple(proposals),
            strategy=strategy,
            terminated_early=len(token_ids) < k,
        )

    def draft_batch(
        self,
        states: Int64Array,
        budgets: Sequence[int],
        strategy: StrategyName,
        *,
        seeds: Sequence[int],
        positions: Sequence[int],
        max_candidates: int = 0,
        max_support: int = MAX_SUPPORT,
        coupling: CouplingName = "none",
        temperature: float = 1.0,
        tree: TreeShape | None = None,
    ) -> DraftBatch:
        """Draft for several sequences at once what :meth:`draft` would for each.

        Args:
            states: per sequence (order, record) of the longest context at its end that is known, shape
                ``[sequences, 2]``.
            budgets: per sequence, most tokens to draft.
            strategy: ``greedy`` or ``sampling``.
            seeds: per sequence, seed of the draws.
            positions: per sequence, index of the first token drafted.
            max_candidates: most successors that a distribution keeps; 0 keeps all.
            max_support: most entries of all distributions together: drafts end where another one may not fit. 0 leaves
                those of chains out.
            coupling: how ``sampling`` draws chains.
            temperature: ``sampling`` draws from the distribution to the power of 1 / temperature, then capped.
            tree: has ``sampling`` draw trees.
        """
        if strategy == "sampling" and tree is not None:
            return self._trees(
                states.tolist(), budgets, tree, seeds, positions, max_candidates, max_support, temperature
            )
        trie = self.graph.trie
        wanted = np.array(budgets, np.int64)
        distributions: tuple[Any, ...] = ()
        if strategy == "greedy":
            lengths, token_ids = chain_batch.greedy_batch(trie.words, trie.table, states, wanted, self._attention)
        else:
            lengths, token_ids, *distributions = chain_batch.sample_batch(
                trie.words,
                trie.table,
                states,
                wanted,
                np.array(seeds, np.uint64).view(np.int64),
                np.array(positions, np.uint64).view(np.int64),
                max_candidates,
                max_support,
                coupling == "gumbel",
                temperature,
                self._attention,
            )
        nodes_of = lengths.tolist()
        parents = _FIRST_PARENTS[: nodes_of[0]] if len(nodes_of) == 1 else _parents(lengths, token_ids.size)
        return DraftBatch(
            strategy,
            nodes_of,
            (lengths < wanted).tolist(),
            token_ids,
            parents,
            (),
            *distributions,
        )

    def _greedy(self, context: Sequence[TokenId], k: int) -> list[TokenId]:
        if not self._attention.size:
            return self.graph.draft_greedy(context, k)
        match = self.graph.match(context)
        if match is None:
            return []
        token_ids = np.empty(max(0, k), np.int64)
        trie = self.graph.trie
        num_tokens = chain.draft_attentively(
            trie.words, trie.table, match.order, match.node, token_ids, self._attention
        )
        drafted: list[TokenId] = token_ids[:num_tokens].tolist()
        return drafted

    def _sampled(
        self,
        context: Sequence[TokenId],
        k: int,
        seed: int,
        start: int,
        max_candidates: int,
        coupling: CouplingName,
        temperature: float,
    ) -> tuple[list[TokenId], list[Proposal]]:
        match = self.graph.match(context)
        if match is None:
            return [], []
        trie = self.graph.trie
        token_ids, ends, support, probabilities = chain.sample(
            trie.words, trie.table, match.order, match.node, max(0, k), _signed(seed), _signed(start), max_candidates,
            coupling == "gumbel", temperature, self._attention,
        )  # fmt: skip
        proposals: list[Proposal] = []
        begin = 0
        for end in ends.tolist():
            proposals.append(Proposal(support[begin:end], probabilities[begin:end]))
            begin = end
        return token_ids.tolist(), proposals

    def _trees(
        self,
        states: Sequence[tuple[int, int]],
        budgets: Sequence[int],
        tree: TreeShape,
        seeds: Sequence[int],
        positions: Sequence[int],
        max_candidates: int,
        max_support: int,
        temperature: float,
    ) -> DraftBatch:
        return draw_trees(
            self.graph.trie,
            states,
            budgets,
            tree,
            seeds=[_signed(seed) for seed in seeds],
            positions=[_signed(position) for position in positions],
            max_candidates=max_candidates,
            max_support=max_support,
            temperature=temperature,
            attention=self._attention,
        )

    def _warm_up(self) -> None:
        """Compile or load the kernels, which the first draft of each kind does otherwise."""
        trie = self.graph.trie
        chain.sample(trie.words, trie.table, 0, 0, 0, 0, 0, 0, False, 1.0, self._attention)
        for strategy in CHAIN_STRATEGY_NAMES:
            self.draft_batch(np.zeros((1, 2), np.int64), [0], strategy, seeds=[0], positions=[0])
        self._trees([(0, 0)], [0], TreeShape(False, 1, 1), [0], [0], 0, 0, 1.0)
        if self._attention.size:
            chain.draft_attentively(trie.words, trie.table, 0, 0, np.empty(0, np.int64), self._attention)

    def _encoded(self, text: str) -> list[TokenId]:
        if self._tokenizer is None:
            expected = self.graph.metadata.tokenizer
            tokenizer = CorpusTokenizer.load(expected.name, self._hf_token, special_tokens="parse")
            tokenizer.require(expected)
            self._tokenizer = tokenizer
        return self._tokenizer.encode_prompt(text)


def _attention_of(config: DraftConfig) -> chain.Float64Array:
    """Return what the kernels take: nothing if the longest context decides."""
    if config.mixing == "longest":
        return np.empty(0)
    return np.array(
        [config.attention_order, config.attention_count, config.attention_entropy, config.attention_temperature]
    )


def _parents(lengths: Int64Array, num_nodes: int) -> Int64Array:
    """Return the parents of chains of these lengths, one after another."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.arange(num_nodes, dtype=np.int64) - starts


def _refusal(strategy: str) -> str:
    if strategy in get_args(StrategyName):
        return (
            f"strategy {strategy!r} needs what sequences accepted; draft with "
            "speculant_graph.draft.session_drafter.SessionDrafter"
        )
    return f"no strategy {strategy!r}; choose one of {', '.join(CHAIN_STRATEGY_NAMES)}"


def _signed(number: int) -> int:
    """Return an integer modulo 2**64 as kernels take it."""
    return (number + 2**63) % 2**64 - 2**63

"""Drafts from a graph, one sequence at a time: ``draft`` accepts token ids; ``generate`` also accepts text."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions, require_k
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import DraftRequestError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import StrategyName
from speculant_graph.types import Draft, TokenId


class DraftGenerator:
    """Drafts tokens from one graph; threads may share a generator."""

    def __init__(
        self, graph: NgramGraph, config: DraftConfig | None = None, tokenizer: CorpusTokenizer | None = None
    ) -> None:
        """Make a generator.

        Args:
            graph: the graph to draft from.
            config: drafting settings, and the defaults of :meth:`generate`.
            tokenizer: encodes text prompts as the verifier does. If None, the graph's own tokenizer is loaded by name
                when a text prompt needs it.

        Raises:
            TokenizerMismatchError: the tokenizer is not the graph's.
        """
        self.graph = graph
        self.config = config or DraftConfig()
        self._drafter = SessionDrafter(graph, self.config)
        self._tokenizer = tokenizer
        if tokenizer is not None:
            tokenizer.require(graph.metadata.tokenizer)
        self._hf_token: str | None = None

    @classmethod
    def from_file(
        cls, path: str | Path, config: DraftConfig | None = None, hf_token: str | None = None
    ) -> DraftGenerator:
        """Make a generator from a graph file.

        Args:
            path: the file.
            config: drafting settings, and the defaults of :meth:`generate`.
            hf_token: access token, if the graph's tokenizer is gated on the hub.

        Raises:
            GraphFileError: the file can't be read.
        """
        generator = cls(NgramGraph.load(path), config)
        generator._hf_token = hf_token
        return generator

    def generate(
        self,
        prompt: str | Sequence[TokenId],
        k: int | None = None,
        strategy: StrategyName | None = None,
        seed: int = 0,
    ) -> Draft:
        """Draft tokens that may follow a prompt.

        Args:
            prompt: token ids, or text, which is encoded as the verifier encodes it.
            k: maximum number of tokens to draft; None uses the configured number.
            strategy: strategy that chooses the tokens; None uses the configured strategy if one is set, else
                ``greedy``.
            seed: seed of the strategy ``sampling``.

        Raises:
            ConfigError: the strategy needs more than a graph, or the tokenizer for a text prompt can't be loaded.
            DraftRequestError: there is no such strategy, k is out of its bounds, or the prompt is neither text nor
                token ids of the graph's vocabulary.
            TokenizerMismatchError: the tokenizer found by the name in the graph is not the one that built the graph.
        """
        context = self._encoded(prompt) if isinstance(prompt, str) else self._known(prompt)
        configured = self.config.strategy if "strategy" in self.config.model_fields_set else "greedy"
        return self.draft(context, self.config.k if k is None else k, strategy or configured, seed)

    def draft(
        self,
        context: Sequence[TokenId],
        k: int,
        strategy: StrategyName,
        seed: int = 0,
        position: int | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> Draft:
        """Draft up to k tokens that may follow ``context``, depending only on the arguments and the configuration.

        ``greedy`` and ``sampling`` start from the longest suffix of ``context`` that the graph contains, and slide a
        window of the same length over the drafted tokens. If the graph does not contain the window, they look for the
        longest suffix again. The other strategies also draft from matches within ``context`` itself.

        Args:
            context: at least the last ``graph.max_order`` tokens of the sequence, or all tokens if there are fewer.
            k: maximum number of tokens to draft, 0 to 2,048.
            strategy: ``greedy`` takes the most probable successor, or the lowest id among equals; ``sampling`` draws
                from the distribution of successors, and returns this distribution.
            seed: seed of the draws.
            position: index of the first drafted token in the sequence, ``len(context)`` by default.
            options: other options that differ from the configuration.

        Raises:
            ConfigError: the strategy needs more than a graph.
            DraftRequestError: there is no such strategy, k or an option is out of its bounds, or ``context`` has
                invalid token ids.
        """
        k = require_k(k)
        positions = [len(context) if position is None else position]
        return self._drafter.draft_contexts([context], [k], [seed], positions, replace(options, strategy=strategy))[0]

    def _known(self, prompt: Sequence[TokenId]) -> Sequence[TokenId]:
        size = self.graph.vocabulary_size
        try:
            is_known = not any(isinstance(token, bool) for token in prompt) and all(
                0 <= operator.index(token) < size for token in prompt
            )
        except TypeError:
            is_known = False
        if is_known and not isinstance(prompt, bytes | bytearray):
            return prompt
        raise DraftRequestError(
            f"the prompt {reprlib.repr(prompt)} is neither text nor a list of token ids from 0 to {size - 1}",
            fix="give one of them, by the graph's tokenizer",
            field="prompt",
        )

    def _encoded(self, text: str) -> list[TokenId]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DraftRequestError("the prompt is not valid Unicode", fix="give UTF-8", field="prompt") from error
        if self._tokenizer is None:
            expected = self.graph.metadata.tokenizer
            tokenizer = CorpusTokenizer.load(expected.name, self._hf_token, special_tokens="parse")
            tokenizer.require(expected)
            self._tokenizer = tokenizer
        return self._tokenizer.encode_prompt(text)

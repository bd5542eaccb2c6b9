"""Drafts for many sequences, from a graph and from what the sequences themselves accept.

A sequence is opened, extended by what was accepted, drafted for, and closed. Every draft is made from all that is known
at that moment; what is accepted teaches the next one. Depends on neither sockets nor models.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from loguru import logger

from speculant_graph import _core
from speculant_graph.argument_types import require_types
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import LearnedStore, Memory, load_calibration
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions, require_source, settings_of
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.graph.layout import MAX_VOCABULARY, Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import num_cores
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import Draft, TokenId

MAX_NODES = 2_048
"""Most nodes of a draft."""
MAX_SUPPORT = 1 << 27
"""Entries of distributions that take a gigabyte."""
NUM_SEEDS = 1 << 64
"""Seeds and positions that the core distinguishes."""
_MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What is wanted for one sequence."""

    session_id: int
    """The sequence."""
    node_budget: int
    """Most nodes; more than 1,024 are never drafted."""
    seed: int = 0
    """Seed of ``sampling``: the same seed and position give the same draft."""
    options: DraftOptions | None = None
    """How to draft; None: as the rest of the batch."""
    least_probability: float = 0.0
    """Nodes whose paths are less probable are not drafted."""


@dataclass(frozen=True, slots=True)
class _Open:
    """An open sequence, and its tenant's memory, which is kept as long."""

    core: _core.Sequence
    memory: Memory


def _no_messages(_options: bytes) -> DraftOptions:
    raise DraftRequestError("this drafter takes no messages; give DraftOptions")


class SessionDrafter:
    """Drafts for many sequences. Safe to use from several threads, which wait for each other for moments only."""

    def __init__(
        self,
        graph: NgramGraph | None,
        config: DraftConfig | None = None,
        *,
        calibration: _core.Calibration | None = None,
        learned: LearnedStore | None = None,
        vocabulary_size: int | None = None,
        max_session_tokens: int = 131_072,
        num_threads: int = 0,
        read_options: Callable[[bytes], DraftOptions] = _no_messages,
    ) -> None:
        """Make a drafter without sequences.

        Args:
            graph: the corpus; None drafts from the sequences alone.
            config: how to draft.
            calibration: how reliable contexts are; changed by what is accepted. By default what the store keeps, or
                else what the graph was built with.
            learned: what earlier sequences accepted; a store in memory by default.
            vocabulary_size: without a graph, the size of the vocabulary if it is known.
            max_session_tokens: tokens of one sequence that drafts look back on, at least 256; of longer ones the oldest
                are forgotten.
            num_threads: threads that draft for a large batch; 0: one per core that the process may use. Drafts are the
                same.
            read_options: reads options as they travel, for steps that the core answers.

        Raises:
            ConfigError: the configured strategy has nothing to draft from, or an argument is of a wrong type.
        """
        require_types(locals(), {"graph": NgramGraph, "config": DraftConfig, "learned": LearnedStore})
        self.graph = graph
        self.config = config = config or DraftConfig()
        has_graph = graph is not None
        strategy, sources = self.config.strategy, self.config.sources
        absent = {"corpus", "neural"} if graph is None else set() if graph.trie.num_model_words else {"neural"}
        if "sources" in STRATEGIES[strategy].reads and not sources - absent:
            raise ConfigError(
                f"strategy {strategy} has nothing to draft from",
                fix="give a graph, or add the source session",
                field="draft.sources",
            )
        require_source(self.config, graph is not None)
        vocabulary_size = (vocabulary_size or MAX_VOCABULARY) if graph is None else graph.vocabulary_size
        self.learned = learned or LearnedStore(self.config.max_learned_tokens)
        self.calibration = calibration or self.learned.load_calibration() or _calibration_of(graph)
        # Clients may request anything, so nothing is kept for ever.
        self.settings = lru_cache(_MOST_KEPT)(partial(settings_of, self.config, graph is not None))
        """Settings of the core, by :class:`DraftOptions`."""
        # No function that the core gets refers to this drafter, which would never be freed.
        self.core = _core.Drafter(
            None if graph is None else graph.core,
            vocabulary_size,
            self.calibration,
            max_session_tokens,
            num_threads or num_cores(),
            lambda options: settings_of(config, has_graph, read_options(options) if options else DEFAULT_OPTIONS),
        )
        """What drafts."""
        self._sequences: dict[int, _Open] = {}

    def __len__(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False) -> None:
        """Begin a sequence.

        Args:
            session_id: its number, not in use.
            tenant: its tenant: it drafts from what this tenant's earlier sequences accepted.
            learn: whether later sequences of the tenant draft from what this one accepts and recycles.

        Raises:
            DraftRequestError: the number is in use.
        """
        memory = self.learned.memory(tenant)  # may read from disk, which no draft should wait for
        opened = _Open(self.core.open(memory.core, self.learns(learn)), memory)
        if self._sequences.setdefault(session_id, opened) is not opened:
            raise DraftRequestError(f"session {session_id} is open already; close it or choose another number")

    def learns(self, wanted: bool) -> bool:
        """Return whether later sequences learn from one that is opened so."""
        return wanted and self.config.max_learned_tokens > 0

    def accept(self, session_id: int, token_ids: Sequence[TokenId] | Int64Array, *, is_prompt: bool = False) -> None:
        """Add tokens to a sequence: at first the prompt, then, step by step, what was accepted.

        What follows the prompt teaches how reliable the sources are. Ids that are not in the vocabulary equal nothing
        and are never drafted.

        Args:
            session_id: the sequence.
            token_ids: the tokens.
            is_prompt: whether they are still of the prompt; those of the first call are.

        Raises:
            DraftRequestError: there is no such sequence, or these are no token ids.
        """
        self.core.accept(self._find(session_id), _as_array(token_ids), is_prompt)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]] | Int64Array) -> None:
        """Learn the target's most probable tokens at positions of the latest draft, before :meth:`accept`.

        Args:
            session_id: the sequence.
            nodes: per row the node it follows: 0 for the end of the sequence, j + 1 for node j of its latest draft,
                accepted or not.
            rows: per row the most probable next tokens, best first, shape ``[nodes, width]``; negative for none.

        Raises:
            DraftRequestError: there is no such sequence or node, these are no token ids, or not one row per node.
        """
        sequence = self._find(session_id)
        if len(nodes) != len(rows):
            raise DraftRequestError(f"{len(rows)} rows came with {len(nodes)} nodes; give one row per node")
        if len(nodes):
            self.core.add_rows(sequence, np.array(nodes, np.int64), _as_array(rows, 2))

    def draft(
        self,
        requests: Sequence[DraftRequest],
        options: DraftOptions = DEFAULT_OPTIONS,
        max_support: int = MAX_SUPPORT,
    ) -> list[Draft]:
        """Draft for a batch, in order.

        Args:
            requests: what is wanted for each sequence.
            options: how to draft where a request leaves it open.
            max_support: most entries of all distributions of those with equal options together: drafts end where
                another one may not fit.

        Raises:
            DraftRequestError: a sequence is not open, or an option is out of its bounds.
            ConfigError: the strategy needs a graph.
        """
        by_options: dict[DraftOptions, list[int]] = {}
        for index, request in enumerate(requests):
            by_options.setdefault(request.options or options, []).append(index)
        drafts: dict[int, Draft] = {}
        for each, indices in by_options.items():
            settings = self.settings(each)
            batch = [requests[index] for index in indices]
            made = self.core.draft(
                [self._find(request.session_id) for request in batch],
                [request.node_budget for request in batch],
                [request.seed % NUM_SEEDS for request in batch],
                [],
                [request.least_probability for request in batch],
                settings,
                max_support,
            )
            drafts.update(zip(indices, made, strict=True))
        return [drafts[index] for index in range(len(requests))]

    def draft_contexts(
        self,
        contexts: Sequence[Sequence[TokenId] | Int64Array],
        budgets: Sequence[int],
        seeds: Sequence[int],
        positions: Sequence[int],
        options: DraftOptions = DEFAULT_OPTIONS,
        max_support: int = MAX_SUPPORT,
    ) -> list[Draft]:
        """Draft for sequences that are not open, from the corpus and their own last tokens; nothing is remembered.

        Args:
            contexts: per sequence its last tokens.
            budgets: per sequence, most nodes.
            seeds: per sequence, seed of ``sampling``.
            positions: per sequence, index of the first token drafted.
            options: how to draft.
            max_support: most entries of all distributions together: drafts end where another one may not fit.

        Raises:
            DraftRequestError: an option is out of its bounds.
            ConfigError: the strategy needs a graph.
        """
        settings = self.settings(options)
        return self.core.draft(
            [self.core.begin_after(_as_array(context), settings) for context in contexts],
            list(budgets),
            [seed % NUM_SEEDS for seed in seeds],
            [position % NUM_SEEDS for position in positions],
            [0.0] * len(budgets),
            settings,
            max_support,
        )

    def num_bytes(self, session_id: int) -> int:
        """Return the memory that is a sequence's own.

        Raises:
            DraftRequestError: there is no such sequence.
        """
        return self._find(session_id).num_bytes

    def close(self, session_id: int) -> None:
        """End a sequence; what it accepted is learned if it was opened so. An unknown one is ignored."""
        ended = self._sequences.pop(session_id, None)
        if ended is not None:
            self.learned.keep(ended.memory, ended.core.finish())

    def save(self, *, is_routine: bool = False) -> None:
        """Bring what sequences taught to disk, if the store has one; drafts go on meanwhile.

        Args:
            is_routine: whether this is done every few seconds, so that what is large may wait for a later time.
        """
        self.learned.save(self.calibration.copy(), is_routine=is_routine)

    def _find(self, session_id: int) -> _core.Sequence:
        try:
            return self._sequences[session_id].core
        except KeyError:
            raise DraftRequestError(f"session {session_id} is not open; open it first") from None


def _calibration_of(graph: NgramGraph | None) -> _core.Calibration:
    if graph is None or not graph.metadata.calibration:
        return _core.Calibration()
    try:
        return load_calibration(graph.metadata.calibration)
    except ConfigError:
        logger.warning(
            "the graph's calibration is of another release; build the graph again to have one from the start"
        )
        return _core.Calibration()


def _as_array(token_ids: Sequence[Any] | Int64Array, num_dimensions: int = 1) -> Int64Array:
    """Return token ids as an array that the core takes."""
    try:
        tokens = np.array(token_ids, order="C")
    except ValueError:  # lists of several lengths
        tokens = np.empty((), object)
    if tokens.ndim == num_dimensions and (tokens.dtype.kind in "iu" or not tokens.size):
        return tokens.astype(np.int64, copy=False)
    raise DraftRequestError(f"{reprlib.repr(token_ids)} is no list of token ids; give whole numbers")

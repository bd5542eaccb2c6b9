"""Drafts for many sequences, from a graph and from what the sequences themselves accept.

A sequence is opened, told what was accepted, asked for drafts, and closed. Every draft is made from all that is known
at that moment; what is accepted teaches the next one. Knows neither sockets nor models.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Iterable, Sequence
from typing import get_args

import numpy as np
from loguru import logger

from speculant_graph.config import DraftConfig
from speculant_graph.draft.batch import DraftBatch, batch_of
from speculant_graph.draft.calibration import Calibration
from speculant_graph.draft.cost import CostCurve
from speculant_graph.draft.generator import CHAIN_STRATEGY_NAMES, MAX_SUPPORT
from speculant_graph.draft.history import NOTHING
from speculant_graph.draft.learned import LearnedStore, Memory
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions
from speculant_graph.draft.recycled import RecycledRows
from speculant_graph.draft.sequence import DraftedSequence, graph_arrays
from speculant_graph.draft.strategies import CALIBRATED, DraftOrder, Strategies
from speculant_graph.draft.views import Handles
from speculant_graph.draft.workspace import MAX_NODES, make_workspace
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.graph.layout import MAX_VOCABULARY, Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, StrategyName, TokenId

__all__ = ["DraftOrder", "SessionDrafter"]

_WARM_UP_ID = -1


class SessionDrafter:
    """Drafts for many sequences. Calls from several threads wait for each other."""

    def __init__(
        self,
        graph: NgramGraph | None,
        config: DraftConfig | None = None,
        *,
        calibration: Calibration | None = None,
        learned: LearnedStore | None = None,
        vocabulary_size: int | None = None,
    ) -> None:
        """Make a drafter without sequences.

        Args:
            graph: the corpus; None drafts from the sequences alone.
            config: how to draft.
            calibration: how far evidence is to be trusted; changed by what is accepted. By default what the store
                keeps, or else what the graph was built with.
            learned: what earlier sequences accepted; a store in memory by default.
            vocabulary_size: without a graph, the size of the vocabulary if it is known.

        Raises:
            ConfigError: the configured strategy has nothing to draft from.
        """
        self.graph = graph
        self.config = config or DraftConfig()
        strategy, sources = self.config.strategy, self.config.sources
        if strategy in CALIBRATED and not (sources - {"corpus"} if graph is None else sources):
            raise ConfigError(f"strategy {strategy} has nothing to draft from; give a graph, or add the source session")
        self.learned = learned or LearnedStore(self.config.max_learned_tokens, max_tenants=self.config.max_tenants)
        self.calibration = calibration or self.learned.load_calibration() or _calibration_of(graph)
        workspace = make_workspace()
        self._vocabulary_size = vocabulary_size
        self._handles = Handles(graph_arrays(graph), self.calibration.arrays, workspace)
        self._sequences: dict[int, DraftedSequence] = {}
        self._strategies = Strategies(graph, self.config, self._handles, workspace.tree)
        self._lock = threading.Lock()
        self.warm_up([self.config.strategy])

    def __len__(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False, cost: CostCurve | None = None) -> None:
        """Begin a sequence.

        Args:
            session_id: its number, not in use.
            tenant: whose it is: it drafts from what this tenant's earlier sequences accepted.
            learn: whether later sequences of the tenant draft from what this one accepts and recycles.
            cost: what verifying costs; None: nothing.

        Raises:
            DraftRequestError: the number is in use.
        """
        memory = self.learned.memory(tenant)  # may read from disk, which no draft should wait for
        with self._lock:
            if session_id in self._sequences:
                raise DraftRequestError(f"session {session_id} is open already; close it or choose another number")
            learns = learn and self.config.max_learned_tokens > 0
            self._sequences[session_id] = self._new_sequence(memory, learns=learns, cost=cost)

    def _new_sequence(self, memory: Memory, *, learns: bool = False, cost: CostCurve | None = None) -> DraftedSequence:
        costs = np.zeros(0) if cost is None else cost.table(MAX_NODES + 1)
        return DraftedSequence(
            self.graph, self.config, memory, learns=learns, costs=costs, vocabulary_size=self._vocabulary_size
        )

    def accept(self, session_id: int, token_ids: Sequence[TokenId] | Int64Array, *, is_prompt: bool = False) -> None:
        """Add tokens to a sequence: at first the prompt, then, step by step, what was accepted.

        What follows the prompt teaches how far the sources can be trusted. Ids that are not in the vocabulary equal
        nothing and are never drafted.

        Args:
            session_id: the sequence.
            token_ids: the tokens.
            is_prompt: whether they are still of the prompt; those of the first call are.

        Raises:
            DraftRequestError: there is no such sequence, or these are no token ids.
        """
        with self._lock:
            sequence = self._find(session_id)
            tokens = _as_array(token_ids)
            learns = sequence.config.strategy in CALIBRATED or sequence.is_calibrated
            sequence.take(self._handles, tokens, learns=learns, is_prompt=is_prompt)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]] | Int64Array) -> None:
        """Learn the target's most probable tokens at positions of the latest draft, before :meth:`accept`.

        Args:
            session_id: the sequence.
            nodes: per row the node it follows: 0 for the end of the sequence, j + 1 for node j of its latest draft,
                accepted or not.
            rows: per row the most probable next tokens, best first; negative for none. An array of shape
                ``[nodes, width]`` is quickest.

        Raises:
            DraftRequestError: there is no such sequence or node, these are no token ids, or not one row per node.
        """
        with self._lock:
            sequence = self._find(session_id)
            if len(nodes) != len(rows):
                raise DraftRequestError(f"{len(rows)} rows came with {len(nodes)} nodes; give one row per node")
            sequence.recycle(nodes, _as_rows(rows))

    def draft(self, orders: Sequence[DraftOrder], options: DraftOptions = DEFAULT_OPTIONS) -> list[Draft]:
        """Draft for a batch, in order.

        Raises:
            DraftRequestError: a sequence is not open, or an option is out of its bounds.
            ConfigError: the strategy needs a graph, or to know the vocabulary.
        """
        with self._lock:
            sequences = [self._find(order.session_id) for order in orders]
            return [
                self._strategies.draft(sequence, order, options)
                for sequence, order in zip(sequences, orders, strict=True)
            ]

    def draft_batch(
        self,
        session_ids: Sequence[int],
        budgets: Sequence[int],
        seeds: Sequence[int],
        options: DraftOptions = DEFAULT_OPTIONS,
        max_support: int = MAX_SUPPORT,
    ) -> DraftBatch:
        """Draft the same as :meth:`draft`, as arrays; ``greedy`` and ``sampling`` in a fraction of the time.

        Args:
            session_ids: the sequences.
            budgets: per sequence, most nodes.
            seeds: per sequence, seed of ``sampling``.
            options: how to draft.
            max_support: most entries of all distributions together: drafts end where another one may not fit.

        Raises:
            DraftRequestError: a sequence is not open.
            ConfigError: the strategy needs a graph, or to know the vocabulary.
        """
        config = self._strategies.changed(options)
        with self._lock:
            sequences = [self._find(session_id) for session_id in session_ids]
            if config.strategy not in CHAIN_STRATEGY_NAMES or self.graph is None:
                orders = map(DraftOrder, session_ids, budgets, seeds)
                return batch_of(
                    [
                        self._strategies.draft(sequence, order, options)
                        for sequence, order in zip(sequences, orders, strict=True)
                    ]
                )
            states = np.array([sequence.state for sequence in sequences], np.int64).reshape(-1, 2)
            positions = [len(sequence.history) for sequence in sequences]
            batch = self._strategies.from_graph(states, budgets, seeds, positions, options, max_support)
            noted = batch.without_proposals()  # sequences keep it until something is accepted
            for place, sequence in enumerate(sequences):
                sequence.go_by(config)
                sequence.offer(noted, place)
            return batch

    def draft_contexts(
        self,
        contexts: Sequence[Int64Array],
        budgets: Sequence[int],
        seeds: Sequence[int],
        positions: Sequence[int],
        options: DraftOptions = DEFAULT_OPTIONS,
        max_support: int = MAX_SUPPORT,
    ) -> DraftBatch:
        """Draft for sequences that are not open, from the corpus and their own last tokens; nothing is remembered.

        Args:
            contexts: per sequence its last tokens.
            budgets: per sequence, most nodes.
            seeds: per sequence, seed of ``sampling``.
            positions: per sequence, index of the first token drafted.
            options: how to draft.
            max_support: most entries of all distributions together: drafts end where another one may not fit.

        Raises:
            ConfigError: the strategy needs a graph, or to know the vocabulary.
        """
        config = self._strategies.changed(options)
        with self._lock:
            if config.strategy in CHAIN_STRATEGY_NAMES and self.graph is not None:
                matches = [self.graph.match(context.tolist()) for context in contexts]
                states = [(0, 0) if match is None else (match.order, match.node) for match in matches]
                ends = np.array(states, np.int64).reshape(-1, 2)
                return self._strategies.from_graph(ends, budgets, seeds, positions, options, max_support)
            memory = Memory("", 1)
            drafts = []
            for context, budget, seed in zip(contexts, budgets, seeds, strict=True):
                sequence = self._new_sequence(memory)
                sequence.take(self._handles, context, learns=False)
                drafts.append(self._strategies.draft(sequence, DraftOrder(0, budget, seed), options))
            return batch_of(drafts)

    def agrees(self, session_id: int, position: int, token_ids: Int64Array) -> bool:
        """Return whether a sequence's tokens from ``position`` on are these, as far as both are known.

        Args:
            session_id: the sequence.
            position: of the first token, from 0.
            token_ids: what should stand there.

        Raises:
            DraftRequestError: there is no such sequence.
        """
        with self._lock:
            return self._find(session_id).agrees(position, token_ids)

    def plain_handles(self, session_id: int, known: Handles | None) -> Handles | None:
        """Return what of a sequence a kernel may change by itself; None if it is not plain.

        A sequence is plain while nothing but ``greedy`` and ``sampling`` was asked for it; see
        :attr:`~speculant_graph.draft.sequence.DraftedSequence.is_plain`.

        Args:
            session_id: the sequence.
            known: what was returned before; returned again if it is still right.

        Raises:
            DraftRequestError: there is no such sequence.
        """
        sequence = self._find(session_id)
        if self.config.mixing != "longest" or self.config.temperature != 1.0 or not sequence.is_plain:
            return None
        if known is not None and known.arrays[0] is sequence.history.arrays[0]:
            return known
        return sequence.own_handles()

    def num_bytes(self, session_id: int) -> int:
        """Return the memory that is a sequence's own.

        Raises:
            DraftRequestError: there is no such sequence.
        """
        return self._find(session_id).num_bytes

    def close(self, session_id: int) -> None:
        """End a sequence; what it accepted is learned if it was opened so. An unknown one is ignored."""
        with self._lock:
            sequence = self._sequences.pop(session_id, None)
            if sequence is None or not sequence.learns:
                return
            tokens = sequence.learnable()
            self.learned.add(sequence.memory, tokens)
        self.learned.keep(sequence.memory, tokens)

    def save(self, *, is_routine: bool = False) -> None:
        """Bring what sequences taught to disk, if the store has one; drafts go on meanwhile.

        Args:
            is_routine: whether this is done every few seconds, so that what is large may wait for a later time.
        """
        with self._lock:
            calibration = self.calibration.copy()
        self.learned.save(calibration, is_routine=is_routine)

    def _find(self, session_id: int) -> DraftedSequence:
        try:
            return self._sequences[session_id]
        except KeyError:
            raise DraftRequestError(f"session {session_id} is not open; open it first") from None

    def warm_up(self, strategies: Iterable[StrategyName] = get_args(StrategyName)) -> None:
        """Compile or load the kernels of strategies, so that no sequence waits for them; those configured are ready."""
        try:
            RecycledRows().put(np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64))
            self.open(_WARM_UP_ID)
            self.accept(_WARM_UP_ID, [0, 1] * 500)  # more than there is room for at first; a prompt teaches nothing
            for strategy in strategies:
                # Of the configured one it is said at once if there is nothing to draft from.
                if self.graph is not None or strategy not in CHAIN_STRATEGY_NAMES or strategy == self.config.strategy:
                    self.draft([DraftOrder(_WARM_UP_ID, 2)], DraftOptions(strategy))
        finally:
            self.close(_WARM_UP_ID)


def _calibration_of(graph: NgramGraph | None) -> Calibration:
    if graph is None or not graph.metadata.calibration:
        return Calibration()
    try:
        return Calibration.load(graph.metadata.calibration)
    except ConfigError:
        logger.warning(
            "the graph's calibration is of another release; build the graph again to have one from the start"
        )
        return Calibration()


def _as_rows(rows: Sequence[Sequence[TokenId]] | Int64Array) -> Int64Array:
    """Return rows as one array, filled up with -1."""
    try:
        whole = np.array(rows, order="C")
        if whole.ndim == 2 and whole.dtype.kind in "iu":
            return whole.astype(np.int64, copy=False)
    except ValueError:  # rows of several lengths
        pass
    arrays = [_as_array(row) for row in rows]
    padded = np.full((len(arrays), max((array.size for array in arrays), default=0)), -1, np.int64)
    for place, array in enumerate(arrays):
        padded[place, : array.size] = array
    return padded


def _as_array(token_ids: Sequence[TokenId] | Int64Array) -> Int64Array:
    try:
        tokens = np.array(token_ids, order="C")
        if tokens.ndim == 1 and tokens.dtype.kind in "iu":
            return tokens.astype(np.int64, copy=False)
        if tokens.ndim == 1 and all(isinstance(token_id, int) for token_id in token_ids):  # none, or huge ones
            return np.array(
                [token_id if 0 <= token_id < MAX_VOCABULARY else NOTHING for token_id in token_ids], np.int64
            )
    except ValueError:  # lists of several lengths
        pass
    raise DraftRequestError(f"{reprlib.repr(token_ids)} is no list of token ids; give whole numbers")

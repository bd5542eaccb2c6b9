"""Drafts for many sequences, from a graph and from the sequences' own accepted text.

A caller opens a sequence, extends it with accepted tokens, drafts for it, and closes it. Every draft uses all text
known so far, so accepted tokens improve the next draft. This module depends on neither sockets nor models.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from loguru import logger

from speculant_graph import _core
from speculant_graph.argument_types import require_types
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import LearnedStore, Memory, load_calibration
from speculant_graph.draft.mixing import first_calibration
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions, require_source, settings_of
from speculant_graph.errors import ConfigError, DraftRequestError, TokenizerMismatchError
from speculant_graph.graph.layers import require_layers
from speculant_graph.graph.layout import MAX_VOCABULARY, Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import num_cores
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import Draft, Feedback, SequenceStep, SourceName, TokenId

MAX_NODES = 2_048
"""Maximum number of nodes of a draft."""
MAX_SUPPORT = 1 << 27
"""Default of ``max_support``: this many distribution entries fit into a gigabyte."""
NUM_SEEDS = 1 << 64
"""Number of distinct seeds, and of distinct positions; the core stores both in 64 bits."""
_MOST_KEPT = 256


def DraftRequest(
    session_id: int,
    node_budget: int,
    seed: int = 0,
    options: DraftOptions = DEFAULT_OPTIONS,
    least_probability: float = 0.0,
) -> SequenceStep:
    """Return a step that drafts without adding tokens. Deprecated: the next release removes this function."""
    return SequenceStep(session_id, (), node_budget, seed, options=options, least_probability=least_probability)


def _no_messages(_options: bytes) -> DraftOptions:
    raise DraftRequestError("this drafter does not take messages; give DraftOptions")


class SessionDrafter:
    """Drafts for many sequences. Several threads may use one drafter; locks are held only briefly."""

    def __init__(
        self,
        graph: NgramGraph | Sequence[NgramGraph] | None,
        config: DraftConfig | None = None,
        *,
        calibration: _core.Calibration | None = None,
        learned: LearnedStore | None = None,
        vocabulary_size: int | None = None,
        max_session_tokens: int = 131_072,
        num_threads: int = 0,
        read_options: Callable[[bytes], DraftOptions] = _no_messages,
    ) -> None:
        """Make a drafter that has no sequences yet.

        Args:
            graph: one graph, or up to four graphs as layers. Layers share a tokenizer, and each layer is a separate
                source. If the graph is None, drafts come from the sequences alone. The strategies ``greedy`` and
                ``sampling`` use the layer that matches the most tokens at the end of a sequence.
            config: drafting settings.
            calibration: tables of how reliable each kind of context is; accepted tokens update them. By default, the
                store's saved calibration is used, or else the graph's calibration.
            learned: store of the accepted text of earlier sequences; by default a store in memory.
            vocabulary_size: size of the vocabulary, if known; used only without a graph.
            max_session_tokens: maximum number of tokens per sequence that drafts may use, at least 256; older tokens
                are dropped.
            num_threads: threads that draft for a large batch; 0 uses one thread per core that the process may use. The
                drafts are the same for any number of threads.
            read_options: function that decodes drafting options in wire format, for steps that the core handles.

        Raises:
            ConfigError: the configured strategy has no source to draft from, an argument has a wrong type, there are
                too many graphs, or a graph is named twice.
            TokenizerMismatchError: the graphs, or the graphs and the learned text, have different tokenizers.
        """
        graphs = _layers(graph)
        require_types(locals(), {"config": DraftConfig, "learned": LearnedStore})
        self.graphs = graphs
        """The graphs to draft from."""
        self.config = config = config or DraftConfig()
        has_graph = bool(graphs)
        strategy, sources = self.config.strategy, self.config.sources
        if "sources" in STRATEGIES[strategy].reads and not sources - _absent(graphs):
            lacks_model = bool(graphs) and sources == {"neural"}
            raise ConfigError(
                "no graph has a neural model" if lacks_model else f"strategy {strategy} has nothing to draft from",
                fix="build it without --no-neural, or add another source"
                if lacks_model
                else "give a graph, or add the source session",
                field="draft.sources",
            )
        require_source(self.config, has_graph)
        vocabulary_size = graphs[0].vocabulary_size if graphs else vocabulary_size or MAX_VOCABULARY
        if graphs and learned is not None and learned.tokenizer is not None:
            theirs, ours = learned.tokenizer, graphs[0].metadata.tokenizer
            if theirs.sha256 != ours.sha256:
                raise TokenizerMismatchError(
                    f"the learned text has tokenizer {theirs.name} ({theirs.sha256[:12]}), and the graph {ours.name} "
                    f"({ours.sha256[:12]})",
                    fix="open another folder of learned text",
                )
        self.learned = learned or LearnedStore(self.config.max_learned_tokens)
        self.calibration = calibration or self.learned.load_calibration() or _calibration_of(graphs)
        # Clients may send any options, so the cache is bounded.
        self.settings = lru_cache(_MOST_KEPT)(partial(settings_of, self.config, has_graph))
        """Cached function that returns the core's settings for :class:`DraftOptions`."""
        # Callbacks of the core must not refer to this drafter, or it would never be freed.
        self.core = _core.Drafter(
            tuple(each.core for each in graphs),
            vocabulary_size,
            self.calibration,
            max_session_tokens,
            num_threads or num_cores(),
            lambda options: settings_of(config, has_graph, read_options(options) if options else DEFAULT_OPTIONS),
        )
        """The core's drafter."""
        self.steps = _core.LocalSteps(self.core)
        """Interface to the open sequences in the native core."""
        self._memories: dict[int, Memory] = {}  # by session; keeps the open sequences' memories loaded

    def __len__(self) -> int:
        """Number of open sequences."""
        return len(self.steps)

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False) -> None:
        """Begin a sequence.

        Args:
            session_id: id of the sequence, which no open sequence may have.
            tenant: tenant of the sequence; drafts also use the accepted text of this tenant's earlier sequences.
            learn: whether later sequences of the tenant draft from this sequence's accepted and recycled tokens.

        Raises:
            DraftRequestError: the id is in use.
        """
        memory = self.learned.memory(tenant)  # may read from disk; no draft should wait for it
        self.steps.open(session_id, memory.core, self.learns(learn))
        self._memories[session_id] = memory

    def learns(self, wanted: bool) -> bool:
        """Return whether later sequences learn from a sequence that was opened with ``learn=wanted``."""
        return wanted and self.config.max_learned_tokens > 0

    def accept(self, session_id: int, token_ids: Sequence[TokenId] | Int64Array, *, is_prompt: bool = False) -> None:
        """Add tokens to a sequence: first the prompt, then, step by step, the accepted tokens.

        Tokens after the prompt also calibrate the draft sources. Ids outside the vocabulary match nothing and are never
        drafted.

        Args:
            session_id: the sequence.
            token_ids: the tokens.
            is_prompt: whether the tokens still belong to the prompt; tokens of the first call always do.

        Raises:
            DraftRequestError: there is no such sequence, or the tokens are not token ids.
        """
        self.steps.accept(session_id, _as_array(token_ids), is_prompt)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]] | Int64Array) -> None:
        """Learn the target's most probable tokens at nodes of the latest draft; call this before :meth:`accept`.

        Args:
            session_id: the sequence.
            nodes: per row, the node that the row's tokens follow: 0 is the end of the sequence, and j + 1 is node j of
                the latest draft, accepted or not.
            rows: the most probable next tokens of each node, best first, shape ``[nodes, width]``; a negative id means
                no token.

        Raises:
            DraftRequestError: there is no such sequence or node, the rows have invalid token ids, or ``rows`` and
                ``nodes`` differ in length.
        """
        if len(nodes) != len(rows):
            raise DraftRequestError(f"{len(rows)} rows came with {len(nodes)} nodes; give one row per node")
        if len(nodes):
            self.steps.add_top_k(session_id, np.array(nodes, np.int64), _as_array(rows, 2))

    def draft(
        self,
        steps: Sequence[SequenceStep],
        options: DraftOptions = DEFAULT_OPTIONS,
        max_support: int = MAX_SUPPORT,
        draft_id: int = 0,
    ) -> list[Draft]:
        """Draft for a batch of sequences, and return the drafts in the order of the steps.

        Args:
            steps: one step per sequence. A step's ``token_ids`` are the whole sequence; its new tokens are accepted
                before drafting, and learned afterwards. Empty ``token_ids`` add no tokens.
            options: defaults of the options that a step does not set.
            max_support: maximum total number of entries in the distributions of steps with equal options; a draft ends
                before a distribution that may not fit.
            draft_id: identifies the drafts in later feedback.

        Raises:
            DraftRequestError: a sequence is not open, or an option is out of its bounds.
            ConfigError: the strategy needs a graph.
        """
        by_options: dict[DraftOptions, list[int]] = {}
        for index, step in enumerate(steps):
            by_options.setdefault(step.options, []).append(index)
        drafts: dict[int, Draft] = {}
        for wanted, indices in by_options.items():
            batch = [steps[index] for index in indices]
            made = self.steps.draft(
                [step.session_id for step in batch],
                [step.token_ids for step in batch],
                [step.node_budget for step in batch],
                [step.seed % NUM_SEEDS for step in batch],
                [step.least_probability for step in batch],
                [_columns(step.feedback) for step in batch],
                self.settings(wanted if options is DEFAULT_OPTIONS else wanted.over(options)),
                max_support,
                draft_id,
            )
            drafts.update(zip(indices, made, strict=True))
        return [drafts[index] for index in range(len(steps))]

    def draft_contexts(
        self,
        contexts: Sequence[Sequence[TokenId] | Int64Array],
        budgets: Sequence[int],
        seeds: Sequence[int],
        positions: Sequence[int],
        options: DraftOptions = DEFAULT_OPTIONS,
        max_support: int = MAX_SUPPORT,
    ) -> list[Draft]:
        """Draft for sequences that are not open, from the corpus and the sequences' last tokens. Keeps no state.

        Args:
            contexts: per sequence, its last tokens.
            budgets: per sequence, the maximum number of nodes.
            seeds: per sequence, the seed of ``sampling``.
            positions: per sequence, the index of the first drafted token.
            options: drafting options.
            max_support: maximum total number of entries in all distributions; a draft ends before a distribution that
                may not fit.

        Raises:
            DraftRequestError: an option is out of its bounds.
            ConfigError: the strategy needs a graph.
        """
        return self.steps.draft_contexts(
            [_as_array(context) for context in contexts],
            list(budgets),
            [seed % NUM_SEEDS for seed in seeds],
            [position % NUM_SEEDS for position in positions],
            self.settings(options),
            max_support,
        )

    def num_bytes(self, session_id: int) -> int:
        """Return the memory that a sequence itself uses, in bytes.

        Raises:
            DraftRequestError: there is no such sequence.
        """
        return self.steps.num_bytes(session_id)

    def close(self, session_id: int) -> None:
        """End a sequence, and learn its accepted text if it was opened with ``learn``. An unknown id is ignored."""
        memory = self._memories.pop(session_id, None)
        if memory is not None:
            self.learned.keep(memory, self.steps.end(session_id))

    def save(self, *, is_routine: bool = False) -> None:
        """Write learned text and calibration tables to disk, if the store has a folder. Drafting continues meanwhile.

        Args:
            is_routine: whether the caller saves every few seconds, so that large tables may wait for a later save.
        """
        if self.learned.has_folder:  # the copy takes 8 MB
            self.learned.save(self.calibration.copy(), is_routine=is_routine)


def _absent(graphs: Sequence[NgramGraph]) -> set[SourceName]:
    """Return the draft sources that the graphs can't provide."""
    absent: set[SourceName] = set() if graphs else {"corpus"}
    if not any(graph.trie.num_model_words for graph in graphs):
        absent.add("neural")
    return absent


def _layers(graph: NgramGraph | Sequence[NgramGraph] | None) -> tuple[NgramGraph, ...]:
    if graph is None or isinstance(graph, NgramGraph):
        return () if graph is None else (graph,)
    graphs = tuple(graph) if isinstance(graph, Sequence) else (graph,)
    for each in graphs:
        if not isinstance(each, NgramGraph):
            raise ConfigError(f"graph has a {type(each).__name__}", fix="give graphs", field="graph")
    require_layers(graphs)
    return graphs


def _calibration_of(graphs: Sequence[NgramGraph]) -> _core.Calibration:
    """Return the calibration of the first graph.

    Calibration of the other graphs starts from scratch, because a graph's own calibration assumes that there is no
    other graph. Loading the calibration of a second graph made drafts up to 0.6 % worse (docs/experiments.md,
    "layers").
    """
    if not graphs or not graphs[0].metadata.calibration:
        return first_calibration()
    try:
        return load_calibration(graphs[0].metadata.calibration)
    except ConfigError:
        logger.warning(
            "the graph's calibration is from another release; build the graph again to have one from the start"
        )
        return first_calibration()


def _as_array(token_ids: Sequence[Any] | Int64Array, num_dimensions: int = 1) -> Int64Array:
    """Return token ids as an array for the native core."""
    try:
        tokens = np.array(token_ids, order="C")
    except ValueError:  # lists of several lengths
        tokens = np.empty((), object)
    if tokens.ndim == num_dimensions and (tokens.dtype.kind in "iu" or not tokens.size):
        return tokens.astype(np.int64, copy=False)
    raise DraftRequestError(f"{reprlib.repr(token_ids)} is not a list of token ids; give whole numbers")


def _columns(feedback: Feedback | None) -> tuple[int, list[int], Int64Array] | None:
    """Return feedback as arrays for the native core; malformed feedback is ignored."""
    if feedback is None or feedback.rows.ndim != 2 or len(feedback.rows) != len(feedback.nodes):
        return None
    return feedback.draft_id, list(feedback.nodes), np.ascontiguousarray(feedback.rows, np.int64)

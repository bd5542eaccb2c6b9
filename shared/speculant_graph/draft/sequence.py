"""One sequence that is drafted for: its tokens, its place in the graph, and how well its drafts did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph.config import DraftConfig
from speculant_graph.draft.history import SEPARATOR, SESSION_CHAINS, WINDOW, History, HistoryArrays
from speculant_graph.draft.learned import Memory
from speculant_graph.draft.ngram_counts import NGramCounts, draft_nasd, learn_verified
from speculant_graph.draft.proposal_tree import Candidates, ExpandedNode
from speculant_graph.draft.sources import (
    CORPUS,
    GAP,
    LEARNED,
    NUM_SOURCES,
    RECYCLED,
    ROW_SLOTS,
    SESSION,
    TOP_SUCCESSORS,
    GraphArrays,
    RecycledArrays,
)
from speculant_graph.draft.tree import propose, take
from speculant_graph.draft.views import Handles
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.graph.layout import MAX_VOCABULARY, Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import EMPTY_DRAFT, Draft, SourceName, TokenId

_TRUST_MEMORY = 0.95
"""What a step counts for after one more."""
_TRUST_PRIOR = 10.0
"""Accepted tokens, expected and found, that every sequence is credited with."""
_STORED_CONTEXTS = 250_000
"""Most contexts that ``nasd`` keeps for a sequence; the longest unseen are forgotten first. At order 4 ordinary text
has about one for each token, text that never repeats anything has three."""
_STORED_AT_ONCE = 3_072
"""Contexts of the prompt that one step stores: some 5 ms, for which other sequences may have to wait."""
_BYTES_OF_A_CONTEXT = 512
"""About what the storage of ``nasd`` takes for each."""
_BYTES_OF_A_SEQUENCE = 4_096
"""Of its objects, apart from arrays that grow."""
_NO_COSTS = np.zeros(0)
_ENTRIES: dict[SourceName, list[int]] = {
    "corpus": [CORPUS],
    "session": [SESSION, GAP],
    "learned": [LEARNED],
    "recycled": [RECYCLED],
}
"""What is enabled for each source."""


def graph_arrays(graph: NgramGraph | None) -> GraphArrays:
    """Return what kernels see of a graph, or of none."""
    return GraphArrays(
        words=np.zeros(1, np.uint32) if graph is None else graph.trie.words,
        table=np.zeros((4, 2), np.int64) if graph is None else graph.trie.table,
        row_keys=np.full(ROW_SLOTS, -1, np.int64),
        row_tokens=np.zeros((ROW_SLOTS, TOP_SUCCESSORS), np.int32),
        row_counts=np.zeros((ROW_SLOTS, TOP_SUCCESSORS), np.int64),
    )


class DraftedSequence:
    """State of one sequence; not safe to share between threads."""

    def __init__(
        self,
        graph: NgramGraph | None,
        config: DraftConfig,
        memory: Memory,
        *,
        learns: bool,
        costs: NDArray[np.float64] = _NO_COSTS,
        vocabulary_size: int | None = None,
    ) -> None:
        """Begin a sequence without tokens.

        Args:
            graph: the corpus.
            config: how to draft, until :meth:`go_by` changes that.
            memory: what earlier sequences accepted.
            learns: whether later ones may learn from it: its text when it ends, rows at once.
            costs: relative cost of verifying n tokens; empty if it is free.
            vocabulary_size: without a graph, the size of the vocabulary if it is known.
        """
        self.memory = memory
        self.learns = learns
        self.config = config
        """How to draft."""
        self.history = History(config.max_session_tokens, SESSION_CHAINS)
        self.state = np.zeros(2, np.int64)
        self.is_calibrated = False
        self.trust = 1.0
        self._costs = costs
        self._has_graph = graph is not None
        self._vocabulary_size = (vocabulary_size or MAX_VOCABULARY) if graph is None else graph.vocabulary_size
        self._recycled = memory.recycled
        self._num_prompt_tokens = 0
        self._draft: Draft | None = None  # since the latest tokens came
        self._offered: tuple[Sequence[Draft], int] | None = None  # the same, not yet taken out of its batch
        self._expected, self._found = 0.0, 0.0
        self._rows: list[tuple[Int64Array, Int64Array]] = []  # contexts, and what followed them
        self._rows_of_nodes: dict[int, list[TokenId]] = {}
        self._storage: NGramCounts | None = None
        self._storing: Iterator[None] = iter(())
        self._enabled = np.zeros(NUM_SOURCES, np.int64)
        self._moving = self._arrays_that_move()
        self._apply_config()
        self.num_bytes = self._count_bytes()
        """Memory that is this sequence's own."""

    def go_by(self, config: DraftConfig) -> None:
        """Draft, and take tokens and rows, by these settings from now on."""
        if config is not self.config:
            self.config = config
            self._apply_config()

    def _apply_config(self) -> None:
        config, enabled = self.config, self._enabled
        enabled[:] = 0
        for name in config.sources:
            enabled[_ENTRIES[name]] = 1
        enabled[CORPUS] *= self._has_graph
        enabled[LEARNED] *= config.max_learned_tokens > 0
        self.costs = self._costs if config.cost_aware else _NO_COSTS
        self._handles = self._make_handles()

    def handles(self) -> Int64Array:
        """Return what kernels draft from, as it is now; see :func:`~speculant_graph.draft.views.open_sources`."""
        session, learned, recycled = self._moving
        # Arrays move when they grow, which for those of a tenant may be another sequence's doing.
        if (
            self.history.arrays is not session
            or self.memory.history.arrays is not learned
            or self._recycled.arrays is not recycled
        ):
            self._moving = self._arrays_that_move()
            self._handles = self._make_handles()
            self.num_bytes = self._count_bytes()
        return self._handles.values

    @property
    def is_plain(self) -> bool:
        """Whether nothing but chains was asked for, so that taking tokens is appending them and moving on in the graph.

        Nothing is learned from the tokens of such a sequence before it ends, and no draft of it is compared with them.
        """
        return not (self.costs.size or self.is_calibrated or self._rows or self._storage is not None) and (
            self._has_graph and len(self.history) > 0
        )

    def own_handles(self) -> Handles:
        """Return what of a plain sequence a kernel may change; see ``views.open_own_state``."""
        return Handles(self.history.arrays, self.state)

    def _count_bytes(self) -> int:
        """Return the memory that is this sequence's own."""
        own = _BYTES_OF_A_SEQUENCE + self.history.num_bytes
        if self._recycled is not self.memory.recycled:
            own += sum(array.nbytes for array in self._recycled.arrays)
        return own + (_BYTES_OF_A_CONTEXT * len(self._storage) if self._storage is not None else 0)

    def _arrays_that_move(self) -> tuple[HistoryArrays, HistoryArrays, RecycledArrays]:
        return self.history.arrays, self.memory.history.arrays, self._recycled.arrays

    def _make_handles(self) -> Handles:
        return Handles(self._moving, self._enabled, self.state, self.costs)

    def take(self, drafter: Handles, tokens: Int64Array, *, learns: bool, is_prompt: bool = False) -> None:
        """Add accepted tokens, shape ``[n]``.

        The first call brings the prompt, as does every one that says so; from a prompt nothing is learned.
        """
        if not tokens.size:
            return
        is_prompt |= not self.history.arrays.bounds[0]
        if is_prompt:
            self._num_prompt_tokens = len(self.history) + tokens.size
        if self.costs.size or self._storage is not None:
            self._compare(tokens.tolist())
        self.history.reserve(tokens.size)
        take(drafter.values, self.handles(), tokens, self._vocabulary_size, learns and not is_prompt)
        if self._rows:
            self._keep_rows()
        self._draft, self._offered, self._rows, self._rows_of_nodes = None, None, [], {}

    def agrees(self, position: int, tokens: Int64Array) -> bool:
        """Return whether tokens, shape ``[n]``, are those taken from ``position`` on; forgotten ones always are."""
        num_taken = len(self.history) - position
        kept = self.history.latest(num_taken)
        known = tokens[:num_taken][num_taken - kept.size :]
        return bool(np.array_equal(kept[: known.size], np.where(self._is_foreign(known), SEPARATOR, known)))

    def offer(self, drafts: Sequence[Draft], place: int) -> None:
        """Note one draft of a batch: what comes next tells how good it was."""
        self._draft, self._offered, self._rows_of_nodes = None, (drafts, place), {}

    @property
    def _latest_draft(self) -> Draft | None:
        if self._offered is not None:
            drafts, place = self._offered
            self._draft, self._offered = drafts[place], None
        return self._draft

    def recycle(self, nodes: Sequence[int], rows: Int64Array) -> None:
        """Take the target's most probable tokens after nodes of the latest draft, shape ``[nodes, width]``.

        A row ends before the first that is no token.

        Raises:
            DraftRequestError: there is no such node.
        """
        draft = self._latest_draft or EMPTY_DRAFT
        if len(nodes) and not 0 <= min(nodes) <= max(nodes) <= len(draft):
            raise DraftRequestError(f"the latest draft has nodes 0 to {len(draft)}; send rows of those")
        if not len(nodes) or not len(self.history):
            return
        kept = np.where((rows < 0) | (rows >= self._vocabulary_size), -1, rows)
        before, last = [-1, *self.history.latest(2).tolist()][-2:]
        # What a row follows: the token of its node and the one before it.
        ends = [(before, last)]
        for parent, token in zip(draft.parents, draft.token_ids, strict=True):
            ends.append((ends[parent][1], token))
        self._rows.append((np.array([ends[node] for node in nodes], np.int64), kept))
        if self._storage is not None:
            for node, row in zip(nodes, kept[:, : self.config.filler_top_k].tolist(), strict=True):
                self._rows_of_nodes[node] = row[: row.index(-1)] if -1 in row else row

    def learnable(self) -> Int64Array:
        """Return what followed the prompt, or the newest of it, after the last few tokens of the prompt itself.

        Those make the first tokens of an answer known to a later sequence whose prompt ends alike.
        """
        accepted = len(self.history) - self._num_prompt_tokens
        return self.history.latest(accepted + WINDOW) if accepted else self.history.latest(0)

    def draft_from_storage(self, budget: int) -> Draft:
        """Draft a chain from n-grams that this sequence stored (``nasd``).

        Raises:
            ConfigError: a random token is to stand at an unknown context, and the vocabulary is not known.
        """
        if not self.config.stop_if_unknown and self._vocabulary_size == MAX_VOCABULARY:
            raise ConfigError(
                "draft.stop_if_unknown = false draws any token of the vocabulary, which is not known here; say how "
                "large it is, or leave the setting out"
            )
        if self._storage is None or self._storage.n != self.config.nasd_order:
            self._storage = NGramCounts(self.config.nasd_order, self._vocabulary_size, max_contexts=_STORED_CONTEXTS)
            self._storing = _store(self._storage, self._valid_end(self.history.latest(len(self.history))))
        next(self._storing, None)
        self.num_bytes = self._count_bytes()
        return draft_nasd(
            self._storage,
            self._valid_end(self.history.latest(self.config.nasd_order)),
            budget,
            stop_if_unknown=self.config.stop_if_unknown,
            position=len(self.history),
        )

    def _compare(self, emitted: list[TokenId]) -> None:
        """Learn from what became of the latest draft."""
        draft = self._latest_draft
        path = [] if draft is None else accepted_path(draft, emitted)
        if draft is not None:
            self._judge(draft, len(path))
        if self._storage is not None:
            self._store_emitted(self._storage, emitted, path)

    def _judge(self, draft: Draft, num_accepted: int) -> None:
        """Compare the latest draft with what was accepted: drafts that promised too much cost trust.

        It comes back while no draft pays, or a sequence that has once been hard would never be drafted for again.
        """
        self._expected = self._expected * _TRUST_MEMORY + sum(draft.path_probabilities)
        self._found = self._found * _TRUST_MEMORY + (num_accepted if draft.path_probabilities else 0)
        self.trust = min(1.0, (self._found + _TRUST_PRIOR) / (self._expected + _TRUST_PRIOR))

    def _keep_rows(self) -> None:
        # Only now: a row holds the very token that was accepted, and trust in rows is learned from older ones.
        if not self.learns and self._recycled is self.memory.recycled:
            self._recycled = self.memory.recycled.copy()  # others must not see what this sequence brings
        for contexts, rows in self._rows:
            self._recycled.put(contexts, rows)

    def _store_emitted(self, storage: NGramCounts, emitted: list[TokenId], path: list[int]) -> None:
        is_foreign = not 0 <= min(emitted) <= max(emitted) < self._vocabulary_size
        if is_foreign or len(emitted) > _STORED_AT_ONCE // self.config.nasd_order:
            self._storage = None  # made again, step by step, from what follows the foreign tokens
            return
        before = self._valid_end(self.history.latest(self.config.nasd_order))
        rows: list[Sequence[TokenId]] = [[] for _ in emitted]
        for place, node in enumerate([0, *path][: len(emitted)]):
            rows[place] = self._rows_of_nodes.get(node, [])
        learn_verified(storage, [*before, *emitted], len(before), rows, self.config.filler_top_k)

    def _is_foreign(self, tokens: Int64Array) -> NDArray[np.bool_]:
        return (tokens < 0) | (tokens >= self._vocabulary_size)

    def _valid_end(self, tokens: Int64Array) -> list[TokenId]:
        foreign = np.flatnonzero(self._is_foreign(tokens))
        start = int(foreign[-1]) + 1 if foreign.size else 0
        valid: list[TokenId] = tokens[start:].tolist()
        return valid


def _store(storage: NGramCounts, token_ids: list[TokenId]) -> Iterator[None]:
    """Learn a prompt, as many tokens at every step of the iterator as a draft may wait for."""
    num_tokens = max(1, _STORED_AT_ONCE // (storage.n - 1))
    for start in range(0, len(token_ids), num_tokens):
        first = max(0, start - storage.n + 1)
        storage.initialize([token_ids[first : start + num_tokens]], start - first)
        yield


def accepted_path(draft: Draft, token_ids: Sequence[TokenId]) -> list[int]:
    """Return the nodes of a draft, numbered from 1, along which it agrees with the tokens that followed."""
    path: list[int] = []
    last = 0
    for node, (parent, token_id) in enumerate(zip(draft.parents, draft.token_ids, strict=True), start=1):
        # Children come after their parents, so one look at every node is enough.
        if parent == last and len(path) < len(token_ids) and token_id == token_ids[len(path)]:
            path.append(node)
            last = node
    return path


class SequenceProposals:
    """What may follow a sequence and paths from it, by calibrated probability; a ``ProposalSource``."""

    def __init__(self, drafter: Handles, sequence: DraftedSequence, max_branches: int) -> None:
        """Propose from a sequence, which must not change meanwhile."""
        self._drafter = drafter
        self._sequence = sequence
        self._tokens = np.zeros(max_branches, np.int64)
        self._probabilities = np.zeros(max_branches)
        self._paths: list[list[TokenId]] = []

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        """Return the candidates of every node; see ``ProposalSource``."""
        return [self._candidates(node, limit) for node in nodes]

    def _candidates(self, node: ExpandedNode, limit: int) -> Candidates:
        self._paths.append([*self._paths[node.parent], node.token_id] if node.number else [])
        size = propose(
            self._drafter.values,
            self._sequence.handles(),
            np.array(self._paths[-1], np.int64),
            self._tokens[:limit],
            self._probabilities[:limit],
        )
        return Candidates(self._tokens[:size].tolist(), self._probabilities[:size].tolist())

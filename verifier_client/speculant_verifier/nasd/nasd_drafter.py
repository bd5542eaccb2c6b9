"""The strategy ``nasd``: drafts from n-grams of a tenant's sequences, counted during decoding.

This module implements NASD for the engine, and supports batches and any verification rule. The paper's decoding loop is
in :mod:`speculant_verifier.nasd.generation`. The drafter and the paper's loop both count n-grams while a sequence
grows. Dictionaries map contexts to their most frequent successors, so learning and drafting take a few microseconds per
token. The counts are not thread-safe.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from speculant_graph.config import DraftConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.random_stream import PROPOSAL_STREAM, uniform
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import (
    Draft,
    DrafterState,
    DrafterStatistics,
    PassReport,
    SequenceStep,
    SessionOptions,
    TokenId,
)

DEFAULT_MAX_CONTEXTS = 1_000_000
"""Default maximum number of stored contexts, which take about half a gigabyte. A context and its successors take 420 to
480 bytes in ordinary text."""

Context = tuple[TokenId, ...]
"""Context of an n-gram: the tokens that precede a successor, at most n - 1."""


class NGramCounts:
    """Counts how often tokens follow contexts of ``shortest_context`` to n - 1 tokens."""

    def __init__(self, n: int, *, shortest_context: int = 1, max_contexts: int = DEFAULT_MAX_CONTEXTS) -> None:
        """Create empty counts.

        Args:
            n: number of tokens of the longest n-gram, including the successor; at least 2.
            shortest_context: number of tokens of the shortest context, at most n - 1.
            max_contexts: maximum number of stored contexts, at least 1; beyond it, the n-gram order with the most
                contexts loses its least recently learned contexts.
        """
        self.n, self.max_contexts = n, max_contexts
        self._shortest = shortest_context
        orders = range(shortest_context + 1, n + 1)
        # The tables have only plain values, so the garbage collector need not traverse them.
        self.counts: dict[int, OrderedDict[Context, dict[TokenId, int]]] = {each: OrderedDict() for each in orders}
        """Counts of each context's successors, by n-gram order; the least recently learned context is first."""
        self.most_frequent: dict[int, dict[Context, TokenId]] = {each: {} for each in orders}
        """The most frequent successor of each context, by n-gram order."""

    def __len__(self) -> int:
        """Return the number of stored contexts."""
        return sum(map(len, self.counts.values()))

    def learn(self, token_ids: Sequence[TokenId]) -> None:
        """Learn every n-gram of a sequence."""
        row = tuple(token_ids)
        for i in range(1, len(row)):
            self.count(row[max(0, i + 1 - self.n) : i], row[i : i + 1])

    def count(self, context: Sequence[TokenId], token_ids: Sequence[TokenId]) -> None:
        """Count each token once as a successor of a context's last n - 1 tokens and of their shorter suffixes.

        If there are several tokens, they are alternatives for one position, not a continuation.
        """
        end = tuple(context[1 - self.n :])
        for length in range(len(end), self._shortest - 1, -1) if token_ids else ():
            key = end[-length:]
            all_counts, most_frequent = self.counts[length + 1], self.most_frequent[length + 1]
            counts = all_counts.get(key)
            if counts is None:
                counts = all_counts[key] = {}
            else:
                all_counts.move_to_end(key)
            top = most_frequent.setdefault(key, token_ids[0])
            for token_id in token_ids:
                count = counts[token_id] = counts.get(token_id, 0) + 1
                if count > counts.get(top, 0):  # on a tie, the first to reach the count stays
                    top = most_frequent[key] = token_id
        while len(self) > self.max_contexts:
            order = max(self.counts, key=lambda each: len(self.counts[each]))
            forgotten, _ = self.counts[order].popitem(last=False)
            self.most_frequent[order].pop(forgotten, None)

    def successor(self, context: Sequence[TokenId]) -> TokenId | None:
        """Return the most frequent successor of a context's longest stored suffix; None if no suffix is stored.

        Among equally frequent successors, the first that reached the count is returned. Looking up a context does not
        protect it from being dropped.
        """
        return longest_successor(tuple(context[1 - self.n :]), self)


def longest_successor(end: Context, *tables: NGramCounts) -> TokenId | None:
    """Return the most frequent successor of the context's longest suffix that a table has; None if there is none."""
    for length in range(len(end), 0, -1):
        key = end[-length:]
        for table in tables:
            known = table.most_frequent.get(length + 1)
            if known is not None and (token_id := known.get(key)) is not None:
                return token_id
    return None


_MAX_CONTEXTS = 250_000
"""Maximum number of stored contexts of one tenant, which take about 120 MB."""
_MAX_ALL_CONTEXTS = 1_000_000
"""Maximum number of stored contexts of all tenants together. If all tenants together exceed the maximum, the counts of
idle tenants are dropped, the least recently used first."""


@dataclass(slots=True)
class _Sequence:
    """An open sequence."""

    options: SessionOptions
    shared: NGramCounts | None
    """Counts shared by the tenant's sequences; None if nothing is shared."""
    own: NGramCounts | None
    """Counts of this sequence alone; None if the tenant's shared counts learn from the sequence."""
    token_ids: list[TokenId] = field(default_factory=list)
    """Learned tokens."""
    draft_id: int = 0
    """Id of the sequence's latest draft."""
    filler_top_k: int = 0
    """Number of the target's most probable tokens to learn at each position of the latest draft."""

    @property
    def tables(self) -> tuple[NGramCounts, ...]:
        """The counts from which the sequence's drafts are made."""
        return tuple(table for table in (self.own, self.shared) if table is not None)


class NasdDrafter:
    """Drafts chains of the most frequent successors. Sequences of one tenant share counts if they may be learned."""

    def __init__(self, config: DraftConfig | None = None, vocabulary_size: int = 0) -> None:
        """Start without sequences.

        Args:
            config: drafting settings, of which ``n``, ``filler_top_k``, ``stop_if_unknown`` and ``max_learned_tokens``
                are used.
            vocabulary_size: size of the vocabulary from which tokens after unknown contexts are drawn at random; with
                0, a draft ends at an unknown context.
        """
        self._config, self._vocabulary_size = config or DraftConfig(strategy="nasd"), vocabulary_size
        self.capabilities = STRATEGIES["nasd"]
        """Properties of this drafter's drafts, such as whether they are trees."""
        self._tenants: OrderedDict[str, NGramCounts] = OrderedDict()  # least recently used first
        self._sequences: dict[int, _Sequence] = {}
        self._draft_ids = itertools.count(1)
        self._num_steps = self._num_nodes = 0

    @property
    def state(self) -> DrafterState:
        """Always ``ok``."""
        return "ok"

    @property
    def statistics(self) -> DrafterStatistics:
        """Number of calls of :meth:`draft`, and number of drafted nodes."""
        return DrafterStatistics(steps=self._num_steps, drafted_nodes=self._num_nodes)

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Begin a sequence that drafts from its tenant's counts.

        Raises:
            GenerationRequestError: the options name a graph.
        """
        wanted = options or SessionOptions()
        if wanted.graph:
            raise GenerationRequestError(
                "strategy nasd drafts from no {field}", fix=f"leave '{wanted.graph}' out", field="graph"
            )
        most = min(_MAX_CONTEXTS, self._config.max_learned_tokens * (self._config.n - 1))
        shared = self._storage(wanted.tenant or "", most) if most else None
        teaches = shared is not None and wanted.learn is not False
        own = None if teaches else NGramCounts(self._config.n, max_contexts=_MAX_CONTEXTS)
        self._sequences[session_id] = _Sequence(wanted, shared, own)

    def _storage(self, tenant: str, max_contexts: int) -> NGramCounts:
        storage = self._tenants.get(tenant)
        if storage is None:
            storage = self._tenants[tenant] = NGramCounts(self._config.n, max_contexts=max_contexts)
        self._tenants.move_to_end(tenant)
        in_use = {id(sequence.shared) for sequence in self._sequences.values()} | {id(storage)}
        num_contexts = sum(map(len, self._tenants.values()))
        for name in list(self._tenants):
            if num_contexts > _MAX_ALL_CONTEXTS and id(self._tenants[name]) not in in_use:
                num_contexts -= len(self._tenants.pop(name))
        return storage

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """For every sequence, learn its new tokens, then draft."""
        self._num_steps += 1
        drafts = [self._draft(step) for step in steps]
        self._num_nodes += sum(map(len, drafts))
        return drafts

    def observe(self, report: PassReport) -> float:
        """Do nothing, because drafts take little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """Forget a sequence, but keep its tenant's counts."""
        self._sequences.pop(session_id, None)

    def close(self) -> None:
        """Forget all counts."""
        self._sequences.clear()
        self._tenants.clear()

    def _draft(self, step: SequenceStep) -> Draft:
        sequence, config, wanted = self._sequences[step.session_id], self._config, step.options
        n = min(wanted.n or config.n, config.n)
        stop_if_unknown = config.stop_if_unknown if wanted.stop_if_unknown is None else wanted.stop_if_unknown
        if sequence.token_ids != step.token_ids[: len(sequence.token_ids)]:  # the text has changed
            self.open(step.session_id, sequence.options)
            sequence = self._sequences[step.session_id]
        _learn(sequence, step, config.n)
        sequence.draft_id, sequence.filler_top_k = next(self._draft_ids), config.filler_top_k
        if wanted.filler_top_k is not None:
            sequence.filler_top_k = min(wanted.filler_top_k, config.filler_top_k)
        end = tuple(sequence.token_ids[1 - n :])
        drafted: list[TokenId] = []
        while len(drafted) < step.node_budget:
            token_id = longest_successor(end, *sequence.tables)
            if token_id is None:
                if stop_if_unknown or not self._vocabulary_size:
                    break
                position = len(sequence.token_ids) + len(drafted)
                token_id = int(uniform(step.seed, position, PROPOSAL_STREAM) * self._vocabulary_size)
            drafted.append(token_id)
            end = (*end, token_id)[1 - n :]
        return Draft(
            token_ids=tuple(drafted),
            parents=tuple(range(len(drafted))),
            draft_id=sequence.draft_id,
            strategy="nasd",
            terminated_early=len(drafted) < step.node_budget,
        )


def _learn(sequence: _Sequence, step: SequenceStep, n: int) -> None:
    """Count each new token and the target's other top tokens at its position as successors of the preceding context."""
    known, feedback = len(sequence.token_ids), step.feedback
    fillers: dict[int, list[TokenId]] = {}
    if sequence.filler_top_k > 1 and feedback is not None and feedback.draft_id == sequence.draft_id:
        # Feedback for node j + 1 of a chain describes position j + 1 after the end of the drafted sequence.
        rows = zip(feedback.nodes, feedback.rows[:, : sequence.filler_top_k].tolist(), strict=True)
        fillers = {known + node: row for node, row in rows}
    sequence.token_ids += step.token_ids[known:]
    [table, *_] = sequence.tables
    for index in range(max(1, known), len(sequence.token_ids)):
        context = sequence.token_ids[max(0, index + 1 - n) : index]
        table.count(context, (sequence.token_ids[index], *fillers.get(index, ())))

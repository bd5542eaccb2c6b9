"""The strategy ``nasd``: every sequence drafts from an n-gram storage of its own, which learns as it is decoded.

NASD in the engine, batched and under any rule; :mod:`speculant_verifier.papers.nasd` has the document's own loop. Both
count n-grams while a sequence grows: contexts are mapped to their most frequent successor, in dictionaries, a few
microseconds a token. Counts belong to one thread at a time.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from speculant_graph.types import Draft, DrafterState, DrafterStatistics, SequenceStep, SessionOptions, TokenId

DEFAULT_MAX_CONTEXTS = 1_000_000
"""About half a gigabyte once they are all there: in ordinary text 420 to 480 bytes for a context and its successors."""

Context = tuple[TokenId, ...]
"""The tokens before a successor."""


class NGramCounts:
    """Counts of what followed contexts of every length from ``shortest_context`` to n - 1 tokens."""

    def __init__(self, n: int, *, shortest_context: int = 1, max_contexts: int = DEFAULT_MAX_CONTEXTS) -> None:
        """Make counts of nothing.

        Args:
            n: tokens of the longest n-gram, one more than its context, at least 2.
            shortest_context: tokens of the shortest context, at most n - 1.
            max_contexts: most contexts stored, at least 1; beyond it those go that were learned from the longest time
                ago.
        """
        self.n, self.max_contexts = n, max_contexts
        self._lengths = range(n - 1, shortest_context - 1, -1)
        # Two tables of plain values: the garbage collector has nothing to look through in them.
        self.counts: OrderedDict[Context, dict[TokenId, int]] = OrderedDict()
        """What followed each context, and how often; the context learned from the longest time ago is first."""
        self.most_frequent: dict[Context, TokenId] = {}
        """The successor of each context that :meth:`successor` gives."""

    def learn(self, token_ids: Sequence[TokenId]) -> None:
        """Learn every n-gram of a sequence."""
        row = tuple(token_ids)
        for i in range(1, len(row)):
            self.count(row[max(0, i + 1 - self.n) : i], row[i : i + 1])

    def count(self, context: Sequence[TokenId], token_ids: Sequence[TokenId]) -> None:
        """Count each token once as a successor of a context, of which the last n - 1 tokens are read.

        Several tokens are alternatives, not a continuation.
        """
        end = tuple(context[1 - self.n :])
        all_counts, most_frequent = self.counts, self.most_frequent
        for length in self._lengths if token_ids else ():
            if length > len(end):
                continue
            key = end[-length:]
            counts = all_counts.get(key)
            if counts is None:
                counts = all_counts[key] = {}
                most_frequent[key] = token_ids[0]
            else:
                all_counts.move_to_end(key)
            for token_id in token_ids:
                count = counts[token_id] = counts.get(token_id, 0) + 1
                if count > counts[most_frequent[key]]:  # not at a tie: the first to reach a count stays
                    most_frequent[key] = token_id
        while len(all_counts) > self.max_contexts:
            forgotten, _ = all_counts.popitem(last=False)
            del most_frequent[forgotten]

    def successor(self, context: Sequence[TokenId]) -> TokenId | None:
        """Return the most frequent successor of the longest end of a context that is stored; None if none is.

        Of successors seen equally often, the first that reached the count. Reading changes nothing.
        """
        end = tuple(context[1 - self.n :])
        for length in self._lengths:
            if length <= len(end) and (token_id := self.most_frequent.get(end[-length:])) is not None:
                return token_id
        return None


_ORDER = 4
"""Tokens of the longest n-gram, as in the document's experiments."""
_FILLERS = 3
"""Of the target's most probable tokens at a verified position, so many are learned beside the one that was emitted."""
_MAX_CONTEXTS = 250_000
"""Kept for a sequence, some 120 MB; those that were learned from the longest time ago go first."""


@dataclass(slots=True)
class _Storage:
    """What a sequence has taught."""

    counts: NGramCounts
    token_ids: list[TokenId] = field(default_factory=list)
    """Those that were learned."""
    draft_id: int = 0
    """Its latest draft."""


class NasdDrafter:
    """Drafts chains, the most frequent successor again and again; ends them where a context is unknown."""

    def __init__(self) -> None:
        """Begin without sequences."""
        self._storages: dict[int, _Storage] = {}
        self._draft_ids = itertools.count(1)
        self._num_steps = self._num_nodes = 0

    @property
    def state(self) -> DrafterState:
        """Always ``ok``."""
        return "ok"

    @property
    def statistics(self) -> DrafterStatistics:
        """Steps and nodes."""
        return DrafterStatistics(steps=self._num_steps, drafted_nodes=self._num_nodes)

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Begin with an empty storage; nothing is learned from other sequences."""
        self._storages[session_id] = _Storage(NGramCounts(_ORDER, max_contexts=_MAX_CONTEXTS))

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Learn what is new of every sequence, and continue it."""
        self._num_steps += 1
        drafts = [self._draft(step) for step in steps]
        self._num_nodes += sum(map(len, drafts))
        return drafts

    def finish(self, session_id: int) -> None:
        """Forget a sequence."""
        self._storages.pop(session_id, None)

    def close(self) -> None:
        """Forget all sequences."""
        self._storages.clear()

    def _draft(self, step: SequenceStep) -> Draft:
        storage = self._storages[step.session_id]
        if storage.token_ids != step.token_ids[: len(storage.token_ids)]:  # another text than before
            self.open(step.session_id)
            storage = self._storages[step.session_id]
        _learn(storage, step)
        storage.draft_id = next(self._draft_ids)
        window = storage.token_ids[1 - _ORDER :]
        drafted: list[TokenId] = []
        while len(drafted) < step.node_budget and (token_id := storage.counts.successor(window)) is not None:
            drafted.append(token_id)
            window = [*window, token_id][1 - _ORDER :]
        return Draft(
            token_ids=tuple(drafted),
            parents=tuple(range(len(drafted))),
            draft_id=storage.draft_id,
            strategy="nasd",
            terminated_early=len(drafted) < step.node_budget,
        )


def _learn(storage: _Storage, step: SequenceStep) -> None:
    """Count each new token as a successor, and beside it what else the target thought probable there."""
    known, feedback = len(storage.token_ids), step.feedback
    fillers: dict[int, list[TokenId]] = {}
    if feedback is not None and feedback.draft_id == storage.draft_id:
        # A chain's node j + 1 was followed by the position j + 1 behind the sequence that was drafted for.
        rows = zip(feedback.nodes, feedback.rows[:, :_FILLERS].tolist(), strict=True)
        fillers = {known + node: row for node, row in rows}
    storage.token_ids += step.token_ids[known:]
    for index in range(max(1, known), len(storage.token_ids)):
        context = storage.token_ids[max(0, index + 1 - _ORDER) : index]
        storage.counts.count(context, (storage.token_ids[index], *fillers.get(index, ())))

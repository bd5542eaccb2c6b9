"""The strategy ``nasd``: every sequence drafts from an n-gram storage of its own, which learns as it is decoded.

NASD in the engine, batched and under any rule; :mod:`speculant_verifier.papers.nasd` has the document's own loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from speculant_graph.types import Draft, DrafterState, DrafterStatistics, SequenceStep, SessionOptions, TokenId
from speculant_verifier.papers.ngram_counts import NGramCounts

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

    def __init__(self, vocabulary_size: int) -> None:
        """Begin without sequences.

        Args:
            vocabulary_size: ids below it are tokens.
        """
        self._vocabulary_size = vocabulary_size
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
        self._storages[session_id] = _Storage(NGramCounts(_ORDER, self._vocabulary_size, max_contexts=_MAX_CONTEXTS))

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

"""Replays a recorded output as if a model wrote it again: draft, keep what agrees, go on behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speculant_graph.bench.traces import Trace
from speculant_graph.types import EMPTY_DRAFT, Draft, TokenId

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter

PROMPT_LOOKUP = "prompt-lookup"
"""Name of the baseline in results."""
_LONGEST_NGRAM = 3


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How outputs are replayed."""

    node_budget: int
    """Most nodes of a draft."""
    learn: bool = False
    """Let later traces gain by what earlier ones accepted, and feed the target's own tokens back."""
    cost: CostCurve | None = None
    """What the drafter knows of the cost of verifying."""
    seed: int = 0
    """Seed of strategies that draw."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One draft and what became of it."""

    num_drafted: int
    """Nodes of the draft."""
    num_accepted: int
    """Nodes that agreed with the record, from the root on."""
    num_tokens: int
    """Tokens that the step brought: the accepted ones, and the target's own behind them where the record goes on."""
    expected: float | None
    """Accepted nodes that the draft's own probabilities predicted; None if it has none."""
    draft_ns: int
    """Time of the call that drafted."""


@dataclass(slots=True)
class _Lookup:
    tokens: list[TokenId] = field(default_factory=list)
    ends: dict[tuple[TokenId, ...], int] = field(default_factory=dict)
    """Where an n-gram first ended."""


class PromptLookupDrafter:
    """Copies what followed the first earlier occurrence of the last tokens (Saxena 2023, prompt lookup decoding).

    The longest of the last 3, 2, 1 tokens that occurred before decides. It is the baseline that inference libraries
    bring, without a graph; it learns nothing across sequences and knows no cost.
    """

    def __init__(self) -> None:
        """Begin without sequences."""
        self._lookups: dict[int, _Lookup] = {}

    def open(self, session_id: int, *, learn: bool = False, cost: CostCurve | None = None) -> None:
        """Begin a sequence."""
        self._lookups[session_id] = _Lookup()

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add tokens to the sequence."""
        lookup = self._lookups[session_id]
        for token_id in token_ids:
            lookup.tokens.append(token_id)
            for length in range(1, min(_LONGEST_NGRAM, len(lookup.tokens)) + 1):
                lookup.ends.setdefault(tuple(lookup.tokens[-length:]), len(lookup.tokens))

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]]) -> None:
        """Take the target's top tokens, which this strategy has no use for."""

    def draft(self, orders: Sequence[DraftRequest]) -> list[Draft]:
        """Draft a chain for each order."""
        return [self._draft(self._lookups[order.session_id], order.node_budget) for order in orders]

    def close(self, session_id: int) -> None:
        """Forget the sequence."""
        del self._lookups[session_id]

    def _draft(self, lookup: _Lookup, node_budget: int) -> Draft:
        tokens = lookup.tokens
        for length in range(min(_LONGEST_NGRAM, len(tokens)), 0, -1):
            start = lookup.ends[tuple(tokens[-length:])]
            if start < len(tokens):
                copied = tuple(tokens[start : start + node_budget])
                return Draft(copied, tuple(range(len(copied))), terminated_early=len(copied) < node_budget)
        return EMPTY_DRAFT


def replay(
    drafter: SessionDrafter | PromptLookupDrafter,
    traces: Sequence[Trace],
    options: ReplayOptions,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[ReplayStep]]:
    """Replay traces one after another and return the steps of each.

    Args:
        drafter: what drafts; it has no session yet.
        traces: what was recorded.
        options: how.
        tell: called with the number of traces that are through, and that of all.
    """
    replayed = []
    for session_id, trace in enumerate(traces, start=1):
        drafter.open(session_id, learn=options.learn, cost=options.cost)
        drafter.accept(session_id, trace.prompt)
        replayed.append(_replay_trace(drafter, session_id, trace.output, options))
        drafter.close(session_id)
        tell(session_id, len(traces))
    return replayed


def _replay_trace(
    drafter: SessionDrafter | PromptLookupDrafter, session_id: int, output: Sequence[TokenId], options: ReplayOptions
) -> list[ReplayStep]:
    from speculant_graph.draft.session_drafter import DraftRequest

    order = DraftRequest(session_id, options.node_budget, options.seed)
    steps: list[ReplayStep] = []
    position = 0
    while position < len(output):
        start_ns = time.perf_counter_ns()
        (draft,) = drafter.draft([order])
        draft_ns = time.perf_counter_ns() - start_ns
        assert len(draft) <= options.node_budget, "a draft over its budget would be compared unfairly"
        path = agreeing_path(draft, output[position : position + options.node_budget])
        accepted = output[position : position + len(path) + 1]
        if options.learn:
            # All that a record knows of the target: the one token that it wrote.
            nodes = (0, *(node + 1 for node in path))[: len(accepted)]
            drafter.recycle(session_id, nodes, [(token_id,) for token_id in accepted])
        drafter.accept(session_id, accepted)
        expected = sum(draft.path_probabilities) if draft.path_probabilities else None
        steps.append(ReplayStep(len(draft), len(path), len(accepted), expected, draft_ns))
        position += len(accepted)
    return steps


def agreeing_path(draft: Draft, output: Sequence[TokenId]) -> tuple[int, ...]:
    """Return the nodes of the longest path from the root whose tokens are those the output begins with."""
    depths: list[int] = []  # of nodes that agree; 0 of others
    deepest = -1
    for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
        depth = 1 if parent == 0 else depths[parent - 1] + 1
        is_reached = parent == 0 or depths[parent - 1] > 0
        agrees = is_reached and depth <= len(output) and token_id == output[depth - 1]
        depths.append(depth if agrees else 0)
        if agrees and (deepest < 0 or depth > depths[deepest]):
            deepest = len(depths) - 1
    path: list[int] = []
    while deepest >= 0:
        path.append(deepest)
        deepest = draft.parents[deepest] - 1
    return tuple(reversed(path))

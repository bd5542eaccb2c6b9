"""Session drafters for tests, and values of their drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions
from speculant_graph.draft.session_drafter import MAX_SUPPORT, SessionDrafter
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import StrategyName
from speculant_graph.types import Draft, SequenceStep


def drafter_of(
    graph: NgramGraph | None = None,
    learned: LearnedStore | None = None,
    num_threads: int = 0,
    max_session_tokens: int = 131_072,
    **settings: Any,
) -> SessionDrafter:
    config = DraftConfig(**{"strategy": "tree", **settings})
    return SessionDrafter(
        graph, config, learned=learned, num_threads=num_threads, max_session_tokens=max_session_tokens
    )


def draft_batch(
    drafter: SessionDrafter,
    session_ids: Sequence[int],
    budgets: Sequence[int],
    seeds: Sequence[int],
    options: DraftOptions = DEFAULT_OPTIONS,
    max_support: int = MAX_SUPPORT,
    least: Sequence[float] = (),
) -> list[Draft]:
    steps = [
        SequenceStep(number, (), budget, seed, least_probability=bound)
        for number, budget, seed, bound in zip(
            session_ids, budgets, seeds, least or [0.0] * len(session_ids), strict=True
        )
    ]
    return drafter.draft(steps, options, max_support)


def draft_of(
    drafter: SessionDrafter, number: int, budget: int = 8, strategy: StrategyName | None = None, seed: int = 0
) -> Draft:
    (draft,) = drafter.draft([SequenceStep(number, (), budget, seed, options=DraftOptions(strategy))])
    return draft


def started(drafter: SessionDrafter, number: int, prompt: Sequence[int], **settings: Any) -> Draft:
    drafter.open(number, **settings)
    drafter.accept(number, prompt)
    return draft_of(drafter, number)


def values_of(draft: Draft) -> object:
    """Return all values of a draft in comparable form, with arrays as lists."""
    proposals = [(each.token_ids.tolist(), each.probabilities.tolist()) for each in draft.proposals]
    return draft.token_ids, draft.parents, draft.path_probabilities, proposals, draft.strategy, draft.terminated_early

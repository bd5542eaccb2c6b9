"""Drafts from graphs of tenants' learned text: those of one graph never appear in drafts from another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint, SequenceStep

pytestmark = pytest.mark.hostile  # a record of one graph may lie outside of another
FINGERPRINT = Fingerprint("ids", "0" * 64, 4_000)
PROMPT = 3
"""The token of the only context, which has more successors than a draft has room for."""
NUM_SUCCESSORS = 60


def graph_of(first: int, num_successors: int = NUM_SUCCESSORS) -> NgramGraph:
    """Return a graph in which the prompt's successors are the tokens from ``first`` on, the first the most frequent."""
    texts = [[PROMPT, token] for token in range(first, first + num_successors)]
    return build_from_token_ids([], FINGERPRINT, max_order=2, documents=[*texts, texts[0], texts[0]])


def drafts_of(graphs: Sequence[tuple[str, NgramGraph]]) -> list[tuple[int, ...]]:
    """Return the drafts of one drafter for several tenants, one after another, each with its own learned graph."""
    store = LearnedStore(1_000)
    drafter = SessionDrafter(None, DraftConfig(), learned=store, vocabulary_size=FINGERPRINT.vocabulary_size)
    found = []
    for session_id, (tenant, graph) in enumerate(graphs, start=1):
        memory = store.memory(tenant)
        memory.take_graphs((graph,))
        drafter.open(session_id, tenant=tenant, learn=True)
        drafter.accept(session_id, [PROMPT], is_prompt=True)
        [draft] = drafter.draft([SequenceStep(session_id, (), node_budget=8)])
        found.append(draft.token_ids)
        drafter.close(session_id)
    return found


@pytest.mark.parametrize("is_one_tenant", [True, False])
def test_a_draft_has_tokens_of_its_own_graphs_only(is_one_tenant: bool) -> None:
    """Graphs of two tenants, or an older and a newer graph of one, have their contexts in the same places."""
    graphs = [
        ("a" if is_one_tenant else f"tenant-{index}", graph_of(100 * index, NUM_SUCCESSORS - 8 * index))
        for index in range(1, 6)
    ]
    together = drafts_of(graphs)
    assert together == [drafts_of([each])[0] for each in graphs]
    for index, draft in enumerate(together, start=1):
        assert draft
        assert all(100 * index <= token < 100 * index + NUM_SUCCESSORS or token == PROMPT for token in draft)

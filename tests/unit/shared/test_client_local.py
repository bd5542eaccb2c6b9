"""Drafting in this process: ids, feedback, and texts that are others."""

from __future__ import annotations

import numpy as np
import pytest

from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig
from speculant_graph.draft.reference import draft_chain
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.oracle import OracleGraph
from speculant_graph.types import Feedback, MixingName, SequenceStep
from support.graphs import graph_of

TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]


@pytest.fixture
def drafter() -> LocalDrafter:
    return LocalDrafter(None, DraftConfig(strategy="tree"))


@pytest.mark.parametrize("mixing", ["longest", "attention"])
def test_coupled_drafts_are_those_of_the_reference(mixing: MixingName) -> None:
    text = np.random.default_rng(2).integers(0, 12, 900).tolist()
    config = DraftConfig(k=5, strategy="sampling", mixing=mixing, coupling="gumbel")
    local = LocalDrafter(graph_of([text], 3, 12), config)
    slow = OracleGraph([text], 3)
    steps = [SequenceStep(key, text[: 20 + key], 5, seed=3 * key) for key in range(1, 30)]
    expected = [draft_chain(slow, config, step.token_ids, step.seed)[0] for step in steps]
    assert [list(draft.token_ids) for draft in local.draft(steps)] == expected
    uncoupled = config.model_copy(update={"coupling": "none"})
    assert [draft_chain(slow, uncoupled, step.token_ids, step.seed)[0] for step in steps] != expected


def test_every_draft_has_an_id_of_its_own(drafter: LocalDrafter) -> None:
    found = [
        draft.draft_id for _ in range(3) for draft in drafter.draft([SequenceStep(key, TEXT, 4) for key in (1, 2)])
    ]
    assert len(set(found)) == 6
    assert min(found) > 0


def test_feedback_teaches_only_about_the_latest_draft(drafter: LocalDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[list[int]] = []
    recycle = SessionDrafter.recycle

    def listen(self: SessionDrafter, session_id: int, nodes: list[int], rows: np.ndarray) -> None:
        taught.append(list(nodes))
        recycle(self, session_id, nodes, rows)

    monkeypatch.setattr(SessionDrafter, "recycle", listen)
    rows = np.array([[9, 8], [7, 6]])
    [first] = drafter.draft([SequenceStep(1, TEXT, 4)])
    [second] = drafter.draft([SequenceStep(1, TEXT, 4, feedback=Feedback(first.draft_id, [0, 1], rows))])
    assert taught == [[0, 1]]
    drafter.draft([SequenceStep(1, TEXT, 4, feedback=Feedback(first.draft_id, [0, 1], rows))])
    assert taught == [[0, 1]]
    # What does not fit its draft costs the lesson, not the draft.
    [third] = drafter.draft([SequenceStep(1, TEXT, 4)])
    [fourth] = drafter.draft([SequenceStep(1, TEXT, 4, feedback=Feedback(third.draft_id, [99], rows[:1]))])
    assert fourth.token_ids == third.token_ids
    assert drafter.state == "ok"
    assert second.draft_id < third.draft_id


@pytest.mark.parametrize("other", [TEXT[:-1], [*TEXT[:-1], 6], [*TEXT[:-1], 6, 7]])
def test_another_text_under_an_old_id_is_another_sequence(drafter: LocalDrafter, other: list[int]) -> None:
    fresh = LocalDrafter(None, DraftConfig(strategy="tree", max_learned_tokens=0))
    used = LocalDrafter(None, DraftConfig(strategy="tree", max_learned_tokens=0))
    used.draft([SequenceStep(1, TEXT, 4)])
    assert used.draft([SequenceStep(1, other, 4)])[0].token_ids == fresh.draft([SequenceStep(1, other, 4)])[0].token_ids

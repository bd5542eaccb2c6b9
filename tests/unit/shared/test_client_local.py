"""Drafting in this process: ids, feedback, and changed texts."""

from __future__ import annotations

import numpy as np
import pytest

from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import Feedback, SequenceStep, SessionOptions

TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]


@pytest.fixture
def drafter() -> LocalDrafter:
    return LocalDrafter(None, DraftConfig(strategy="tree"))


def test_feedback_teaches_only_about_the_latest_draft() -> None:
    rows = np.array([[9, 8], [7, 6]])

    def last(*feedbacks: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Draft once, then once with each feedback; return the last draft's tokens and probabilities."""
        drafter = LocalDrafter(None, DraftConfig(strategy="tree", sources=frozenset({"recycled"})))
        drafts = drafter.draft([SequenceStep(1, TEXT, 4)])
        for number, kind in enumerate(feedbacks, start=1):
            told = Feedback(drafts[-1 if kind == "latest" else 0].draft_id, [0], rows[:1]) if kind else None
            if kind == "damaged":
                told = Feedback(drafts[-1].draft_id, [99], rows[:1])
            text = [*TEXT, *[TEXT[-1]] * number]
            drafts += drafter.draft([SequenceStep(1, text, 4, feedback=told)])
            assert drafter.state == "ok", "what does not fit its draft costs the lesson, not the draft"
        return drafts[-1].token_ids, drafts[-1].path_probabilities

    assert last("latest")[0][:2] == (9, 8)
    assert last("")[0] == ()
    assert last("", "first") == last("", "") != last("", "latest")
    assert last("damaged") == last("")


@pytest.mark.parametrize("other", [TEXT[:-1], [*TEXT[:-1], 6], [*TEXT[:-1], 6, 7]])
def test_another_text_under_an_old_id_is_another_sequence(drafter: LocalDrafter, other: list[int]) -> None:
    fresh = LocalDrafter(None, DraftConfig(strategy="tree", max_learned_tokens=0))
    used = LocalDrafter(None, DraftConfig(strategy="tree", max_learned_tokens=0))
    used.draft([SequenceStep(1, TEXT, 4)])
    assert used.draft([SequenceStep(1, other, 4)])[0].token_ids == fresh.draft([SequenceStep(1, other, 4)])[0].token_ids


def taught(drafter: LocalDrafter, session_id: int, options: SessionOptions | None) -> None:
    """Let a session accept a text after its prompt."""
    drafter.open(session_id, options)
    for end in (4, len(TEXT), len(TEXT) + 4):
        drafter.draft([SequenceStep(session_id, [*TEXT, 60, 61, 62, 63][:end], 4)])
    drafter.finish(session_id)


@pytest.mark.parametrize("another_text_first", [False, True])
def test_sessions_learn_and_draft_as_their_options_say(*, another_text_first: bool) -> None:
    def drafted(drafter: LocalDrafter, options: SessionOptions | None) -> tuple[int, ...]:
        drafter.open(99, options)
        if another_text_first:  # the session restarts internally, for the same tenant
            drafter.draft([SequenceStep(99, [5, 5, 5], 4)])
        [draft] = drafter.draft([SequenceStep(99, [7, 1, 2, 60, 61], 4)])
        drafter.finish(99)
        return draft.token_ids

    drafter = LocalDrafter(None, DraftConfig(strategy="adaptive"))
    taught(drafter, 1, SessionOptions("a", learn=False))
    assert drafted(drafter, SessionOptions("a", learn=False)) == ()
    taught(drafter, 2, SessionOptions("a"))
    assert drafted(drafter, SessionOptions("b", learn=False)) == ()
    assert drafted(drafter, None) == ()
    assert drafted(drafter, SessionOptions("a", learn=False))[:2] == (62, 63)


def test_sessions_may_have_any_number(drafter: LocalDrafter) -> None:
    for text in (TEXT, [*TEXT, 3], [*TEXT, 3, 4]):
        zero, other = (drafter.draft([SequenceStep(number, text, 4)])[0] for number in (0, 2**64 - 1))
        assert zero.token_ids == other.token_ids
        assert zero.token_ids


def test_there_is_but_one_graph_here(drafter: LocalDrafter) -> None:
    with pytest.raises(GenerationRequestError) as caught:
        drafter.open(1, SessionOptions(graph="code"))
    assert caught.value.field == "graph"

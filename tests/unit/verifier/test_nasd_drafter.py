"""The strategy ``nasd`` against counting everything anew at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.types import Feedback, SequenceStep
from speculant_verifier.papers.nasd_drafter import NasdDrafter, NGramCounts

TOKENS = st.integers(0, 4)


def expected_draft(learned: list[tuple[list[int], list[int]]], text: list[int], budget: int) -> tuple[int, ...]:
    """What the document's storage drafts, made of all that was learned: contexts, and the tokens that count there."""
    counts = NGramCounts(4)
    for context, tokens in learned:
        counts.count(context, tokens)
    window, drafted = list(text), []
    while len(drafted) < budget and (token := counts.successor(window)) is not None:
        drafted.append(token)
        window.append(token)
    return tuple(drafted)


@given(prompt=st.lists(TOKENS, max_size=30), data=st.data())
def test_storages_learn_what_was_emitted_and_what_else_was_probable(prompt: list[int], data: Any) -> None:
    drafter = NasdDrafter()
    drafter.open(1)
    text, learned, feedback = list(prompt), [(prompt[:i], [prompt[i]]) for i in range(1, len(prompt))], None
    for _ in range(data.draw(st.integers(1, 6))):
        [draft] = drafter.draft([SequenceStep(1, list(text), 6, feedback=feedback)])
        assert draft.token_ids == expected_draft(learned, text, 6)
        assert draft.is_chain
        accepted = data.draw(st.integers(0, len(draft)))
        emitted = [*draft.token_ids[:accepted], data.draw(TOKENS)]
        rows = data.draw(st.lists(st.permutations(range(5)), min_size=len(draft) + 1, max_size=len(draft) + 1))
        feedback = Feedback(draft.draft_id, range(len(draft) + 1), np.array(rows, np.int64))
        for token, row in zip(emitted, rows, strict=False):
            if text:
                learned.append((list(text), [token, *row[:3]]))
            text.append(token)


def test_another_text_and_other_sequences_teach_nothing() -> None:
    drafter = NasdDrafter()
    for session_id, text in ((1, [1, 2, 1, 2]), (2, [1, 3, 1])):
        drafter.open(session_id)
        drafter.draft([SequenceStep(session_id, text, 0)])
    one, two = drafter.draft([SequenceStep(1, [1, 2, 1], 1), SequenceStep(2, [1, 3, 1], 1)])
    assert (one.token_ids, two.token_ids) == ((2,), (3,))
    [other] = drafter.draft([SequenceStep(1, [4, 5, 4], 1)])
    assert other.token_ids == (5,)
    drafter.finish(1)
    drafter.finish(1)
    assert drafter.statistics.drafted_nodes == 3

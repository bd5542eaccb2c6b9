"""What sessions store for the strategy ``nasd``: long prompts, a part at every step."""

from __future__ import annotations

import numpy as np

from support.sessions import draft_of, drafter_of, started


def test_a_long_prompt_that_repeats_its_beginning_is_drafted_from() -> None:
    drafter = drafter_of(strategy="nasd")
    prompt = np.random.default_rng(1).permutation(60_000)[:5_000].tolist()
    draft = started(drafter, 1, [*prompt, *prompt[:9]])
    assert draft.token_ids == tuple(prompt[9:17])
    for _ in range(4):  # the rest of the prompt becomes known step by step
        draft_of(drafter, 1)
    for index in (1_022, 1_500, 3_000, 4_500):
        drafter.accept(1, prompt[index : index + 3])
        assert draft_of(drafter, 1).token_ids == tuple(prompt[index + 3 : index + 11])


def test_many_tokens_at_once_are_stored_step_by_step() -> None:
    drafter = drafter_of(strategy="nasd")
    tokens = np.random.default_rng(1).permutation(60_000)[:20_000].tolist()
    started(drafter, 1, tokens[:10])
    drafter.accept(1, [*tokens[10:], tokens[-20]])
    assert draft_of(drafter, 1).token_ids == (), "the end is not known at once"
    num_bytes = drafter._find(1).num_bytes
    for _ in range(20):
        draft_of(drafter, 1)
    assert draft_of(drafter, 1).token_ids == tuple(tokens[-19:-11])
    assert drafter._find(1).num_bytes > 5 * num_bytes, "what is stored is counted"

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.types import EMPTY_DRAFT, Draft
from speculant_verifier.rules.follow import follow as follow_target


class Chosen:
    def __init__(self, choices):
        self.choices = choices

    def choice_after(self, node):
        return self.choices[node]


def follow(draft, choices):
    return follow_target(draft, Chosen(choices), lambda: 0.0)


def test_empty_draft_emits_the_models_own_token():
    verdict = follow(EMPTY_DRAFT, [7])
    assert verdict.path == ()
    assert verdict.token_ids == (7,)


def test_wrong_first_token_is_rejected():
    verdict = follow(Draft((5, 6), (0, 1)), [7, 6, 8])
    assert verdict.path == ()
    assert verdict.token_ids == (7,)


def test_chain_is_followed_to_its_end_with_a_bonus_token():
    verdict = follow(Draft((5, 6), (0, 1)), [5, 6, 8])
    assert verdict.path == (0, 1)
    assert verdict.token_ids == (5, 6, 8)


def test_tree_is_followed_across_siblings():
    #      0: a=1   1: b=2      2: child of b=3   3: child of b=4
    draft = Draft((1, 2, 3, 4), (0, 0, 2, 2))
    verdict = follow(draft, [2, 99, 4, 99, 5])
    assert verdict.path == (1, 3)
    assert verdict.token_ids == (2, 4, 5)


@st.composite
def trees_with_choices(draw):
    size = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(0, index)) for index in range(size))
    taken: set[tuple[int, int]] = set()
    token_ids = []
    for parent in parents:
        token = draw(st.integers(0, 20).filter(lambda t, p=parent: (p, t) not in taken))
        taken.add((parent, token))
        token_ids.append(token)
    choices = draw(st.lists(st.integers(0, 20), min_size=size + 1, max_size=size + 1))
    return Draft(tuple(token_ids), parents), choices


@given(trees_with_choices())
def test_follow_equals_the_obvious_walk(case):
    draft, choices = case
    node, path, emitted = 0, [], []
    while True:
        emitted.append(choices[node])
        below = [j for j in range(len(draft)) if draft.parents[j] == node and draft.token_ids[j] == choices[node]]
        if not below:
            break
        path.append(below[0])
        node = below[0] + 1
    verdict = follow(draft, choices)
    assert verdict.path == tuple(path)
    assert verdict.token_ids == tuple(emitted)
    assert len(verdict.token_ids) == len(verdict.path) + 1

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.types import Draft
from speculant_verifier.rules.follow import follow as follow_target


class Chosen:
    def __init__(self, choices):
        self.choices = choices

    def choice_after(self, node):
        return self.choices[node]


def follow(draft, choices):
    return follow_target(draft, Chosen(choices), lambda: 0.0)


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

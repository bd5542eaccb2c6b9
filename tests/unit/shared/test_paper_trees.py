"""Draft trees against the enumeration of every path."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.draft.papers.trees import Propose, draft_beam, draft_tree
from speculant_graph.types import Draft
from support.graphs import graph_of
from support.oracle import OracleGraph
from support.trees import paths_of, proposals_of

Path = tuple[int, ...]
Proposed = tuple[list[int], list[float]]
DraftWith = Callable[[Propose, int, int, int], Draft]


def beam_of_4(propose: Propose, budget: int, max_depth: int, max_branches: int) -> Draft:
    return draft_beam(propose, budget, max_depth, 4, max_branches)


both = pytest.mark.parametrize("draft_with", [draft_tree, beam_of_4])


class RandomSource:
    """Up to 4 candidates, a function of the path; few different probabilities, so that ties are frequent."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.paths: list[Path] = []

    def __call__(self, path: Path, _: int) -> Proposed:
        self.paths.append(path)
        assert len(set(self.paths)) == len(self.paths), "nothing is expanded twice"
        return self.candidates(path)

    def candidates(self, path: Path) -> Proposed:
        generator = random.Random(f"{self.seed} {path}")
        size = generator.choice([0, 1, 2, 3, 4, 4] if path else [3, 4])
        weights = [generator.choice([0, 1, 1, 2, 5]) for _ in range(size)]
        total = max(1, sum(weights) + generator.choice([0, 0, 1]))
        return generator.sample(range(9), size), [weight / total for weight in weights]


def every_node(source: RandomSource, max_depth: int, max_branches: int) -> list[tuple[float, Path, Path]]:
    """Return cost, ranks and tokens of all paths."""
    nodes = []
    level: list[tuple[float, Path, Path]] = [(0.0, (), ())]
    for _ in range(max_depth):
        level = [
            (cost - math.log(probability), (*ranks, rank), (*path, token_id))
            for cost, ranks, path in level
            for rank, (probability, token_id) in enumerate(ranked(source, path)[:max_branches])
        ]
        nodes += level
    return nodes


def ranked(source: RandomSource, path: Path) -> list[tuple[float, int]]:
    token_ids, probabilities = source.candidates(path)
    pairs = [pair for pair in zip(probabilities, token_ids, strict=True) if pair[0] > 0]
    return sorted(pairs, key=lambda pair: -pair[0])


def require_a_tree(draft: Draft) -> None:
    for index, (parent, probability) in enumerate(zip(draft.parents, draft.path_probabilities, strict=True)):
        assert 0 <= parent <= index
        assert 0.0 <= probability <= (1.0 if parent == 0 else draft.path_probabilities[parent - 1])
    assert len(set(paths_of(draft))) == len(draft), "siblings differ"


limits = (st.integers(0, 20), st.integers(1, 4), st.integers(1, 5))


@settings(max_examples=300)
@given(st.integers(0, 10**6), *limits)
def test_the_tree_holds_the_most_probable_nodes_of_all(
    seed: int, budget: int, max_depth: int, max_branches: int
) -> None:
    source = RandomSource(seed)
    draft = draft_tree(source, budget, max_depth, max_branches)
    require_a_tree(draft)
    best = sorted(every_node(source, max_depth, max_branches))[:budget]
    assert paths_of(draft) == [path for _, _, path in best]
    assert draft.path_probabilities == tuple(math.exp(-cost) for cost, _, _ in best)
    assert (draft.strategy, draft.proposals) == ("specexec", ())
    assert set(source.paths) <= {(), *(path for _, _, path in best)}, "nothing is expanded in vain"


@settings(max_examples=300)
@given(st.integers(0, 10**6), *limits, st.integers(1, 6))
def test_a_beam_holds_the_most_probable_nodes_of_every_depth(
    seed: int, budget: int, max_depth: int, max_branches: int, width: int
) -> None:
    source = RandomSource(seed)
    draft = draft_beam(source, budget, max_depth, width, max_branches)
    require_a_tree(draft)
    nodes = every_node(source, max_depth, max_branches)
    expected: list[Path] = []
    beam: set[Path] = {()}
    for depth in range(1, max_depth + 1):
        level = sorted(node for node in nodes if len(node[2]) == depth and node[2][:-1] in beam)[:width]
        beam = {path for _, _, path in level}
        expected += [path for _, _, path in level]
    assert paths_of(draft) == expected[:budget]
    assert draft.strategy == "beam"
    costs = {path: cost for cost, _, path in nodes}
    assert draft.path_probabilities == tuple(math.exp(-costs[path]) for path in expected[:budget])


def table(**candidates: Proposed) -> Propose:
    """Return candidates by path, written down: ``_12`` follows the tokens 1 and 2."""
    return lambda path, _: candidates.get("_" + "".join(map(str, path)), ([], []))


def test_siblings_and_parents_are_numbered_as_drafts_are() -> None:
    propose = table(_=([7, 8], [0.6, 0.4]), _7=([8], [0.5]), _8=([8, 7], [0.5, 0.5]))
    draft = draft_tree(propose, 9, 2, 4)
    assert (draft.token_ids, draft.parents) == ((7, 8, 8, 8, 7), (0, 0, 1, 2, 2))
    assert draft_beam(propose, 9, 2, 2, 4) == Draft(
        (7, 8, 8, 8), (0, 0, 1, 2), draft.path_probabilities[:4], strategy="beam"
    )


@both
def test_nothing_asked_or_nothing_known(draft_with: DraftWith) -> None:
    source = RandomSource(1)
    for budget in (0, -2):
        draft = draft_with(source, budget, 3, 3)
        assert (len(draft), draft.terminated_early, source.paths) == (0, False, [])
    draft = draft_with(table(), 5, 3, 3)
    assert (len(draft), draft.terminated_early) == (0, True)


@both
def test_only_unknown_contexts_end_a_draft_early(draft_with: DraftWith) -> None:
    propose = table(_=([1, 2], [0.5, 0.5]), _1=([3], [1.0]), _2=([4], [1.0]))
    assert not draft_with(propose, 9, 2, 4).terminated_early, "the depth ended it"
    assert draft_with(propose, 9, 3, 4).terminated_early
    assert not draft_with(propose, 4, 3, 4).terminated_early, "as many as asked for"


@both
def test_careless_probabilities_do_no_harm(draft_with: DraftWith) -> None:
    draft = draft_with(table(_=([1, 2, 3, 1, 4, 5], [0.5, math.nan, 0.0, 0.7, 1.0 + 1e-7, -1.0])), 9, 1, 9)
    assert (draft.token_ids, draft.path_probabilities) == ((4, 1), pytest.approx((1.0, 0.7)))
    assert max(draft.path_probabilities) <= 1.0


def test_long_improbable_paths_keep_their_order() -> None:
    draft = draft_tree(lambda path, _: ([0, 1], [2e-9, 1e-9]) if not any(path) else ([], []), 200, 100, 2)
    assert sorted(len(path) for path in paths_of(draft)) == sorted([*range(1, 101)] * 2)
    assert draft.path_probabilities[-1] == 0.0, "beyond the smallest number, yet in its place"


streams = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(streams, st.lists(st.integers(0, 6), max_size=6), st.integers(1, 4), *limits)
def test_a_tree_of_a_graph_is_one_of_its_oracle(
    stream: list[int], context: list[int], max_order: int, budget: int, max_depth: int, max_branches: int
) -> None:
    graph = graph_of([stream], max_order, 7)
    oracle = OracleGraph([stream], max_order)

    def candidates(path: Sequence[int], _: int) -> Proposed:
        longest = oracle.longest_context((*context, *path))
        successors = oracle.context_index[longest] if longest is not None else {}
        token_ids = sorted(successors, key=lambda token_id: (-successors[token_id], token_id))
        return token_ids, [successors[token_id] / sum(successors.values()) for token_id in token_ids]

    for draft_with in (draft_tree, beam_of_4):
        expected = draft_with(candidates, budget, max_depth, max_branches)
        assert draft_with(proposals_of(graph, context), budget, max_depth, max_branches) == expected

"""Draft trees against the enumeration of every path."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.draft.ngram_counts import NGramCounts, draft_nasd
from speculant_graph.draft.proposal_tree import (
    Candidates,
    ExpandedNode,
    GraphProposals,
    ProposalSource,
    StorageProposals,
    draft_beam,
    draft_tree,
)
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Draft
from support.graphs import fingerprint
from support.oracle import OracleGraph

Path = tuple[int, ...]


class RandomSource:
    """Candidates that are a function of the path; checks how it is asked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.paths: list[Path] = []
        self.rounds: list[int] = []

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        assert nodes
        known = len(self.paths)
        for node in nodes:
            assert node.number == len(self.paths)
            if node.number == 0:
                assert node == ExpandedNode(0, -1, -1, 0)
                self.paths.append(())
            else:
                assert node.parent < known, "expanded by an earlier call"
                self.paths.append((*self.paths[node.parent], node.token_id))
            assert node.depth == len(self.paths[-1])
        assert len(set(self.paths)) == len(self.paths)
        self.rounds.append(len(nodes))
        return [self.candidates(path) for path in self.paths[known:]]

    def candidates(self, path: Path) -> Candidates:
        """Up to 4 tokens; few different probabilities, so that ties are frequent."""
        generator = random.Random(f"{self.seed} {path}")
        size = generator.choice([0, 1, 2, 3, 4, 4] if path else [3, 4])
        weights = [generator.choice([0, 1, 1, 2, 5]) for _ in range(size)]
        total = max(1, sum(weights) + generator.choice([0, 0, 1]))
        return Candidates(generator.sample(range(9), size), [weight / total for weight in weights])


def ranked(source: RandomSource, path: Path, max_branches: int) -> list[tuple[float, int]]:
    candidates = source.candidates(path)
    pairs = sorted(zip(candidates.probabilities, candidates.token_ids, strict=True), key=lambda pair: -pair[0])
    return [pair for pair in pairs if pair[0] > 0][:max_branches]


def every_node(source: RandomSource, max_depth: int, max_branches: int) -> list[tuple[float, Path, Path]]:
    """Return cost, ranks and tokens of all paths."""
    nodes = []
    level: list[tuple[float, Path, Path]] = [(0.0, (), ())]
    for _ in range(max_depth):
        level = [
            (cost - math.log(probability), (*ranks, rank), (*path, token_id))
            for cost, ranks, path in level
            for rank, (probability, token_id) in enumerate(ranked(source, path, max_branches))
        ]
        nodes += level
    return nodes


def paths_of(draft: Draft) -> list[Path]:
    """Return the tokens of every node's path, checking the rules of a draft."""
    paths: list[Path] = [()]
    for place, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
        assert 0 <= parent <= place
        paths.append((*paths[parent], token_id))
        above = 1.0 if parent == 0 else draft.path_probabilities[parent - 1]
        assert 0.0 <= draft.path_probabilities[place] <= above
    assert len(set(paths)) == len(paths), "siblings differ"
    return paths[1:]


limits = (st.integers(0, 20), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))


@settings(max_examples=300)
@given(st.integers(0, 10**6), *limits)
def test_the_tree_holds_the_most_probable_nodes_of_all(
    seed: int, budget: int, max_depth: int, batch: int, max_branches: int
) -> None:
    source = RandomSource(seed)
    draft = draft_tree(source, budget, max_depth, batch, max_branches)
    best = sorted(every_node(source, max_depth, max_branches))[:budget]
    assert paths_of(draft) == [path for _, _, path in best]
    assert draft.path_probabilities == tuple(math.exp(-cost) for cost, _, _ in best)
    assert draft.strategy == "specexec"
    assert draft.proposals == ()
    assert len(source.rounds) <= len(draft) + (budget > 0)
    assert max(source.rounds, default=0) <= batch
    if batch == 1:
        assert set(source.paths) <= {(), *(path for _, _, path in best)}, "nothing is expanded in vain"


@settings(max_examples=300)
@given(st.integers(0, 10**6), *limits)
def test_a_beam_holds_the_most_probable_nodes_of_every_depth(
    seed: int, budget: int, max_depth: int, width: int, max_branches: int
) -> None:
    source = RandomSource(seed)
    draft = draft_beam(source, budget, max_depth, width, max_branches)
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
    assert max(source.rounds, default=0) <= width


class Table:
    """Candidates by path, written down."""

    def __init__(self, table: dict[Path, Candidates]) -> None:
        self.table = table
        self.paths: list[Path] = [()]

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        self.paths += [(*self.paths[node.parent], node.token_id) for node in nodes if node.number]
        return [self.table.get(self.paths[node.number], Candidates((), ())) for node in nodes]


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_a_batch_does_not_fill_the_tree_with_lesser_nodes(batch: int) -> None:
    table = {
        (): Candidates([1, 2, 3], [0.5, 0.3, 0.2]),
        (1,): Candidates([4], [0.9]),
        (1, 4): Candidates([5], [0.9]),
    }
    draft = draft_tree(Table(table), 3, 8, batch, 8)
    assert (draft.token_ids, draft.parents) == ((1, 4, 5), (0, 1, 2))
    assert draft.path_probabilities == pytest.approx((0.5, 0.45, 0.405))


def test_siblings_and_parents_are_numbered_as_drafts_are() -> None:
    table = {(): Candidates([7, 8], [0.6, 0.4]), (7,): Candidates([8], [0.5]), (8,): Candidates([8, 7], [0.5, 0.5])}
    draft = draft_tree(Table(table), 9, 2, 4, 4)
    assert (draft.token_ids, draft.parents) == ((7, 8, 8, 8, 7), (0, 0, 1, 2, 2))
    assert draft_beam(Table(table), 9, 2, 2, 4) == Draft(
        (7, 8, 8, 8), (0, 0, 1, 2), draft.path_probabilities[:4], strategy="beam"
    )


@pytest.mark.parametrize("draft_with", [draft_tree, draft_beam])
def test_nothing_asked_or_nothing_known(draft_with: type[draft_tree]) -> None:  # type: ignore[valid-type]
    source = RandomSource(1)
    for budget in (0, -2):
        draft = draft_with(source, budget, 3, 3, 3)
        assert len(draft) == 0
        assert not draft.terminated_early
    assert source.rounds == [], "the source is not asked"
    draft = draft_with(Table({}), 5, 3, 3, 3)
    assert len(draft) == 0
    assert draft.terminated_early


@pytest.mark.parametrize("draft_with", [draft_tree, draft_beam])
def test_only_unknown_contexts_end_a_draft_early(draft_with: type[draft_tree]) -> None:  # type: ignore[valid-type]
    table = {(): Candidates([1, 2], [0.5, 0.5]), (1,): Candidates([3], [1.0]), (2,): Candidates([4], [1.0])}
    assert not draft_with(Table(table), 9, 2, 4, 4).terminated_early, "the depth ended it"
    assert draft_with(Table(table), 9, 3, 4, 4).terminated_early
    assert not draft_with(Table(table), 4, 3, 4, 4).terminated_early, "as many as asked for"


@pytest.mark.parametrize("draft_with", [draft_tree, draft_beam])
def test_careless_probabilities_do_no_harm(draft_with: type[draft_tree]) -> None:  # type: ignore[valid-type]
    careless = Candidates([1, 2, 3, 1, 4, 5], [0.5, math.nan, 0.0, 0.7, 1.0 + 1e-7, -1.0])
    draft = draft_with(Table({(): careless}), 9, 1, 9, 9)
    assert (draft.token_ids, draft.path_probabilities) == ((4, 1), pytest.approx((1.0, 0.7)))
    assert max(draft.path_probabilities) <= 1.0


def test_long_improbable_paths_keep_their_order() -> None:
    table = {(0,) * depth: Candidates([0, 1], [2e-9, 1e-9]) for depth in range(100)}
    draft = draft_tree(Table(table), 200, 100, 3, 2)
    assert sorted(len(path) for path in paths_of(draft)) == sorted([*range(1, 101)] * 2)
    assert draft.path_probabilities[-1] == 0.0, "beyond the smallest number, yet in its place"


@pytest.mark.parametrize("draft_with", [draft_tree, draft_beam])
@pytest.mark.parametrize("limits", [(4, 0, 1, 1), (4, 1, 0, 1), (4, 1, 1, 0)])
def test_limits_below_one_are_refused(
    draft_with: type[draft_tree],  # type: ignore[valid-type]
    limits: tuple[int, int, int, int],
) -> None:
    with pytest.raises(
        ConfigError, match=r"(max_depth|batch|width|max_branches) of a draft tree is 0; give at least 1"
    ):
        draft_with(RandomSource(1), *limits)


streams = st.lists(st.integers(0, 4), min_size=1, max_size=60)


class OracleProposals:
    """Candidates of the longest known context, looked up anew for every path."""

    def __init__(self, oracle: OracleGraph, context: Sequence[int]) -> None:
        self.oracle = oracle
        self.paths = [tuple(context)]

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        self.paths += [(*self.paths[node.parent], node.token_id) for node in nodes if node.number]
        return [self.candidates(self.paths[node.number]) for node in nodes]

    def candidates(self, path: Path) -> Candidates:
        longest = self.oracle.longest_context(path)
        if longest is None:
            return Candidates((), ())
        successors = self.oracle.context_index[longest]
        token_ids = sorted(successors, key=lambda token_id: (-successors[token_id], token_id))
        return Candidates(token_ids, [successors[token_id] / successors.total() for token_id in token_ids])


@given(streams, st.lists(st.integers(0, 6), max_size=6), st.integers(1, 4), *limits)
def test_a_graph_proposes_what_followed_the_longest_context(
    stream: list[int], context: list[int], max_order: int, budget: int, max_depth: int, batch: int, max_branches: int
) -> None:
    graph = build_from_token_ids(stream, fingerprint(7), max_order=max_order)
    oracle = OracleGraph([stream], max_order)
    for draft_with in (draft_tree, draft_beam):
        expected = draft_with(OracleProposals(oracle, context), budget, max_depth, batch, max_branches)
        assert draft_with(GraphProposals(graph, context), budget, max_depth, batch, max_branches) == expected
    assert all(type(token_id) is int for token_id in expected.token_ids)


@given(streams, st.lists(st.integers(0, 6), max_size=6), st.integers(2, 5), st.integers(0, 12))
def test_a_storage_s_narrowest_tree_is_its_chain(stream: list[int], context: list[int], n: int, budget: int) -> None:
    storage = NGramCounts(n, 7)
    storage.initialize([stream])
    chain = draft_nasd(storage, context, budget)
    for draft_with in (draft_tree, draft_beam):
        draft = draft_with(StorageProposals(storage, context), budget, 255, 3, 1)
        assert (draft.token_ids, draft.parents) == (chain.token_ids, chain.parents)
        assert draft.terminated_early == chain.terminated_early


def test_a_storage_proposes_shares_of_all_it_counted() -> None:
    storage = NGramCounts(2, 10)
    storage.update([[1]], [[2, 2, 2, 2, 3, 3, 3, 4, 4, 5]])
    draft = draft_tree(StorageProposals(storage, [1]), 9, 1, 1, 2)
    assert draft.token_ids == (2, 3)
    assert draft.path_probabilities == pytest.approx((0.4, 0.3))


class CachedModel:
    """A tiny recurrent language model that keeps one slot of its cache per expanded node."""

    def __init__(self, context: Sequence[int], vocabulary_size: int = 12, width: int = 6) -> None:
        generator = np.random.default_rng(4)
        self.embeddings = generator.normal(size=(vocabulary_size, width))
        self.recurrence = generator.normal(size=(width, width))
        self.output = 2 * generator.normal(size=(width, vocabulary_size))
        self.cache = [self.state(context)]

    def state(self, token_ids: Sequence[int]) -> np.ndarray:
        state = np.zeros(self.recurrence.shape[0])
        for token_id in token_ids:
            state = np.tanh(state @ self.recurrence + self.embeddings[token_id])
        return state

    def probabilities(self, state: np.ndarray) -> np.ndarray:
        logits = state @ self.output
        return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        answers = []
        for node in nodes:
            if node.number:
                above = self.cache[node.parent]
                self.cache.append(np.tanh(above @ self.recurrence + self.embeddings[node.token_id]))
            probabilities = self.probabilities(self.cache[node.number])
            top = np.argsort(-probabilities, kind="stable")[:limit]
            answers.append(Candidates(top.tolist(), probabilities[top].tolist()))
        return answers


@pytest.mark.parametrize("batch", [1, 5])
def test_a_model_with_a_cache_is_a_source(batch: int) -> None:
    context = [3, 1, 4]
    source: ProposalSource = CachedModel(context)
    draft = draft_tree(source, 24, 6, batch, 4)
    assert len(draft) == 24
    assert not draft.terminated_early
    assert all(first >= second for first, second in pairwise(draft.path_probabilities))
    model = CachedModel(context)
    for path, probability in zip(paths_of(draft), draft.path_probabilities, strict=True):
        product = 1.0
        for depth, token_id in enumerate(path):
            product *= model.probabilities(model.state([*context, *path[:depth]]))[token_id]
        assert probability == pytest.approx(product)

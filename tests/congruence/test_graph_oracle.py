"""The graph and its drafts equal the slow reference's exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.draft.generator import DraftGenerator
from support.graphs import counts_of, graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZE = 700  # ten bits, so a key's word holds six tokens

token = st.one_of(st.integers(0, 4), st.sampled_from([0, 1, VOCABULARY_SIZE - 1]))
corpus = st.lists(st.lists(token, min_size=1, max_size=40), min_size=1, max_size=4)
order = st.integers(1, 10)
prompt = st.lists(st.one_of(token, st.sampled_from([-1, 77, VOCABULARY_SIZE, 2**33, 2**40])), max_size=14)
Corpus = list[list[int]]


def slow_graph(documents: Corpus, max_order: int, boundaries: bool) -> OracleGraph:
    return OracleGraph(documents if boundaries else [list(itertools.chain(*documents))], max_order)


@settings(max_examples=40)
@given(documents=corpus, max_order=order, boundaries=st.booleans())
def test_counts_and_distributions(documents: Corpus, max_order: int, boundaries: bool) -> None:
    fast = graph_of(documents, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    slow = slow_graph(documents, max_order, boundaries)
    assert counts_of(fast) == slow.ngram_counts
    for context, successors in slow.context_index.items():
        match = fast.match_order(context, len(context))
        assert match is not None
        row = fast.successors(match)
        assert dict(zip(row.token_ids.tolist(), row.counts.tolist(), strict=True)) == successors
        assert row.total == successors.total()
        probabilities = [fast.probability(context, successor) for successor in successors]
        assert probabilities == [count / row.total for count in successors.values()]
        assert abs(row.probabilities.sum() - 1) < 1e-6
        ranked = sorted(successors.items(), key=lambda item: (-item[1], item[0]))
        assert row.most_common() == ranked
        assert fast.successors(context).most_common(2) == ranked[:2]
        assert fast.count([*context, ranked[0][0]]) == ranked[0][1]
    assert sum(fast.metadata.contexts_per_order) == len(slow.context_index)
    assert sum(fast.metadata.transitions_per_order) == sum(map(len, slow.context_index.values()))
    assert dict(fast.context_index) == {context: len(context) for context in slow.context_index}
    for length in range(1, max_order + 2):
        ngrams = {ngram: count for ngram, count in slow.ngram_counts.items() if len(ngram) == length}
        expected = sorted(ngrams.items(), key=lambda item: (-item[1], item[0]))
        assert fast.most_common(3, length) == expected[:3]


@settings(max_examples=40)
@given(documents=corpus, max_order=order, boundaries=st.booleans(), context=prompt)
def test_matches(documents: Corpus, max_order: int, boundaries: bool, context: list[int]) -> None:
    fast = graph_of(documents, max_order, VOCABULARY_SIZE, boundaries=boundaries)
    slow = slow_graph(documents, max_order, boundaries)
    match, expected = fast.match(context), slow.longest_context(context)
    assert (match and match.order) == (expected and len(expected))


@pytest.mark.parametrize(("max_order", "boundaries"), [(1, False), (5, True), (10, True)])
def test_a_corpus_of_thirty_thousand_tokens(max_order: int, boundaries: bool) -> None:
    rng = np.random.default_rng(max_order)
    # Few words, many repetitions: rows of all lengths, ties, and contexts of every order.
    phrases = [rng.zipf(1.3, rng.integers(3, 30)).clip(max=4_000).tolist() for _ in range(400)]
    documents = [
        list(itertools.chain(*(phrases[number] for number in rng.zipf(1.2, 60).clip(max=399)))) for _ in range(40)
    ]
    documents = [document[:750] for document in documents]
    fast = graph_of(documents, max_order, 4_001, boundaries=boundaries)
    slow = slow_graph(documents, max_order, boundaries)
    assert counts_of(fast) == slow.ngram_counts
    generator = DraftGenerator(fast)
    for _ in range(800):
        document = documents[rng.integers(len(documents))]
        position = rng.integers(len(document))
        context = (
            document[max(0, position - max_order) : position] + rng.integers(0, 4_000, rng.integers(0, 2)).tolist()
        )
        context += document[position : position + rng.integers(0, 3)]
        expected, _ = slow.draft(context, 10, "greedy")
        assert list(generator.draft(context, 10, "greedy").token_ids) == expected


def test_rows_too_long_for_the_stored_offset() -> None:
    # The most frequent successor of 0 is its 2,500th; a record has room for offsets below 2,047.
    stream = [token for successor in range(1, 3_000) for token in (0, successor)] + [0, 2_500] * 3
    for successor in (1_000, 2_046, 2_047, 2_048, 2_500):
        graph = graph_of([stream + [0, successor] * 9], 2, 3_000)
        assert DraftGenerator(graph).draft([0], 1, "greedy").token_ids == (successor,)


perhaps_unknown = st.lists(st.one_of(st.integers(0, 4), st.sampled_from([49, 2**31])), max_size=40)


def slow_coverage(graph: OracleGraph, documents: list[list[int]]) -> list[list[int]]:
    """Return five counts per order.

    The counts are: positions; known positions; correct positions; positions that no longer context knows; and the
    correct ones among these.
    """
    rows = {order: [0] * 5 for order in range(1, graph.max_order + 1)}
    for token_ids in documents:
        for position, follows in enumerate(token_ids):
            longest = graph.longest_context(token_ids[:position])
            for order in range(1, min(position, graph.max_order) + 1):
                context = tuple(token_ids[position - order : position])
                successors = graph.context_index.get(context, {})
                is_known = bool(successors)
                is_right = is_known and min(successors, key=lambda token: (-successors[token], token)) == follows
                is_longest = context == longest
                values = (True, is_known, is_right, is_longest, is_longest and is_right)
                rows[order] = [count + value for count, value in zip(rows[order], values, strict=True)]
    return list(rows.values())


@settings(max_examples=40)
@given(
    text=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    documents=st.lists(perhaps_unknown, min_size=1, max_size=3),
    max_order=st.integers(1, 6),
)
def test_coverage(text: list[int], documents: list[list[int]], max_order: int) -> None:
    graph = graph_of([text], max_order, 50)
    pieces = [piece for document in documents for piece in ([DOCUMENT_SEPARATOR], document)][1:]
    stream = np.array([token_id for piece in pieces for token_id in piece], np.uint32)
    assert graph.core.count_known(stream)[1:] == slow_coverage(OracleGraph([text], max_order), documents)

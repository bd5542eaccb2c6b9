"""Coverage counted along the links is that of looking every context up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.coverage import Coverage, OrderCoverage, measure_coverage
from speculant_graph.types import Fingerprint
from support.oracle import OracleGraph

FINGERPRINT = Fingerprint("test", "00" * 32, 50)

token = st.integers(0, 4)
document = st.lists(st.one_of(token, st.sampled_from([49, 2**31])), max_size=40)


def slow_coverage(graph: OracleGraph, documents: list[list[int]]) -> Coverage:
    rows = {order: [0] * 5 for order in range(1, graph.max_order + 1)}
    for token_ids in documents:
        for place, follows in enumerate(token_ids):
            longest = graph.longest_context(token_ids[:place])
            for order in range(1, min(place, graph.max_order) + 1):
                context = tuple(token_ids[place - order : place])
                successors = graph.context_index.get(context, {})
                is_known = bool(successors)
                is_right = is_known and min(successors, key=lambda token: (-successors[token], token)) == follows
                is_longest = context == longest
                values = (True, is_known, is_right, is_longest, is_longest and is_right)
                rows[order] = [count + value for count, value in zip(rows[order], values, strict=True)]
    return Coverage(rows[1][0], tuple(OrderCoverage(order, *row) for order, row in rows.items()))


@settings(max_examples=150)
@given(
    corpus=st.lists(token, min_size=1, max_size=60),
    documents=st.lists(document, min_size=1, max_size=3),
    max_order=st.integers(1, 6),
)
def test_coverage(corpus: list[int], documents: list[list[int]], max_order: int) -> None:
    graph = build_from_token_ids(corpus, FINGERPRINT, max_order=max_order)
    pieces = [piece for document in documents for piece in ([DOCUMENT_SEPARATOR], document)][1:]
    stream = np.array([token_id for piece in pieces for token_id in piece], np.uint32)
    expected = slow_coverage(OracleGraph([corpus], max_order), documents)
    assert measure_coverage(graph, stream) == expected
    assert expected.num_right <= expected.num_known <= expected.num_positions

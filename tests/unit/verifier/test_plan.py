"""What a node sees, against loops over all pairs of nodes and slots."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.types import Draft
from speculant_verifier.cache.plan import full_visibility, shape_of_pass, sizes_of, window_visibility
from support.caching import random_draft

ROWS = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=4)


def slow(length: int, pending: int, draft: Draft) -> tuple[list[int], list[set[int]]]:
    """Per node of a row its position, and the indices (committed tokens first) that it sees."""
    positions, sees = [], []
    for node in range(pending):
        positions.append(length + node)
        sees.append(set(range(length + node + 1)))
    for node, parent in enumerate(draft.parents):
        above = pending - 1 + parent
        positions.append(positions[above] + 1)
        sees.append(sees[above] | {length + pending + node})
    return positions, sees


@given(ROWS, st.integers(0, 99), st.integers(0, 3), st.integers(1, 20), st.sampled_from(["chain", "tree"]))
def test_equals_the_obvious(rows, seed, more, window, shape):
    generator = random.Random(seed)
    lengths = [length for length, _, _ in rows]
    pending = [chain for _, chain, _ in rows]
    drafts = [random_draft(generator, size, shape) for _, _, size in rows]
    width = max(sizes_of(pending, drafts)) + more
    made = shape_of_pass(lengths, pending, drafts, width)
    columns = max(lengths) + width + generator.randint(0, 9)
    ring = window + width - 1 + generator.randint(0, 9)
    full = full_visibility(made, columns)
    plain = window_visibility(made, columns, window, columns)
    ringed = window_visibility(made, ring, window, ring)
    for row, (length, chain, draft) in enumerate(zip(lengths, pending, drafts, strict=True)):
        positions, sees = slow(length, chain, draft)
        assert made.positions[row, : len(positions)].tolist() == positions
        assert made.positions[row].max() == max(positions), "padding must not reach beyond the last node"
        where = [*range(length), *positions]
        for node, seen in enumerate(sees):
            near = {index for index in seen if where[index] > positions[node] - window}
            assert set(np.flatnonzero(full[row, node])) == seen
            assert set(np.flatnonzero(plain[row, node])) == near
            assert sorted(np.flatnonzero(ringed[row, node])) == sorted(index % ring for index in near)
        for node in range(len(sees), width):
            assert full[row, node].any(), "padding that sees nothing would be NaN in some kernels"

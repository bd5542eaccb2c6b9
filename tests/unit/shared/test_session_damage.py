"""Sessions on damaged graphs: drafts may be wrong, but no read is out of bounds, and tables stay valid."""

from __future__ import annotations

import numpy as np
import pytest

from speculant_graph.draft.learning.learned_store import load_calibration, save_calibration
from speculant_graph.graph.layout import CHILD, CUMULATIVE, Trie, record_words
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import NGRAM_STRATEGIES
from support.damage import damaged
from support.graphs import graph_of
from support.sessions import draft_of, drafter_of

TEXT = np.random.default_rng(0).integers(0, 20, 2_000).tolist()


def draft_on(graph: NgramGraph) -> None:
    drafter = drafter_of(graph)
    drafter.open(1, learn=True)
    drafter.accept(1, TEXT[:100])
    for position in range(100, 500, 2):
        draft = draft_of(drafter, 1, 8, [*NGRAM_STRATEGIES][position // 2 % len(NGRAM_STRATEGIES)])
        assert all(0 <= token_id < 2**21 for token_id in draft.token_ids)
        assert all(0.0 <= probability <= 1.0 for probability in draft.path_probabilities)
        drafter.accept(1, TEXT[position : position + 2])
    drafter.close(1)
    load_calibration(save_calibration(drafter.calibration))


def draft_on_damaged_graphs(num_graphs: int) -> None:
    graph = graph_of([TEXT], 3, 32)
    random = np.random.default_rng(1)
    table = graph.trie.table
    for _ in range(num_graphs):
        words = graph.trie.words.copy()
        # First one bit of a count, then random words.
        level = int(random.integers(0, 4))
        record = int(random.integers(0, table[level, 1]))
        offset = table[level, 0] + record * record_words(level + 1, 3) + CUMULATIVE
        words[offset] ^= np.uint32(1 << int(random.integers(0, 32)))
        draft_on(damaged(NgramGraph(Trie(words, table), graph.metadata), random))


@pytest.mark.parametrize("is_possible", [True, False])
def test_a_tree_reads_so_many_records_at_most(is_possible: bool) -> None:
    """In this well-formed file, every second context has as many successors as the vocabulary has tokens, or more."""
    vocabulary_size, most = 20_000, 1 << 19
    text = np.random.default_rng(0).integers(0, vocabulary_size, 60_000)
    graph = graph_of([text.tolist()], 1, vocabulary_size)
    wide = NgramGraph(Trie(graph.trie.words.copy(), graph.trie.table), graph.metadata)
    records, successors = wide.trie.level(1), wide.trie.level(2)
    starts = np.arange(len(records) // 2)
    records[0::2, CHILD][: len(starts)], records[1::2, CHILD] = starts, starts + vocabulary_size + (not is_possible)
    successors[:, CUMULATIVE] = np.cumsum(np.where(np.arange(len(successors)) % 200, 1, 5_000))
    drafter = drafter_of(wide, max_branches=64, sources=frozenset({"corpus"}))
    drafter.open(1)
    read = 0
    for start in range(0, 2_000, 100):
        drafter.accept(1, text[start : start + 100], is_prompt=True)
        draft = draft_of(drafter, 1, 1_000)
        read, before = drafter.core.num_read, read
        assert read - before <= most
        assert all(0 <= token_id < vocabulary_size for token_id in draft.token_ids)
    assert (read > most) == is_possible


@pytest.mark.hostile
def test_damaged_graphs_give_wrong_drafts_at_worst() -> None:
    draft_on_damaged_graphs(8)


@pytest.mark.hostile
@pytest.mark.slow
def test_no_damage_leads_out_of_an_array() -> None:
    draft_on_damaged_graphs(60)

"""N-gram storages for tensors: shapes, types, and the same answers as the counts below them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant_verifier.papers.nasd import INgramStorage, NGramStorage, OneLevelNGramStorage
from speculant_verifier.papers.nasd_drafter import NGramCounts


def matrices(width: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(0, 5), min_size=width, max_size=width)
    return st.lists(row, min_size=2, max_size=2)


@pytest.mark.parametrize("kind", [NGramStorage, OneLevelNGramStorage])
@given(st.integers(2, 4), st.data())
def test_answers_are_those_of_the_counts(kind: type[INgramStorage], n: int, data: st.DataObject) -> None:
    prompts, contexts, next_tokens = (data.draw(matrices(data.draw(st.integers(1, 8)))) for _ in range(3))
    counts, storage = NGramCounts(n, shortest_context=1 if kind is NGramStorage else n - 1), kind(n, 6)
    for prompt in prompts:
        counts.learn(prompt)
    storage.initialize(torch.tensor(prompts))
    for context, token_ids in zip(contexts, next_tokens, strict=True):
        counts.count(context, token_ids)
    storage.update(torch.tensor(contexts), torch.tensor(next_tokens))
    for asked in (prompts, contexts):
        found, known = storage.next_token(torch.tensor(asked))
        expected = [counts.successor(context) for context in asked]
        assert known[:, 0].tolist() == [token_id is not None for token_id in expected]
        again, _ = storage.next_token(torch.tensor(asked))
        assert torch.equal(found, again), "a token that stands for an unknown one is no new draw"
        for token, wanted in zip(found[:, 0].tolist(), expected, strict=True):
            assert 0 <= token < 6 if wanted is None else token == wanted

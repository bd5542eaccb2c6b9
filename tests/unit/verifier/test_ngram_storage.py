"""N-gram storages for tensors: shapes, types, and the same answers as the counts below them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.draft.papers.ngram_counts import NGramCounts
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_verifier.ngram_storage import INgramStorage, NGramStorage, OneLevelNGramStorage


def matrices(width: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(0, 5), min_size=width, max_size=width)
    return st.lists(row, min_size=2, max_size=2)


@pytest.mark.parametrize("kind", [NGramStorage, OneLevelNGramStorage])
@given(st.integers(2, 4), st.data())
def test_answers_are_those_of_the_counts(kind: type[INgramStorage], n: int, data: st.DataObject) -> None:
    prompts, contexts, next_tokens = (data.draw(matrices(data.draw(st.integers(1, 8)))) for _ in range(3))
    counts, storage = NGramCounts(n, 6, shortest_context=1 if kind is NGramStorage else n - 1), kind(n, 6)
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
        unknown = counts.random_token(len(asked[0]))
        assert found[:, 0].tolist() == [unknown if token_id is None else token_id for token_id in expected]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_answers_have_one_column(dtype: torch.dtype) -> None:
    storage = NGramStorage(3, 6)
    input_ids = torch.tensor([[1, 2, 3, 1, 2], [5, 5, 5, 5, 5]], dtype=dtype)
    storage.initialize(input_ids[:1])
    token_ids, known = storage.next_token(input_ids)
    assert (token_ids.shape, token_ids.dtype, token_ids.device) == ((2, 1), torch.int64, input_ids.device)
    assert (known.shape, known.dtype, known.device) == ((2, 1), torch.bool, input_ids.device)
    assert token_ids[0].item() == 3
    assert known.tolist() == [[True], [False]]
    assert torch.cat([input_ids.long(), token_ids], dim=1).shape == (2, 6)


def test_the_indices_of_a_top_k_can_be_learned() -> None:
    storage = NGramStorage(3, 6)
    logits = torch.tensor([[0.0, 1.0, 9.0, 2.0, 3.0, 8.0]])
    storage.update(torch.tensor([[4, 1]]), logits.topk(3).indices)
    assert storage.counts[3] == {(4, 1): {2: 1, 5: 1, 4: 1}}


def test_empty_sequences_and_batches() -> None:
    storage = NGramStorage(3, 6)
    storage.initialize(torch.empty((1, 0), dtype=torch.int64))
    storage.update(torch.empty((1, 0), dtype=torch.int64), torch.tensor([[1]]))
    storage.update(torch.tensor([[1]]), torch.empty((1, 0), dtype=torch.int64))
    assert storage.counts == storage.ngrams == {2: {}, 3: {}}
    token_ids, known = storage.next_token(torch.empty((1, 0), dtype=torch.int64))
    assert (token_ids.shape, known.tolist()) == ((1, 1), [[False]])
    token_ids, known = storage.next_token(torch.empty((0, 4), dtype=torch.int64))
    assert (token_ids.shape, known.shape) == ((0, 1), (0, 1))


@pytest.mark.parametrize(
    "wrong", [torch.tensor([1, 2]), torch.tensor(1), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)]
)
def test_other_shapes_and_types_are_refused(wrong: torch.Tensor) -> None:
    storage = NGramStorage(3, 6)
    for call in (storage.initialize, storage.next_token, lambda ids: storage.update(ids, torch.tensor([[1]]))):
        with pytest.raises(DraftRequestError, match=r"input_ids is torch\..*; give token ids as integers \[batch, len"):
            call(wrong)
    with pytest.raises(DraftRequestError, match="next_tokens is torch"):
        storage.update(torch.tensor([[1, 2]]), wrong)


def test_batches_must_be_equal() -> None:
    storage = NGramStorage(3, 6)
    with pytest.raises(DraftRequestError, match="1 contexts came with 2 rows"):
        storage.update(torch.tensor([[1, 2]]), torch.tensor([[1], [2]]))
    assert storage.counts == {2: {}, 3: {}}


def test_what_is_stored_is_bounded() -> None:
    storage = NGramStorage(2, 9, max_contexts=2)
    storage.initialize(torch.tensor([[1, 2, 3, 4]]))
    assert storage.ngrams == {2: {(2,): 3, (3,): 4}}
    with pytest.raises(ConfigError, match="n of an n-gram storage is 1; give at least 2"):
        NGramStorage(1, 9)

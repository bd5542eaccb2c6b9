"""Training examples: labels, their loss compared with a simple version, mixture, held-out split, tenants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.errors import ConfigError
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.training.examples import (
    documents_of,
    make_example,
    mixture,
    of_tokenizer,
    split,
)
from speculant_verifier.training.trainer import divergence
from support.training import record

HELD_OUT = {"document-0", "document-1", "document-4", "document-10"}


def slow_divergence(logits: np.ndarray, known: dict[int, float]) -> float:
    """Return KL(q || p) over the known tokens and one class of all others, by definition."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    q_other = max(0.0, 1 - sum(known.values()))
    p_other = sum(p[token] for token in range(len(p)) if token not in known)
    total = sum(q * (np.log(q) - np.log(p[token])) for token, q in known.items() if q > 0)
    return total + (q_other * (np.log(q_other) - np.log(p_other)) if q_other > 0 else 0.0)


@given(st.data())
def test_the_loss_is_the_obvious_one(data: st.DataObject) -> None:
    size, rows = 9, data.draw(st.integers(1, 4))
    numbers = st.floats(-8, 8, width=32)
    logits = np.array(
        data.draw(st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=rows, max_size=rows))
    )
    tops, logprobs = [], []
    for _ in range(rows):
        weights = np.exp(data.draw(st.lists(numbers, min_size=size, max_size=size)))
        q = weights / weights.sum()
        ids = np.argsort(-q)[: data.draw(st.integers(0, size - 1))]
        tops.append(tuple(ids.tolist()))
        logprobs.append(tuple(np.log(q[ids]).tolist()))
    output = data.draw(st.lists(st.integers(0, size - 1), min_size=rows, max_size=rows))
    request = replace(record([1], output), top_token_ids=tuple(tops), top_logprobs=tuple(logprobs))
    example = make_example(request, 100)
    labels = (example.label_ids, example.label_probabilities, example.is_label)
    found = divergence(torch.tensor(logits), *(torch.from_numpy(each) for each in labels))
    expected = [
        slow_divergence(row, dict(zip(ids, np.exp(q), strict=True)) if ids else {token: 1.0})
        for row, ids, q, token in zip(logits, tops, logprobs, output, strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5, rtol=1e-4)


def test_the_loss_and_its_gradient_are_finite_where_the_model_is_sure() -> None:
    logits = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    known = (torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.4]]), torch.tensor([[True, True]]))
    divergence(logits, *known).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    everything = (torch.tensor([[0, 1, 2]]), torch.tensor([[0.5, 0.4, 0.1]]), torch.ones(1, 3, dtype=torch.bool))
    assert divergence(logits, *everything).isfinite().all()


def test_what_is_not_known_is_learned_as_it_was_written() -> None:
    soft = replace(record([1, 2], [3, 4]), top_token_ids=((3, 5), ()), top_logprobs=((-0.1, -3.0), ()))
    damaged = replace(soft, top_logprobs=((float("nan"), -3.0), ()))
    assert make_example(damaged, 100).label_ids.tolist() == [[3], [4]]
    example = make_example(soft, 100)
    assert example.label_ids.tolist() == [[3, 5], [4, 4]]
    assert example.is_label.tolist() == [[True, True], [True, False]]
    np.testing.assert_allclose(example.label_probabilities, [np.exp([-0.1, -3.0]), [1.0, 0.0]])


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "token_ids", "first"),
    [
        ([1, 2, 3], 6, [1, 2, 3, 4, 5, 6], 3),
        ([1, 2, 3], 5, [2, 3, 4, 5, 6], 2),
        ([1, 2, 3], 2, [5, 6], 1),
        ([], 9, [4, 5, 6], 1),  # the first token has no context
    ],
)
def test_of_long_requests_the_beginning_is_left_out(
    prompt: list[int], max_tokens: int, token_ids: list[int], first: int
) -> None:
    example = make_example(record(prompt, [4, 5, 6]), max_tokens)
    assert example.token_ids.tolist() == token_ids
    assert example.first == first
    assert example.label_ids[:, 0].tolist() == token_ids[first:]


def test_every_epoch_has_all_failures_and_a_share_of_replay() -> None:
    failures, replay = [f"f{i}" for i in range(40)], [f"r{i}" for i in range(100)]
    order = mixture(failures, replay, 3)
    assert len(order) == 150
    assert all(order.count(each) == 3 for each in failures)
    assert len({each for each in order if each.startswith("r")}) > 20  # every epoch draws a new sample
    assert order == mixture(failures, replay, 3)
    assert len(mixture(failures, [], 0.5)) == 20
    assert len(mixture(failures, replay[:2], 3)) == 126  # all that are available
    assert sorted(mixture([], replay, 1)) == sorted(replay)


def named(name: str, prompt: list[int] | None = None) -> RequestRecord:
    return replace(record(prompt or [1], [2]), document=name)


@given(st.lists(st.text(max_size=3), min_size=2, max_size=60), st.integers(0, 59))
def test_the_split_is_by_documents_and_does_not_depend_on_the_others(names: list[str], count: int) -> None:
    records = [named(f"d{name}") for name in names]
    training, held_out = split(records)
    assert sorted(each.document for each in training + held_out) == sorted(each.document for each in records)
    judges = {each.document for each in held_out}
    assert not judges & {each.document for each in training}
    if len(set(names)) > 1:
        assert training
        assert held_out
    fewer = {each.document for each in split(records[:count])[0]}
    # A document changes sides only if it was moved because a side would have been empty.
    assert len(fewer & judges) <= 1


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), max_size=12), st.booleans())
def test_prompts_that_go_on_from_another_are_of_its_document(endings: list[list[int]], is_long: bool) -> None:
    head = [7] * (16 if is_long else 3)
    prompts = [[*head, *ending] for ending in endings]
    found = documents_of([record(prompt, [2]) for prompt in prompts])
    # By definition: the shortest prompt that is a prefix of this one and has at least 16 tokens.
    expected = [
        min([*(each for each in prompts if len(each) >= 16 and prompt[: len(each)] == each), prompt], key=len)
        for prompt in prompts
    ]
    assert len(set(zip(found, map(tuple, expected), strict=True))) == len(set(found)) == len({*map(tuple, expected)})


def test_three_tenths_are_held_out() -> None:
    records = [named(f"document-{number}") for number in range(10_000)]
    assert 0.29 < len(split(records)[1]) / len(records) < 0.31
    chosen = {each.document for each in split(records[:12])[1]}
    assert chosen == HELD_OUT, "for ever: another hash would mix them up"
    prompts = [record([number] * 20, [2]) for number in range(200)]
    again = [replace(each, request_id="again") for each in prompts]
    assert [each.prompt for each in split(again)[1]] == [each.prompt for each in split(prompts)[1]]
    turns = [replace(each, prompt=(*each.prompt, 3, 4)) for each in prompts]
    assert len(split([*prompts, *turns])[1]) == 2 * len(split(prompts)[1]), "both turns of a conversation"
    assert split([record([1], [2])]) == ([record([1], [2])], [])


def test_records_of_other_tokenizers_are_left_out() -> None:
    records = [record([1], [2]), replace(record([300], [2]), tokenizer="another")]
    assert of_tokenizer(records, "digest", 258) == records[:1]
    for digest in ("third", "another"):  # 300 is not a token of the draft model
        with pytest.raises(ConfigError):
            of_tokenizer(records, digest, 258)

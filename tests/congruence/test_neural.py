"""Proposals of neural models equal the slow reference's bit for bit, for any words; training is reproducible."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph import _core
from support.neural_reference import LOOK_BACK, MOST_PROPOSALS, arrays_of, propose, random_words, read_tables


def proposed(words: np.ndarray, context: list[int], others: list[int]) -> list[tuple[int, int]]:
    return _core.propose(words, np.array(context, np.int64), np.array(others, np.int64))


@pytest.mark.hostile
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    num_rows=st.sampled_from([1, 2, 30, 511, 512, 513, 900]),
    length=st.sampled_from([0, 1, 7, 8, 9, 40, LOOK_BACK, 120]),
    num_others=st.sampled_from([0, 1, 20, 200]),
    is_damaged=st.booleans(),
)
def test_proposals_are_those_of_the_reference(
    seed: int, num_rows: int, length: int, num_others: int, is_damaged: bool
) -> None:
    chance = np.random.default_rng(seed)
    vocabulary_size = num_rows + int(chance.integers(0, 50))
    words = random_words(chance, chance.permutation(vocabulary_size)[:num_rows].tolist(), vocabulary_size)
    if is_damaged:
        index, tokens = (arrays_of(words)[name] for name in ("index", "tokens"))
        index[:] = chance.choice([0, 1, num_rows, num_rows + 1, 65_535], index.size)
        tokens[:] = chance.choice([0, 2**21, 2**31, 2**32 - 1], tokens.size)
    foreign = chance.choice([vocabulary_size, vocabulary_size + 20])
    context, others = (chance.integers(-2, foreign + 1, size).tolist() for size in (length, num_others))
    expected = propose(read_tables(words), context, others)
    assert proposed(words, context, others) == expected
    assert len(expected) <= MOST_PROPOSALS


def text_of(seed: int, length: int) -> np.ndarray:
    """Return a text in which each token depends on the previous one."""
    chance, tokens = random.Random(seed), [0]
    while len(tokens) < length:
        tokens.append(chance.choice([(3 * tokens[-1] + 1) % 40, chance.randrange(40)]))
    return np.array(tokens, np.uint32)


def trained(text: np.ndarray, positions: int, start: np.ndarray | None = None, **facts: object) -> np.ndarray:
    parts = np.array(facts.get("left_out", []), np.int64).reshape(-1, 2)
    return _core.train_neural(text, parts, 50, positions, start, lambda _done, _all: True)


def test_training_repeats_itself_and_learns() -> None:
    text = text_of(1, 20_000)
    words = trained(text, 40_000)
    np.testing.assert_array_equal(words, trained(text, 40_000))
    assert _core.is_model(words, 50)
    assert not _core.is_model(words, 51)
    others = text_of(2, 500).tolist()
    first = [max(proposed(words, others[:place], []), key=lambda each: each[1]) for place in range(100, 300)]
    hits = sum((3 * others[place - 1] + 1) % 40 == first[place - 100][0] for place in range(100, 300))
    assert hits > 190, "the most probable successor of every token was found"
    further = trained(text_of(3, 6_000), 6_000, words)
    assert len(arrays_of(further)["tokens"]) == len(arrays_of(words)["tokens"])


def test_what_is_left_out_changes_nothing() -> None:
    """Held-out tokens serve only as context, so tokens deep inside them have no effect."""
    text = text_of(1, 6_000)
    other = text.copy()
    other[1_120:2_000] = other[1_120:2_000][::-1]  # the same counts, so that initial biases are equal
    words = trained(text, 12_000, left_out=[(1_000, 2_000 + 100)])
    np.testing.assert_array_equal(words, trained(other, 12_000, left_out=[(1_000, 2_000 + 100)]))
    assert not np.array_equal(words, trained(text, 12_000))


def test_training_ends_when_it_is_told_to() -> None:
    calls = []

    def goes_on(done: int, total: int) -> bool:
        calls.append((done, total))
        return len(calls) < 2

    words = _core.train_neural(text_of(1, 40_000), np.empty((0, 2), np.int64), 50, 40_000, None, goes_on)
    assert not words.size
    assert len(calls) == 2
    assert not trained(np.zeros(0, np.uint32), 10).size, "of nothing nothing is learned"
    assert not trained(text_of(1, 3_000), 10, left_out=[(0, 3_000)]).size


@pytest.mark.parametrize("change", [(0, 2), (1, 2**31), (2, 0), (2, 65_536), (3, 17), (6, 2**32 - 1)])
def test_words_that_are_no_model(change: tuple[int, int]) -> None:
    words = random_words(np.random.default_rng(1), [3, 5], 10)
    assert _core.is_model(words, 10)
    assert not _core.is_model(words[:-1], 10)
    assert not _core.is_model(words[:6], 10)
    words[change[0]] = change[1]
    assert not _core.is_model(words, 10)
    with pytest.raises(ValueError, match="model"):  # a promise: the core says what the words are not
        proposed(words, [], [])

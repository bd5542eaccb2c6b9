"""The cache of the target's logits, compared with an OrderedDict, and its actual memory."""

from __future__ import annotations

from collections import OrderedDict

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from speculant_graph.types import Draft
from speculant_verifier.engine.logits_cache import LogitsCache, extended, key_of, keys_of_nodes

WIDTH = 5
ROW_BYTES = WIDTH * 4
ROOT = key_of("model")


def rows_of(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)[:, None].expand(-1, WIDTH).contiguous()


def named(number: int) -> bytes:
    return extended(ROOT, [number])


@given(st.lists(st.integers(0, 2**64 - 1), max_size=12), st.data())
def test_a_key_is_that_of_all_tokens_in_any_parts(token_ids, data):
    cut = data.draw(st.integers(0, len(token_ids)))
    whole = key_of("model", token_ids)
    assert extended(key_of("model", token_ids[:cut]), token_ids[cut:]) == whole
    assert key_of("other", token_ids) != whole
    assert extended(whole, [0]) not in (whole, extended(whole, [1]), extended(whole, [0, 0]))


@given(st.data())
def test_keys_of_nodes_are_those_of_their_paths(data):
    size = data.draw(st.integers(0, 15))
    parents = tuple(data.draw(st.integers(0, index)) for index in range(size))
    token_ids = tuple(data.draw(st.integers(0, 3)) for _ in range(size))
    known = [7, 8, 9]
    keys = keys_of_nodes(key_of("model", known), Draft(token_ids, parents))
    assert len(keys) == size + 1
    for node in range(size + 1):
        path, parent = [], node
        while parent:
            path.append(token_ids[parent - 1])
            parent = parents[parent - 1]
        assert keys[node] == key_of("model", known + path[::-1])


@settings(max_examples=60, stateful_step_count=40)
class CacheMachine(RuleBasedStateMachine):
    """Runs random calls, and compares with an OrderedDict."""

    @initialize(room=st.integers(0, 6), slack=st.integers(0, ROW_BYTES - 1))
    def start(self, room, slack):
        self.bound = room * ROW_BYTES + slack
        self.room = room
        self.cache = LogitsCache("model", self.bound)
        self.held = OrderedDict()
        self.hits = self.evicted = 0
        self.version = 0

    @rule(number=st.integers(0, 9))
    def get(self, number):
        row = self.cache.get(named(number))
        if number in self.held:
            self.hits += 1
            self.held.move_to_end(number)
            assert row.tolist() == [self.held[number]] * WIDTH
            row.zero_()  # the caller owns the copy
        else:
            assert row is None

    @rule(
        numbers=st.lists(st.integers(0, 9), max_size=9),
        data=st.data(),
        inference=st.booleans(),
    )
    def put_many(self, numbers, data, inference):
        self.version += 1
        rows = list(range(len(numbers)))
        first = data.draw(st.lists(st.sampled_from(rows), unique=True)) if rows else []
        values = [100.0 * self.version + row for row in rows]
        with torch.inference_mode(inference):
            logits = rows_of(values)
            order = [*first, *rows]
            self.cache.put_many([named(numbers[row]) for row in order], [logits[row] for row in order])
            logits.fill_(-1)  # the cache has copies
        order = []
        for row in [*first, *rows]:
            number = numbers[row]
            if number in order or len(order) == self.room:
                continue
            order.append(number)
        fresh = {numbers[row]: values[row] for row in reversed([*first, *rows])}
        for number in reversed(order):
            value = self.held.pop(number) if number in self.held else fresh[number]
            self.held[number] = value
        while len(self.held) > self.room:
            self.held.popitem(last=False)
            self.evicted += 1

    @invariant()
    def holds_what_the_oracle_holds(self):
        if not hasattr(self, "cache"):
            return
        assert {number for number in range(10) if named(number) in self.cache} == set(self.held)
        assert len(self.cache) == len(self.held)
        assert self.cache.num_bytes <= self.bound
        assert (self.cache.hits, self.cache.evicted) == (self.hits, self.evicted)


TestCache = CacheMachine.TestCase


class FullMemory(torch.Tensor):
    """Logits that can't be copied."""

    def detach(self) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")


def test_a_cache_without_memory_becomes_smaller():
    cache = LogitsCache("model", 9 * ROW_BYTES)
    cache.put_many([named(index) for index in range(6)], list(rows_of([*range(6)])))
    full = torch.zeros(WIDTH).as_subclass(FullMemory)
    cache.put_many([named(7)], [full])
    assert (cache.num_bytes, cache.bound) == (0, 3 * ROW_BYTES)
    cache.put_many([named(index) for index in range(6)], list(rows_of([*range(6)])))
    assert cache.num_bytes == 3 * ROW_BYTES
    for _ in range(3):
        cache.put_many([named(7)], [full])
    assert cache.bound == 0

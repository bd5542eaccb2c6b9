"""Rollback is exact: after any rounds of verification and rollback, logits equal those of a fresh forward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_verifier.cache import SlotCache, pass_layout
from speculant_verifier.model import TargetModel
from support.caching import TOLERANCE, Rows, fresh_logits
from support.drafters import chain
from support.tiny_models import WINDOW, tiny_gpt_oss, tiny_model

LENGTHS = [1, 2, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 5 * WINDOW]
LENGTHS_AROUND_128 = [1, 2, 126, 127, 128, 129, 130, 131, 255, 256, 257, 258, 300]


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"])
def test_ragged_rounds_of_verify_and_rollback(family, shape):
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    rows = Rows(target, target.new_cache(len(LENGTHS), widest_pass=10), (family, shape))
    for row, length in enumerate(LENGTHS):
        rows.start(row, length, chunk=10)
    assert rows.verify(range(len(LENGTHS)), shape) < TOLERANCE
    for _ in range(3):
        taking_part = sorted(rows.generator.sample(range(len(LENGTHS)), rows.generator.randint(1, 5)))
        assert rows.verify(taking_part, shape) < TOLERANCE


@pytest.mark.parametrize("widest", [100, None])
def test_lengths_around_the_real_window(widest):
    target = tiny_gpt_oss(num_layers=4, window=128)
    rows = Rows(target, target.new_cache(len(LENGTHS_AROUND_128), widest_pass=widest), 1)
    for row, length in enumerate(LENGTHS_AROUND_128):
        rows.start(row, length, chunk=100 if row % 2 else 16)
    for _ in range(3):
        assert rows.verify(range(len(LENGTHS_AROUND_128)), "tree", 11, looked_at=1) < TOLERANCE


@pytest.mark.parametrize("widest", [1, 7, 17])
def test_a_ring_comes_round_many_times(gpt_oss, widest):
    """Prefill and verification use the widest pass, far beyond the size of the ring."""
    cache = gpt_oss.new_cache(2, widest_pass=widest)
    rows = Rows(gpt_oss, cache, widest)
    rows.start(0, 150, chunk=widest)
    rows.start(1, 60, chunk=widest)
    ring = cache._slot_layers[0].num_slots
    for _ in range(4):
        drafts = [chain(rows.tokens[row][: widest - 1]) for row in (0, 1)]
        logits = gpt_oss.forward([rows.tokens[row][-1:] for row in (0, 1)], cache, [0, 1], drafts)
        for row in (0, 1):
            expected = fresh_logits(gpt_oss, rows.tokens[row] + list(drafts[row].token_ids))[-widest:]
            assert (logits[row] - expected).abs().max() < TOLERANCE
        cache.commit_all([0, 1], [range(1), range(widest)])
        rows.tokens[0].append(3)
        rows.tokens[1] += [*drafts[1].token_ids, 5]
    assert cache._slot_layers[0].num_slots == ring < cache._slot_layers[1].num_slots


def test_the_sliding_window_is_really_applied(gpt_oss):
    """A control: with the full mask in all layers, logits beyond the window must be wrong."""
    token_ids = list(range(3 * WINDOW))
    cache = gpt_oss.new_cache(1)
    gpt_oss.prefill([token_ids[:-1]], cache, [0])
    expected = fresh_logits(gpt_oss, token_ids)[-1]
    plan = cache.plan([0], [1])

    def last(sliding):
        with torch.inference_mode():
            return gpt_oss.model(
                torch.tensor([token_ids[-1:]]), position_ids=plan.position_ids, past_key_values=cache,
                attention_mask=sliding,
            ).logits[0, -1]  # fmt: skip

    right = {"full_attention": plan.full, "sliding_attention": plan.sliding}
    assert (last(right) - expected).abs().max() < TOLERANCE
    # transformers uses a single tensor for both kinds of layers, and so silently ignores the window.
    assert (last(plan.full) - expected).abs().max() > 100 * TOLERANCE


@pytest.fixture
def rows(gpt_oss):
    made = Rows(gpt_oss, gpt_oss.new_cache(3, widest_pass=8), 0)
    for row, length in enumerate([70, 5, 30]):
        made.start(row, length, chunk=8)
    return made


def poison(rows: Rows, row: int, value: float) -> None:
    """Write a value to 80 slots of a row, as a sequence with overflowing activations does."""
    with torch.inference_mode():
        for layer in rows.cache._slot_layers:
            layer.keys[row, :, : min(80, layer.num_slots)] = value
            layer.values[row, :, : min(80, layer.num_slots)] = value
    rows.cache._written[row] = 80


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("successor", ["prompt", "move"])
def test_what_a_row_held_can_not_poison_who_comes_after_or_beside_it(rows, value, successor):
    """Attention multiplies a masked slot by zero, and zero times NaN is NaN."""
    poison(rows, 0, value)
    tokens = [rows.tokens[row][rows.cache.lengths[row] :] for row in range(3)]
    logits = rows.target.forward(tokens, rows.cache, [0, 1, 2])
    assert not logits[0].isfinite().all(), "the control: the row itself is poisoned"
    assert rows.verify([1, 2]) < TOLERANCE
    if successor == "prompt":
        rows.start(0, 2)
    else:
        rows.cache.move_row(1, 0)
        rows.tokens[0] = rows.tokens[1]
        poison(rows, 1, value)
        rows.start(1, 3)
    for _ in range(2):
        assert rows.verify([0, 1, 2]) < TOLERANCE


def test_growing_and_shrinking_keep_what_is_cached(rows):
    cache = rows.cache
    before = cache.num_bytes
    cache.resize(5, 500)
    assert cache.num_bytes > before
    rows.start(4, 100, chunk=8)
    assert rows.verify([0, 1, 2, 4]) < TOLERANCE
    cache.clear(4)
    cache.resize(3, 128)
    assert cache.num_bytes < before
    assert rows.verify([0, 1, 2]) < TOLERANCE
    for wrong in ((2, 128), (3, 16)):
        with pytest.raises(ValueError, match="clear rows first"):  # promised: the caller learns what to do
            cache.resize(*wrong)


def test_growing_by_itself_keeps_to_the_bound(gpt_oss):
    cache = gpt_oss.new_cache(3)
    cache.max_slots = 300
    gpt_oss.prefill([list(range(90))], cache, [0])
    assert cache.num_rows * cache.capacity <= 300
    assert cache.slots_needed(3, 96) <= 300 < cache.slots_needed(3, 97)
    with pytest.raises(ValueError, match="300"):  # promised: the message names the bound
        gpt_oss.prefill([list(range(20))], cache, [0])
    assert cache.lengths == [90, 0, 0]
    cache.resize(1, 96)
    gpt_oss.prefill([list(range(20))], cache, [0])
    assert cache.capacity <= 300


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["verify", "move", "start", "resize"]), max_size=8), st.integers(0, 99))
def test_any_order_of_operations(gpt_oss, operations, seed):
    cache = gpt_oss.new_cache(3, widest_pass=50)
    rows = Rows(gpt_oss, cache, seed)
    rows.start(0, rows.generator.randint(1, 90), chunk=4)
    for operation in [*operations, "verify"]:
        row, other = rows.generator.sample(range(3), 2)
        if operation == "move" and row in rows.tokens:
            cache.move_row(row, other)
            rows.tokens[other] = rows.tokens.pop(row)
        elif operation == "start":
            rows.start(row, rows.generator.randint(1, 60), chunk=rows.generator.choice([4, 50]))
        elif operation == "resize":
            cache.resize(3, max(cache.lengths) + rows.generator.randint(0, 100))
        else:
            largest = rows.generator.choice([4, 40])
            assert rows.verify(sorted(rows.tokens), largest=largest, looked_at=1) < TOLERANCE


def test_a_batch_of_many_pending_tokens_computes_few_logits(rows):
    """Logits are computed for no prompt chunk, and only for the last pending token and the draft."""
    sizes = []
    head = rows.target.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[:-1].numel()))
    try:
        rows.target.prefill([[1] * 8, [2] * 6], rows.cache, [0, 1])
        rows.target.forward([[1] * 7, [2]], rows.cache, [0, 1])
    finally:
        handle.remove()
    assert sizes == [0, 2]


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral"])
def test_passes_of_few_shapes_verify_exactly(family, shape):
    """As on a GPU, which replays recorded passes: nodes and slots are rounded up."""
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    target.layout = replace(target.layout, rounds=True)
    rows = Rows(target, target.new_cache(len(LENGTHS), widest_pass=10), (family, shape))
    for row, length in enumerate(LENGTHS):
        rows.start(row, length, chunk=10)
    some = [[0], [1, 2], [0, 1, 2], [0, 2], [3, 4], [0, len(LENGTHS) - 1]]
    for each in [*some, *[range(len(LENGTHS))] * 4, *some]:
        assert rows.verify(each, shape, new=(1,)) < TOLERANCE


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral", "qwen2"])
def test_passes_in_parts_verify_exactly(family, shape, monkeypatch):
    """As on a GPU, which attends to several parts of the slots in parallel."""
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    target.layout = replace(target.layout, splits=True)
    monkeypatch.setattr(pass_layout, "_FEWEST_COLUMNS", 16)
    rows = Rows(target, target.new_cache(3, widest_pass=10), (family, shape))
    for row, length in enumerate((1, 3 * WINDOW, 200)):
        rows.start(row, length, chunk=10)
    for _ in range(6):
        assert rows.verify(range(3), shape) < TOLERANCE
    assert target.layout.num_parts(3, 10, 192) == 4


@given(num_rows=st.integers(1, 64), width=st.integers(1, 80), columns=st.integers(1, 8192))
def test_parts_are_equal_and_aligned(gpt_oss, num_rows, width, columns):
    layout = replace(gpt_oss.layout, splits=True, kv_heads=8, groups=8)
    num_parts = layout.num_parts(num_rows, width, 16 * columns)
    assert 16 * columns % (16 * num_parts) == 0
    assert num_parts == 1 or (16 * columns // num_parts >= 128 and num_rows * num_parts <= 32)
    assert replace(layout, splits=False).num_parts(num_rows, width, 16 * columns) == 1


def test_few_shapes(gpt_oss):
    layout = replace(gpt_oss.layout, rounds=True)
    widths = {layout.round_width(width) for width in range(1, 65)}
    assert len(widths) == 12
    assert all(width <= layout.round_width(width) < 1.5 * width + 1 for width in range(1, 200))
    columns = {layout.round_columns(end) for end in range(1, 131_073)}
    assert len(columns) < 20
    assert all(end <= layout.round_columns(end) < max(end + 256, 1.5 * end) for end in range(1, 131_073))
    cache = SlotCache(layout, 6)
    assert [len(cache.block_of(rows)) for rows in ([0], [1], [0, 2], [3], [0, 1, 2, 3, 4])] == [1, 2, 4, 4, 6]
    assert [layout.round_rows(num_rows) for num_rows in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 16]


def test_rounding_takes_no_slots_that_are_not_there(gpt_oss):
    target = TargetModel(gpt_oss.model, gpt_oss.tokenizer, "tiny")
    target.layout = replace(target.layout, rounds=True)
    cache = target.new_cache(1)
    cache.max_slots = 32
    target.prefill([list(range(27))], cache, [0])
    assert cache.plan([0], [1], [chain(range(4))]).position_ids.shape == (1, 5)
    cache.lengths[0] = 24
    assert cache.plan([0], [1], [chain(range(6))]).position_ids.shape == (1, 8)

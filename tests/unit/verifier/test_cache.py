"""Rollback is exact: after any rounds of verifying and rolling back, logits are those of a fresh forward."""

from __future__ import annotations

import pytest
import torch

from speculant_graph.types import Draft
from support.caching import TOLERANCE, Rows, fresh_logits, path_to
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
    """Prefilled in pieces of the widest pass, and verified with as many nodes, far past the ring."""
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


def test_window_edge_inside_the_tree(gpt_oss):
    """A tree deeper than the window: its last nodes must no longer see its first ones, on every branch."""
    cache = gpt_oss.new_cache(1)
    rows = Rows(gpt_oss, cache, 0)
    rows.start(0, 30)
    size = 3 * WINDOW
    draft = Draft(tuple(range(size)), tuple(max(0, node - 1) for node in range(size)))  # two interleaved chains
    logits = gpt_oss.forward([rows.tokens[0][-1:]], cache, [0], [draft])
    for node in (1, 2, size - 3, size - 1, size):
        prefix = rows.tokens[0] + [draft.token_ids[j] for j in path_to(draft, node)]
        assert (logits[0, node] - fresh_logits(gpt_oss, prefix)[-1]).abs().max() < TOLERANCE


def test_the_sliding_window_is_really_applied(gpt_oss):
    """The control: with the full mask for all layers, logits past the window must be wrong."""
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
    # One tensor for all layers is taken for both kinds, and the window is dropped without a word.
    assert (last(plan.full) - expected).abs().max() > 100 * TOLERANCE

"""Rollback is exact: after any rounds of verifying and rolling back, logits are those of a fresh forward."""

from __future__ import annotations

import random

import pytest
import torch

from speculant_graph.types import Draft
from support.drafters import chain
from support.tiny_models import WINDOW

TOLERANCE = 1e-4


def fresh_logits(target, token_ids):
    """Logits after every token, from a new cache and one pass: the oracle."""
    with torch.inference_mode():
        return target.model(torch.tensor([token_ids]), use_cache=False).logits[0]


def prefill(target, cache, row, token_ids):
    cache.clear(row)
    if token_ids[:-1]:
        target.forward([token_ids[:-1]], cache, [row], last_only=True)
        cache.commit(row, range(len(token_ids) - 1))


def random_tree(generator, size, vocabulary):
    parents = tuple(generator.randrange(index + 1) for index in range(size))
    token_ids = []
    for index, parent in enumerate(parents):
        taken = {token_ids[j] for j in range(index) if parents[j] == parent}
        token_ids.append(generator.choice([t for t in range(vocabulary) if t not in taken]))
    return Draft(tuple(token_ids), parents)


def path_to(draft, node):
    path = []
    while node:
        path.append(node - 1)
        node = draft.parents[node - 1]
    return path[::-1]


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("family", ["gpt_oss", "llama"])
def test_ragged_rounds_of_verify_and_rollback(family, shape, request):
    target = request.getfixturevalue(family)
    generator = random.Random(f"{family}{shape}")
    lengths = [1, 2, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 5 * WINDOW]
    rows = [[generator.randrange(250) for _ in range(length)] for length in lengths]
    cache = target.new_cache(len(rows))
    for row, token_ids in enumerate(rows):
        prefill(target, cache, row, token_ids)
    for round_number in range(5):
        taking_part = sorted(generator.sample(range(len(rows)), generator.randint(1, len(rows))))
        if round_number == 0:
            taking_part = list(range(len(rows)))
        drafts = []
        for _ in taking_part:
            size = generator.randint(0, 9)
            tokens = [generator.randrange(250) for _ in range(size)]
            drafts.append(chain(tokens) if shape == "chain" else random_tree(generator, size, 250))
        logits = target.forward(
            [[rows[row][-1], *draft.token_ids] for row, draft in zip(taking_part, drafts, strict=True)],
            cache, taking_part, drafts,
        )  # fmt: skip
        for index, (row, draft) in enumerate(zip(taking_part, drafts, strict=True)):
            for node in {0, len(draft), generator.randint(0, len(draft))}:
                path = path_to(draft, node)
                expected = fresh_logits(target, rows[row] + [draft.token_ids[j] for j in path])[-1]
                assert (logits[index, node] - expected).abs().max() < TOLERANCE
            accepted = path_to(draft, generator.randint(0, len(draft)))
            cache.commit(row, [0, *(j + 1 for j in accepted)])
            rows[row] += [draft.token_ids[j] for j in accepted] + [generator.randrange(250)]


def test_a_reused_row_does_not_see_the_longer_request_before_it(gpt_oss):
    cache = gpt_oss.new_cache(1)
    prefill(gpt_oss, cache, 0, list(range(100)))
    short = [9, 8, 7]
    prefill(gpt_oss, cache, 0, short)
    logits = gpt_oss.forward([short[-1:]], cache, [0], [chain([])])
    assert (logits[0, 0] - fresh_logits(gpt_oss, short)[-1]).abs().max() < TOLERANCE


def test_the_sliding_window_is_really_applied(gpt_oss):
    """The control: with the full mask for all layers, logits past the window must be wrong."""
    token_ids = list(range(3 * WINDOW))
    cache = gpt_oss.new_cache(1)
    prefill(gpt_oss, cache, 0, token_ids)
    expected = fresh_logits(gpt_oss, token_ids)[-1]
    cache.window = 10 * len(token_ids)
    wrong = gpt_oss.forward([token_ids[-1:]], cache, [0], [chain([])])[0, 0]
    assert (wrong - expected).abs().max() > 100 * TOLERANCE


def test_growing_keeps_what_is_cached(gpt_oss):
    cache = gpt_oss.new_cache(2)
    first = list(range(40))
    prefill(gpt_oss, cache, 0, first)
    before = cache.capacity
    prefill(gpt_oss, cache, 1, [t % 250 for t in range(400)])
    assert cache.capacity > before
    logits = gpt_oss.forward([first[-1:]], cache, [0], [chain([])])
    assert (logits[0, 0] - fresh_logits(gpt_oss, first)[-1]).abs().max() < TOLERANCE

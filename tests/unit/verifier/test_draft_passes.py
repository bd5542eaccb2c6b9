"""The draft model's predictions at every node, pass by pass, equal its predictions for the whole text."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from speculant_verifier.draft_model import passes as module
from speculant_verifier.draft_model.passes import DraftPasses
from support.tiny_models import tiny_gpt_oss, tiny_model


def logprobs_after(model, text):
    """Return the log-probabilities after a text, which is read from its beginning."""
    cache = model.new_cache(1)
    with torch.inference_mode():
        logits = model.forward([list(text)], cache, [0])[0, 0]
    return torch.log_softmax(logits.double(), -1)


def assert_says(model, rows, index, text):
    expected = logprobs_after(model, text)
    best = expected.topk(4)
    np.testing.assert_allclose(rows.logprobs[index][:4], best.values.numpy(), atol=1e-3)
    np.testing.assert_allclose(
        rows.logprobs[index], expected[torch.from_numpy(rows.token_ids[index])].numpy(), atol=1e-3
    )


@pytest.mark.parametrize("family", ["gpt_oss", "qwen2", "llama"])
@pytest.mark.parametrize("seed", range(3))
def test_trees_grow_pass_by_pass_and_follow_what_was_emitted(family, seed, monkeypatch):
    monkeypatch.setattr(module, "PREFILL_CHUNK", 9)
    generator = random.Random(seed)
    model = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    passes = DraftPasses(model, 3)
    texts = [[generator.randrange(250) for _ in range(size)] for size in (1, 13, 40)]
    sequences = [passes.add() for _ in texts]
    assert passes.add() is None, "there are as many rows as sequences"
    for _ in range(4):
        passes.follow(sequences, texts)
        for each in sequences:
            while len(each.pending) > 10:
                passes.read(each)
        members = generator.sample(range(3), generator.choice([1, 2, 3]))
        trees = {index: {} for index in members}  # nodes by number, without padding
        for number in range(generator.choice([1, 2, 3])):
            new = {}
            for index in members:
                new[index] = []
                for _ in range(generator.choice([0, 1, 2, 4] if number == 0 else [1, 2, 4])):
                    known = len(sequences[index].tokens) + len(new[index])
                    parents = [0, *(node + 1 for node in trees[index])]
                    new[index].append((generator.choice(parents), generator.randrange(250)))
                    trees[index][known] = new[index][-1]
            rows = passes.run([sequences[index] for index in members], [new[index] for index in members], 8)
            for index, top in zip(members, rows, strict=True):
                assert len(top.token_ids) == len(new[index]) + (number == 0)
                if number == 0:
                    assert_says(model, top, 0, texts[index])
                first = max(trees[index], default=-1) + 1 - len(new[index])
                for offset in range(len(new[index])):
                    path, node = [], first + offset
                    while node >= 0:
                        parent, token = trees[index][node]
                        path.append(token)
                        node = parent - 1
                    assert_says(model, top, offset + (number == 0), texts[index] + path[::-1])
        for index in range(3):
            node, emitted = -1, []
            while index in members and generator.random() < 0.7:
                children = [child for child, (parent, _) in trees[index].items() if parent == node + 1]
                if not children:
                    break
                node = generator.choice(children)
                emitted.append(trees[index][node][1])
            texts[index] = [*texts[index], *emitted, generator.randrange(250)]


def test_a_row_is_taken_over():
    model = tiny_gpt_oss()
    passes = DraftPasses(model, 2)
    first, second = passes.add(), passes.add()
    passes.follow([first, second], [[1, 2, 3, 4], [9, 8, 7]])
    passes.run([first, second], [[], []], 4)
    passes.drop(first)
    third = passes.add()
    passes.follow([second, third], [[9, 8, 7, 5], [6, 6]])
    rows = passes.run([second, third], [[(0, 4)], []], 8)
    assert_says(model, rows[0], 0, [9, 8, 7, 5])
    assert_says(model, rows[0], 1, [9, 8, 7, 5, 4])
    assert_says(model, rows[1], 0, [6, 6])


def test_what_was_read_with_the_first_pass_is_judged():
    """A model counts its own greedy text as right, and any other text as wrong."""
    model = tiny_gpt_oss()
    text = [5]
    for _ in range(12):
        text.append(int(logprobs_after(model, text).argmax()))
    passes = DraftPasses(model, 1)
    sequence = passes.add()
    passes.follow([sequence], [text])
    passes.run([sequence], [[]], 4)
    assert sequence.hits == [True] * 12
    best = int(logprobs_after(model, text).argmax())
    text = [*text, best]
    text = [*text, (int(logprobs_after(model, text).argmax()) + 1) % 250]
    passes.follow([sequence], [text])
    passes.run([sequence], [[]], 4)
    assert sequence.hits == [False], "the first pending token was foretold by an earlier pass"

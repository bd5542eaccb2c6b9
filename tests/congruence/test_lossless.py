"""The output equals the model's own, token for token, with any draft, alone or in a batch, at any seed."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import TokenizerMismatchError
from speculant_graph.types import EMPTY_DRAFT
from support import lossless
from support.drafters import ScriptedDrafter, knowing, knowing_tree
from support.lossless import Job
from support.tiny_models import WINDOW, tiny_model

NUM_TOKENS = 20
LENGTHS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 40, 3, 77]
GREEDY = GenerationConfig(max_tokens=NUM_TOKENS, ignore_end_tokens=True, speculation="on")
SAMPLED = GenerationConfig(
    max_tokens=NUM_TOKENS, temperature=0.9, top_p=0.95, seed=11, ignore_end_tokens=True, speculation="on"
)


def prompts():
    generator = random.Random(5)
    return [[generator.randrange(250) for _ in range(length)] for length in LENGTHS]


def decode(target, requests, drafter=None, rows=1):
    jobs = [Job(tuple(prompt), config) for prompt, config in requests]
    return lossless.decode(target, jobs, drafter, max_batch_size=rows).sequences


@pytest.fixture(scope="module", params=["gpt_oss", "llama"])
def target(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def reference(request, target):
    """Return (settings, plain output of every prompt decoded alone)."""
    return request.param, [decode(target, [(prompt, request.param)])[0].token_ids for prompt in prompts()]


@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral", "qwen2", "qwen3"])
def test_greedy_decoding_equals_transformers(request, family):
    """Outputs are longer than the sliding windows of the models that have one."""
    target = tiny_model(family) if family != "gpt_oss" else request.getfixturevalue(family)
    for prompt in prompts()[3::2]:
        theirs = target.model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None,
        )[0].tolist()  # fmt: skip
        [ours] = decode(target, [(prompt, GREEDY)], ScriptedDrafter(knowing([theirs], 0.8, 258)))
        assert ours.token_ids == theirs
        assert sum(ours.accepted_by_depth) > 0


@pytest.mark.parametrize(
    ("kind", "rows"),
    [*itertools.product(("right", "mostly right", "wrong", "tree"), (1, 8)), ("none", 3)],
)
def test_drafts_change_nothing_but_the_number_of_steps(target, reference, kind, rows):
    config, expected = reference
    script = {
        "right": knowing(expected, 1.0, 258),
        "mostly right": knowing(expected, 0.7, 258),
        "wrong": knowing(expected, 0.0, 258),
        "tree": knowing_tree(expected, 258),
        "none": lambda _: EMPTY_DRAFT,
    }[kind]
    sequences = decode(target, [(prompt, config) for prompt in prompts()], ScriptedDrafter(script), rows)
    assert [sequence.token_ids for sequence in sequences] == expected
    for sequence in sequences:
        assert len(sequence.output) == sum(sequence.accepted_by_depth) + sequence.num_steps
        assert sum(sequence.accepted_by_depth) <= sum(sequence.drafted_by_depth)
        if kind == "right":
            assert sequence.num_steps <= -(-NUM_TOKENS // 7) + 1
        if kind == "none":
            assert sequence.num_steps == NUM_TOKENS


def test_the_models_longest_context_ends_a_sequence(gpt_oss):
    previous = gpt_oss.max_length
    gpt_oss.max_length = 50
    try:
        [plain] = decode(gpt_oss, [(list(range(45)), GREEDY)])
        [drafted] = decode(gpt_oss, [(list(range(45)), GREEDY)], ScriptedDrafter(knowing([plain.token_ids], 1.0, 258)))
    finally:
        gpt_oss.max_length = previous
    assert len(plain.token_ids) == 50
    assert drafted.token_ids == plain.token_ids


def test_a_drafter_whose_tokenizer_changes_midway_costs_only_speed(gpt_oss):
    """A call without output so far is refused; later, sequences continue without drafts."""
    config = GenerationConfig(max_tokens=5, ignore_end_tokens=True)
    requests = [(prompt, config) for prompt in prompts()[:4]]
    expected = [row.token_ids for row in decode(gpt_oss, requests)]

    class Changing(ScriptedDrafter):
        def __init__(self, allowed):
            super().__init__(lambda _: EMPTY_DRAFT)
            self.allowed = allowed

        def open(self, session_id):
            super().open(session_id)
            self.allowed -= 1
            if self.allowed < 0:
                raise TokenizerMismatchError("another tokenizer")

    assert [row.token_ids for row in decode(gpt_oss, requests, Changing(1))] == expected
    with pytest.raises(TokenizerMismatchError):
        decode(gpt_oss, requests, Changing(0))


@pytest.mark.parametrize("method", ["draft", "observe"])
def test_a_drafter_that_raises_costs_only_speed(gpt_oss, monkeypatch, method):
    requests = [(prompt, GREEDY) for prompt in prompts()[:3]]
    expected = [row.token_ids for row in decode(gpt_oss, requests)]
    drafter = ScriptedDrafter(knowing(expected, 0.7, 258))
    monkeypatch.setattr(drafter, method, lambda _: 1 // 0)
    assert [row.token_ids for row in decode(gpt_oss, requests, drafter)] == expected

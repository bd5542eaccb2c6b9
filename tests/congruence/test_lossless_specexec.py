"""SpecExec's mode: trees of a thousand nodes, one pass each, and logits that are kept for prefixes that come again."""

from __future__ import annotations

import random

import pytest

from speculant_graph.config import GenerationConfig
from support.graphs import graph_of
from support.lossless import WINDOW, Job, alone, decode, local_drafter
from support.tiny_models import tiny_gpt_oss

LONG = GenerationConfig(max_tokens=40, ignore_end_tokens=True, speculation="on")


def noisy_graph(prompt, output):
    """Of a text like the output, in which most tokens have many successors elsewhere."""
    generator = random.Random(3)
    noise = [generator.randrange(250) for _ in range(8_000)]
    text = [t if generator.random() < 0.9 else generator.randrange(250) for t in output]
    return graph_of([noise, [*prompt[-4:], *text]], 2, 258)


@pytest.mark.parametrize(
    ("length", "ring"),
    [
        (127, True),
        *(pytest.param(length, ring, marks=pytest.mark.slow) for length, ring in ((128, False), (300, True))),
    ],
)
def test_trees_of_a_thousand_nodes(length, ring):
    """SpecExec's mode: one pass for each tree, in rings, too, around the window."""
    model = tiny_gpt_oss(window=WINDOW, ring_cache=ring)
    model.max_length = 4096  # nothing in this model knows how long a text may get
    prompt = tuple(index * 11 % 250 for index in range(length))
    plain_job = Job(prompt, LONG)
    output = alone(model, plain_job)
    graph = noisy_graph(prompt, output)
    config = LONG.model_copy(update={"max_tokens": 1_100, "ignore_end_tokens": False, "end_token_ids": (output[-1],)})
    expected = output[: output.index(output[-1]) + 1]
    drafter = local_drafter(graph, "specexec", 2_048, max_branches=64)
    job = Job(prompt, config)
    outcome = decode(model, [job, job], drafter, 2_048, strategy="specexec", max_batch_size=1, target_cache=50_000_000)
    assert outcome.outputs == [expected, expected]
    first, second = outcome.sequences
    totals = outcome.engine.totals
    assert totals.num_passes == first.num_steps + second.num_steps
    emitted = first.num_steps + sum(first.accepted_by_depth) + first.num_from_target_cache
    assert emitted - len(first.output) in (0, 1), "a step that an end token cuts off has no token of its own"
    assert max(sum(first.drafted_by_depth), totals.num_nodes) > 500, "or the trees were small"
    assert second.num_steps == 0
    assert second.num_from_target_cache == len(expected)
    assert outcome.engine.logits_cache.hits >= len(expected)

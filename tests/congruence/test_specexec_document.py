"""The algorithms of the document on SpecExec (Svirschevski et al. 2024, arXiv 2406.02532), written down literally as a
slow reference for the engine.
"""

from __future__ import annotations

import math
import random
from heapq import heappop, heappush

import pytest

from speculant_graph.config import GenerationConfig
from speculant_graph.types import Draft
from support.drafters import ScriptedDrafter
from support.graphs import graph_of
from support.lossless import Job, alone, decode, local_drafter
from support.oracle import OracleGraph
from support.tiny_models import tiny_gpt_oss

BUDGET, MAX_DEPTH, MAX_ENTRIES = 256, 16, 1_024
"""The document's ``tree`` and ``cache`` at a quarter of their sizes; larger ones take minutes and find nothing more."""
WIDE = 1_000
"""Nodes of a tree in tests without the slow reference."""
VOCABULARY, ROW_BYTES = 258, 258 * 4
MAX_ORDER, MAX_BRANCHES = 1, 64
NUM_TOKENS = 20
PROMPT = tuple(index * 11 % 250 for index in range(30))
GREEDY = GenerationConfig(max_tokens=NUM_TOKENS, ignore_end_tokens=True, speculation="on")
SAMPLED = [GREEDY.model_copy(update={"temperature": 0.4, "seed": seed}) for seed in (1, 2, 1)]


def noisy_text(texts):
    """Return the texts repeated with some wrong tokens, after noise in which every token has many successors."""
    generator = random.Random(3)
    noise = [generator.randrange(250) for _ in range(6_000)]
    repeated = [token for text in texts for _ in range(4) for token in text]
    return noise + [generator.randrange(250) if generator.random() < 0.15 else token for token in repeated]


def candidates(oracle, path):
    """Return the successors of the longest known context with their shares, most frequent first."""
    longest = oracle.longest_context(path)
    successors = oracle.context_index[longest] if longest is not None else {}
    total = sum(successors.values())
    return [(token, successors[token] / total) for token in sorted(successors, key=lambda t: (-successors[t], t))]


def create_draft_tree(x, oracle, budget, max_depth):
    """Run algorithm 2: take the ``budget`` most probable paths from a priority queue; return [(path, probability)]."""
    tree, heap = [], [(0.0, (), ())]
    while heap and len(tree) < budget:
        nll, ranks, path = heappop(heap)
        if path:
            tree.append((path, math.exp(-nll)))
        if len(path) < max_depth:
            for rank, (token, probability) in enumerate(candidates(oracle, (*x, *path))):
                heappush(heap, (nll - math.log(probability), (*ranks, rank), (*path, token)))
    return tree


def speculative_execution(x, length, sample, tree_of, cache):
    """Run algorithm 1; return the tokens and the number of times that the cache was precomputed.

    Args:
        x: the prompt.
        length: tokens to generate.
        sample: the target's choice after a prefix.
        tree_of: paths of the draft tree after a prefix.
        cache: prefixes with a known target distribution; precomputed prefixes are added.
    """
    num_precomputed = 0
    for _ in range(length):
        if x not in cache:
            num_precomputed += 1
            cache |= {x, *((*x, *path) for path in tree_of(x))}
        x = (*x, sample(x))
    return x, num_precomputed


@pytest.fixture(scope="module")
def model():
    target = tiny_gpt_oss(window=128)
    target.max_length = 4_096  # the model itself has no limit of length
    return target


@pytest.fixture(scope="module")
def texts(model):
    """Return outputs without drafts: a greedy one and three samples, the third equal to the first."""
    return [(*PROMPT, *alone(model, Job(PROMPT, config))) for config in (GREEDY, *SAMPLED)]


@pytest.fixture(scope="module")
def oracle(texts):
    return OracleGraph([noisy_text(texts[:2])], MAX_ORDER)


def paths_of(oracle, context, budget=BUDGET):
    return [path for path, _ in create_draft_tree(context, oracle, budget, MAX_DEPTH)]


def script_of(oracle):
    def draft(step):
        paths = paths_of(oracle, tuple(step.token_ids), step.node_budget)
        index = {path: number for number, path in enumerate([(), *paths])}
        return Draft(tuple(path[-1] for path in paths), tuple(index[path[:-1]] for path in paths), strategy="specexec")

    return ScriptedDrafter(draft)


def sampler_of(text):
    return lambda x: text[len(x)]


def test_algorithm_1_without_a_memory_of_earlier_trees(model, texts, oracle):
    """The cache is the latest tree: every pass is a miss, and every token of a pass after its first is a hit."""
    expected, num_precomputed = speculative_execution(
        PROMPT, NUM_TOKENS, sampler_of(texts[0]), lambda x: paths_of(oracle, x), LatestTree()
    )
    outcome = decode(model, [Job(PROMPT, GREEDY)], script_of(oracle), BUDGET, strategy="specexec")
    [sequence] = outcome.sequences
    assert (*PROMPT, *sequence.output) == expected == texts[0]
    assert sequence.num_steps == outcome.engine.totals.num_passes == num_precomputed < 0.9 * NUM_TOKENS
    assert sequence.num_from_target_cache == 0
    assert sum(sequence.accepted_by_depth) == NUM_TOKENS - num_precomputed, "the hits"


class LatestTree(set):
    """A cache that holds only the latest precomputed prefixes, like the document's."""

    def __ior__(self, other):
        self.clear()
        return super().__ior__(other)


def test_algorithm_1_with_a_memory_of_earlier_trees(model, texts, oracle):
    """The third of three samples repeats the first; shared prefixes, rejected nodes included, cost no pass."""
    cache: set[tuple[int, ...]] = set()
    expected = [
        speculative_execution(PROMPT, NUM_TOKENS, sampler_of(text), lambda x: paths_of(oracle, x), cache)
        for text in texts[1:]
    ]
    jobs = [Job(PROMPT, config) for config in SAMPLED]
    outcome = decode(model, jobs, script_of(oracle), BUDGET, strategy="specexec", max_batch_size=1, target_cache=10**9)
    for sequence, (text, num_precomputed) in zip(outcome.sequences, expected, strict=True):
        assert (*PROMPT, *sequence.output) == text
        assert sequence.num_steps == num_precomputed
        hits = sum(sequence.accepted_by_depth) + sequence.num_from_target_cache
        assert hits == NUM_TOKENS - num_precomputed
    first, second, third = outcome.sequences
    assert first.num_steps > 0
    assert second.num_from_target_cache > 0, "the beginning that it shares with the first"
    assert (third.num_steps, third.num_from_target_cache) == (0, NUM_TOKENS)


def test_the_documents_configuration_bounds_tree_and_cache(model, texts):
    """Uses a user's settings: strategy, k, max_depth, and memory for few rows; least recently used rows go first."""
    graph = graph_of([noisy_text(texts[:2])], MAX_ORDER, VOCABULARY)
    drafter = local_drafter(graph, "specexec", WIDE, max_depth=MAX_DEPTH, max_branches=MAX_BRANCHES)
    jobs = [Job(PROMPT, config) for config in (GREEDY, *SAMPLED[:2])]
    outcome = decode(
        model, jobs, drafter, WIDE, strategy="specexec", max_batch_size=1, target_cache=MAX_ENTRIES * ROW_BYTES
    )
    assert [(*PROMPT, *output) for output in outcome.outputs] == texts[:3]
    totals, cache = outcome.engine.totals, outcome.engine.logits_cache
    assert len(totals.drafted_by_depth) <= MAX_DEPTH
    assert totals.num_drafts <= totals.num_passes
    assert totals.num_nodes - totals.num_rows <= WIDE * totals.num_drafts
    assert totals.num_nodes > 500 * totals.num_passes, "or the trees were small"
    assert (len(cache), cache.num_bytes) == (MAX_ENTRIES, MAX_ENTRIES * ROW_BYTES)
    assert cache.evicted > 0

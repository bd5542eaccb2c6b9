"""``speculation="on"`` drafts the configured number of nodes at any cost, in this process and at a sidecar."""

from __future__ import annotations

import random
from contextlib import closing
from functools import cache

import pytest

from speculant_graph.budget import CostCurve, StepBudget
from speculant_graph.client import DrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.strategies import NGRAM_STRATEGIES, STRATEGIES
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.draft_budget import DraftPrice
from speculant_verifier.draft_model.passes import DraftPasses
from speculant_verifier.engine import Engine
from support.draft_models import flat, noisy
from support.graphs import graph_of
from support.lossless import Job, decode, remembered
from support.server import serving
from support.tiny_models import tiny_gpt_oss

K, NUM_TOKENS = 40, 48
STEEP = CostCurve((1, 2), (1.0, 50.0))
PROMPTS = [tuple(random.Random(seed).choices(range(4), k=30)) for seed in range(2)]
# A high temperature, because in a repetitive text only chains can be drafted.
ON = GenerationConfig(max_tokens=NUM_TOKENS, temperature=3.0, ignore_end_tokens=True, speculation="on")


@cache
def target():
    return tiny_gpt_oss(vocabulary_size=4)


@cache
def graph():
    """Return a graph of so few tokens that it knows every context."""
    return graph_of([random.Random(5).choices(range(4), k=900)], 3, 4)


class Watched:
    """Wraps a drafter and records (budget, number of drafted nodes)."""

    def __init__(self, drafter):
        self.drafter, self.answers = drafter, []

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def draft(self, steps):
        drafts = self.drafter.draft(steps)
        self.answers += [(step.node_budget, len(draft)) for step, draft in zip(steps, drafts, strict=True)]
        return drafts


def drafted(drafter, strategy, configs):
    """Decode each prompt with its settings; return (budget, drafted nodes) per drafted step, and the outcome."""
    watched = Watched(drafter)
    draft = DraftConfig(k=K, strategy=strategy, max_depth=K)
    engine = Engine(target(), watched, VerifierConfig(), draft, budget=StepBudget(STEEP))
    jobs = [Job(prompt, config) for prompt, config in zip(PROMPTS, configs, strict=True)]
    outcome = decode(target(), jobs, watched, engine=engine)
    assert outcome.outputs == [remembered(target(), job) for job in jobs]
    return watched.answers, outcome


def assert_all_is_drafted(drafter, strategy):
    answers, outcome = drafted(drafter, strategy, [ON, ON])
    assert answers[0] == (K, K)
    assert all(asked == came for asked, came in answers)
    is_chain = not STRATEGIES[strategy].makes_trees
    if not is_chain:
        assert {asked for asked, _ in answers} == {K}
    # All drafted nodes are verified, except those beyond the end of the output.
    verified = sum(sum(each.drafted_by_depth) for each in outcome.sequences)
    assert verified >= sum(came for _, came in answers[:-4]) * (1.0 if is_chain else 0.9)


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
def test_in_this_process(strategy):
    config = DraftConfig(k=K, strategy=strategy, max_depth=K)
    with closing(LocalDrafter(graph(), config)) as drafter:
        assert_all_is_drafted(drafter, strategy)


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
def test_at_a_sidecar(strategy, tmp_path):
    graph().save(tmp_path / "graph.pkl")
    config = DraftConfig(k=K, strategy=strategy, max_depth=K)
    with serving(tmp_path / "graph.pkl", tmp_path) as server:
        settings = ClientConfig(address=server.address, deadline_ms=60_000)
        with DrafterClient(settings, tokenizer=None, draft=config, strict=True) as client:
            assert_all_is_drafted(client, strategy)
            # A batch of "on" and "auto": the setting of one row does not affect the other.
            answers, _ = drafted(client, strategy, [ON, ON.model_copy(update={"speculation": "auto"})])
            assert (K, K) in answers


@pytest.mark.parametrize("beside", [False, True])
def test_by_a_draft_model(beside):
    """Here, no pass of the draft model ever pays."""
    strategy = "tree" if beside else "model"
    config = DraftConfig(k=K, strategy=strategy, max_depth=K)
    ngrams = LocalDrafter(graph(), config) if beside else None
    price = DraftPrice(StepBudget(STEEP), flat(1e3, 1e3))
    with closing(ModelDrafter(DraftPasses(noisy(target(), 0.1), 2), price, config, ngrams)) as drafter:
        assert_all_is_drafted(drafter, strategy)


@pytest.mark.parametrize("strategy", ["tree", "adaptive"])
def test_what_does_not_pay_is_left_out_otherwise(strategy):
    """The control: with "auto", almost nothing is drafted."""
    auto = ON.model_copy(update={"speculation": "auto"})
    with closing(LocalDrafter(graph(), DraftConfig(k=K, strategy=strategy, max_depth=K))) as drafter:
        _, outcome = drafted(drafter, strategy, [auto, auto])
    assert sum(sum(each.drafted_by_depth) for each in outcome.sequences) < K

"""Every rule preserves the joint distribution of the output, in the real engine and with real drafts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.draft.options import DraftOptions
from speculant_graph.types import EMPTY_DRAFT, Draft, Proposal, RuleName
from speculant_verifier.engine.drafting import draft_seed
from speculant_verifier.rules import WANTS_PROPOSALS
from support.draft_models import model_drafter, noisy
from support.drafters import ScriptedDrafter
from support.graphs import graph_of
from support.lossless import Job, alone, decode, local_drafter
from support.tiny_models import tiny_gpt_oss

VOCABULARY, DRAWN, TEMPERATURE = 4, 3, 1.5
PROMPT = (0, 1, 2, 3, 1)
FEW, MANY = 300, 2_000
NAMES = get_args(RuleName)


@cache
def target():
    small = tiny_gpt_oss(vocabulary_size=VOCABULARY, seed=3, num_layers=4)  # unlike any draft, for the controls
    small.end_token_ids = frozenset()
    return small


@cache
def exact():
    """Return the probability of every triple of tokens, from fresh forward passes."""
    joint = {(): 1.0}
    for _ in range(DRAWN):
        tails = list(joint)
        with torch.inference_mode():
            logits = target().model(torch.tensor([[*PROMPT, *tail] for tail in tails]), use_cache=False).logits[:, -1]
        rows = torch.softmax(logits.double() / TEMPERATURE, -1).tolist()
        joint = {
            (*tail, token): joint[tail] * p
            for tail, row in zip(tails, rows, strict=True)
            for token, p in enumerate(row)
        }
    return joint


def p_value(outputs):
    """Return the p-value of a chi-square test against the exact distribution; rare triples share one cell."""
    counts, total = Counter(outputs), len(outputs)
    pairs = [(counts[key], mass * total) for key, mass in exact().items()]
    rare = [pair for pair in pairs if pair[1] < 5]
    cells = [pair for pair in pairs if pair[1] >= 5]
    if sum(mean for _, mean in rare) > 1:
        cells.append((sum(n for n, _ in rare), sum(mean for _, mean in rare)))
    return float(chi2.sf(sum((n - mean) ** 2 / mean for n, mean in cells), len(cells) - 1))


def proposal(tail, sharpness):
    """Return a q that depends on the last token and supports only some tokens."""
    support = [token for token in range(VOCABULARY) if token != (tail + 2) % VOCABULARY]
    weights = np.array([1.0 + sharpness * ((tail + token) % 3) for token in support])
    return Proposal(np.array(support, np.uint32), (weights / weights.sum()).astype(np.float32))


class Sampling(ScriptedDrafter):
    """Drafts chains or trees sampled from the q in the draft, with the drafter's own random stream."""

    def __init__(self, width=1, with_replacement=True, is_honest=True, seed=0):
        super().__init__(self._draft)
        self._generator = random.Random(seed)
        self._width, self._with_replacement, self._is_honest = width, with_replacement, is_honest

    def _siblings(self, q):
        weights = dict(zip(q.token_ids.tolist(), q.probabilities.tolist(), strict=True))
        if not self._is_honest:  # not sampled from q
            return [max(weights, key=weights.get)] * self._width
        drawn = []
        for _ in range(self._width):
            token = self._generator.choices(list(weights), list(weights.values()))[0]
            drawn.append(token)
            if not self._with_replacement:
                del weights[token]
        return drawn

    def _draft(self, step):
        token_ids, parents, proposals = [], [], []
        level = [(0, step.token_ids[-1])]
        # The depth is decided beforehand, and siblings are drawn only if all fit, so tokens do not affect the shape.
        for _ in range(self._generator.randint(1, DRAWN)):
            deeper = []
            for parent, tail in level:
                if len(token_ids) + self._width > step.node_budget:
                    break
                q = proposal(tail, 2.0)
                for token in self._siblings(q):
                    token_ids.append(token)
                    parents.append(parent)
                    proposals.append(q)
                    deeper.append((len(token_ids), token))
            level = deeper
        return Draft(tuple(token_ids), tuple(parents), (), proposals)


def outputs_of(rule, drafter, number, first_seed=0, max_tokens=DRAWN, strategy="greedy", **settings):
    config = GenerationConfig(max_tokens=max_tokens, temperature=TEMPERATURE, rule=rule, speculation="on", **settings)
    jobs = [Job(PROMPT, config.model_copy(update={"seed": first_seed + index})) for index in range(number)]
    outcome = decode(target(), jobs, drafter, 12, max_batch_size=150, strategy=strategy)
    accepted = sum(sum(each.accepted_by_depth) for each in outcome.sequences)
    # Requests are longer than the compared tokens, because drafts near the end are shorter.
    return [output[:DRAWN] for output in outcome.outputs], accepted / number


def drafter_for(rule, seed=0):
    if rule == "tree-wor":
        return Sampling(2, with_replacement=False, seed=seed)
    if rule == "tree-iid":
        return Sampling(2, seed=seed)
    return Sampling(seed=seed)


@pytest.mark.parametrize("rule", NAMES)
def test_joint_distribution(rule):
    outputs, accepted = outputs_of(rule, drafter_for(rule), FEW, max_tokens=6)
    assert p_value(outputs) > 1e-4
    assert accepted > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("rule", NAMES)
def test_joint_distribution_of_many(rule):
    outputs, _ = outputs_of(rule, drafter_for(rule, 1), MANY, 10**6, max_tokens=8)
    assert p_value(outputs) > 1e-4


@pytest.mark.parametrize(
    ("rule", "number"),
    [("block", FEW), *(pytest.param(rule, MANY, marks=pytest.mark.slow) for rule in ("token", "block", "tree-wor"))],
)
def test_joint_distribution_with_a_draft_model(rule, number):
    """The model's trees have no q, so rules that compare p with q fall back to *follow*."""
    drafter = model_drafter(noisy(target(), 0.3), budget=12, rows=150)
    outputs, accepted = outputs_of(rule, drafter, number, 9 * 10**6, max_tokens=6, strategy="model")
    assert accepted > 1.0
    assert p_value(outputs) > 1e-4


def test_a_q_that_nothing_was_drawn_from_is_found_out():
    """Control: *token* does not verify such drafts exactly, and the test detects it; *follow* needs no q."""
    outputs, _ = outputs_of("token", Sampling(is_honest=False), FEW, max_tokens=6)
    assert p_value(outputs) < 1e-6
    outputs, _ = outputs_of("follow", Sampling(is_honest=False), FEW, max_tokens=6)
    assert p_value(outputs) > 1e-4


@cache
def small_graph():
    """Return the graph of a text in which a token predicts the next one, with a distribution unlike the model's."""
    generator = random.Random(2)
    text = [0]
    for _ in range(4_000):
        text.append(generator.choices(range(VOCABULARY), [1 + 3 * ((text[-1] + t) % 4 == 1) for t in range(4)])[0])
    return graph_of([text], 3, VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["token", "block", "gumbel"])
def test_joint_distribution_with_a_real_drafter(rule):
    """Random numbers belong to positions, so a position drafted twice must not carry over information."""
    drafter = local_drafter(small_graph(), "sampling", 12)
    outputs, accepted = outputs_of(rule, drafter, MANY, 5 * 10**6, max_tokens=8)
    assert accepted > 1.0
    assert p_value(outputs) > 1e-4


class Noting:
    """Wraps a drafter, may change steps and drafts, and records the drafts."""

    def __init__(self, drafter, change=lambda step: step, tell=lambda draft: draft):
        self._drafter, self._change, self._tell, self.drafts = drafter, change, tell, []
        self.state, self.statistics = drafter.state, drafter.statistics
        self.open, self.observe, self.finish = drafter.open, drafter.observe, drafter.finish
        self.close = drafter.close

    def draft(self, steps):
        drafts = [self._tell(draft) for draft in self._drafter.draft([self._change(step) for step in steps])]
        self.drafts += drafts
        return drafts


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["tree-wor", "tree-iid"])
def test_joint_distribution_with_trees_of_the_real_drafter(rule):
    """The rule of a request makes its drafts trees; the compared tokens come from several steps."""
    drafter = Noting(local_drafter(small_graph(), "sampling", 12, max_branches=3))
    outputs, accepted = outputs_of(rule, drafter, MANY, 7 * 10**6, max_tokens=8)
    assert sum(not draft.is_chain for draft in drafter.drafts) > 0.9 * len(drafter.drafts) > MANY
    assert all(len(draft.proposals) == len(draft) for draft in drafter.drafts)
    assert accepted > 1.0
    assert p_value(outputs) > 1e-4


@pytest.mark.parametrize("rule", ["block", "tree-wor"])
def test_tokens_that_the_model_does_not_have_bias_nothing(rule):
    """q and p give two tokens equal probability, but a token without logits always follows one of them."""
    likely, other, unknown = 2, 3, VOCABULARY + 1
    graph = graph_of([[1, likely, unknown, likely, 1, other, other, other] * 300], 1, VOCABULARY + 4)
    with torch.inference_mode():
        logits = target().model(torch.tensor([[0, 1]]), use_cache=False).logits[0, -1].double()
    bias = {likely: 60.0 + float(logits[other] - logits[likely]), other: 60.0}
    settings = {"max_tokens": 6, "temperature": 1.0, "rule": rule, "speculation": "on", "logit_bias": bias}
    jobs = [Job((0, 1), GenerationConfig(seed=seed, ignore_end_tokens=True, **settings)) for seed in range(400)]
    outcome = decode(target(), jobs, local_drafter(graph, "sampling", 4), 4, strategy="sampling", max_batch_size=100)
    first = sum(output[0] == likely for output in outcome.outputs)
    assert 160 < first < 240  # four standard deviations
    assert sum(sum(each.accepted_by_depth) for each in outcome.sequences) > 100


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["tree-wor", "tree-iid"])
def test_trees_need_new_numbers_at_every_step(rule):
    """Control: reusing the previous tree's random numbers changes the distribution; numbers belong to steps."""
    siblings = "independent" if rule == "tree-iid" else "without-replacement"
    options = DraftOptions(siblings=siblings, max_branches=3, max_depth=4)
    generator = DraftGenerator(small_graph(), DraftConfig())

    def draft(step, position=None):
        return generator.draft(step.token_ids, step.node_budget, "sampling", step.seed, position, options)

    fresh, _ = outputs_of(rule, ScriptedDrafter(draft), MANY, 9 * 10**6, max_tokens=8)
    repeated, _ = outputs_of(rule, ScriptedDrafter(lambda step: draft(step, 0)), MANY, 9 * 10**6, max_tokens=8)
    assert p_value(fresh) > 1e-4
    assert p_value(repeated) < 1e-6


class Uncoupled(LocalDrafter):
    """Samples with its own random numbers, even if coupling is requested."""

    def draft(self, steps):
        return super().draft([replace(step, coupling=None) for step in steps])


@pytest.mark.parametrize("rule", ["follow", "gumbel", "nasd"])
def test_coupled_drafts_save_passes_and_change_nothing(rule):
    """The drafter samples from the graph's distribution with the verifier's noise."""
    model = tiny_gpt_oss(window=128)
    jobs = [
        Job(
            tuple(range(seed, seed + 5)),
            GenerationConfig(
                max_tokens=30,
                temperature=0.7,
                seed=seed,
                rule=rule,
                ignore_end_tokens=True,
                speculation="on",
            ),
        )
        for seed in range(5)
    ]
    plain = [alone(model, job) for job in jobs]
    # The model's outputs at other seeds give contexts several successors, in the model's proportions.
    others = [
        Job(job.prompt, job.config.model_copy(update={"seed": 1_000 + 40 * number + job.config.seed}))
        for job in jobs
        for number in range(6)
    ]
    texts = decode(model, others, max_batch_size=32).outputs
    graph = graph_of([[*job.prompt, *text] for job, text in zip(others, texts, strict=True)], 4, 258)
    config = DraftConfig(k=6, strategy="sampling")
    passes = []
    for drafter in (Uncoupled(graph, config), LocalDrafter(graph, config)):
        outcome = decode(model, jobs, drafter, 6, strategy="sampling")
        assert outcome.outputs == plain
        passes.append(sum(each.num_steps for each in outcome.sequences))
    assert passes[1] < passes[0]


def test_what_a_rule_asks_of_its_drafts():
    """A rule requests siblings that it can verify, and coupling if it uses noise; only *block* needs new numbers."""
    steps = {rule: [] for rule in NAMES}
    for rule, seen in steps.items():
        drafter = ScriptedDrafter(lambda step, seen=seen: seen.append(step) or EMPTY_DRAFT)
        outputs_of(rule, drafter, 1, 77, max_tokens=6)
    siblings = {rule: {step.options.siblings for step in seen} for rule, seen in steps.items()}
    others = {rule: {"none"} for rule in NAMES}
    assert siblings == others | {"tree-wor": {"without-replacement"}, "tree-iid": {"independent"}}
    coupled = {rule: {step.options.coupling for step in seen} for rule, seen in steps.items()}
    assert coupled == {rule: {None if rule in WANTS_PROPOSALS else "gumbel"} for rule in NAMES}
    seeds = {rule: [step.seed for step in seen] for rule, seen in steps.items()}
    own = [draft_seed(GenerationConfig(rule="block", seed=77), len(PROMPT) + i) for i in range(5)]
    assert len(set(own)) == 5
    assert seeds == {rule: [77] * 5 for rule in NAMES} | {"block": own}

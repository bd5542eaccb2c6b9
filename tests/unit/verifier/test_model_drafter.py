"""Sequences of the draft-model drafter: tenants, failures, and when the model is tried."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from speculant_graph.budget import StepBudget
from speculant_graph.config import GenerationConfig
from speculant_graph.types import PassReport, SessionOptions
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.draft_budget import DraftPrice
from speculant_verifier.draft_model.passes import DraftPasses
from support.draft_models import flat, model_drafter, noisy
from support.lossless import Job, decode, remembered
from support.tiny_models import tiny_gpt_oss

NUM_TOKENS = 24


@cache
def target():
    return tiny_gpt_oss()


def jobs(count: int = 3, length: int = 40, **settings: Any) -> list[Job]:
    generator = random.Random(2)
    config = GenerationConfig(max_tokens=NUM_TOKENS, ignore_end_tokens=True, speculation="on", **settings)
    return [Job(tuple(generator.randrange(250) for _ in range(length)), config) for _ in range(count)]


def drafts_of(drafter: ModelDrafter, tenant: str | None) -> int:
    """Decode a sequence of a tenant; return the total number of drafted nodes."""
    [job], drafted = jobs(1), []
    opened, draft = drafter.open, drafter.draft
    drafter.open = lambda session_id, options=None: opened(session_id, SessionOptions(tenant) if tenant else None)
    drafter.draft = lambda steps: [drafted.append(len(each)) or each for each in draft(steps)]
    try:
        assert decode(target(), [job], drafter, 8, strategy="model").outputs == [remembered(target(), job)]
    finally:
        drafter.open, drafter.draft = opened, draft
    return sum(drafted)


@pytest.mark.parametrize(("tenants", "served"), [(None, {None, "a", "b"}), ({"a"}, {"a"}), ({"a", ""}, {None, "a"})])
def test_what_was_trained_on_a_tenant_drafts_for_it_alone(tenants, served):
    drafter = model_drafter(noisy(target(), 0.02))
    drafter.swap(noisy(target(), 0.02), None if tenants is None else frozenset(tenants))
    for tenant in (None, "a", "b"):
        assert (drafts_of(drafter, tenant) > 0) is (tenant in served)


@pytest.mark.parametrize("rule", ["follow", "token"])
def test_a_text_that_outgrows_the_models_context(rule):
    model = noisy(target(), 0.02)
    model.model.config.max_position_embeddings = 60
    drafter = model_drafter(model)
    chosen = jobs(rule=rule)
    assert decode(target(), chosen, drafter, 8, strategy="model").outputs == [
        remembered(target(), job) for job in chosen
    ]
    assert drafter.num_passes > 3, "there was room at first"
    num_judged, num_right = drafter.hits
    assert 0 < num_right < num_judged, "of the random prompts it knows nothing"
    assert drafts_of(drafter, None) > 0, "nothing has failed"


def test_a_model_that_fails_is_tried_again_later(monkeypatch):
    drafter, now_s = model_drafter(noisy(target(), 0.02)), 0.0
    drafter._clock = lambda: now_s
    with monkeypatch.context() as patch:

        def fail(*_args: Any) -> None:
            raise torch.OutOfMemoryError("no room")

        patch.setattr(DraftPasses, "run", fail)
        assert drafts_of(drafter, None) == 0
    assert drafts_of(drafter, None) == 0, "it pauses"
    now_s = 61.0
    assert drafts_of(drafter, None) > 0


@pytest.mark.parametrize(("knows", "is_priced"), [(False, True), (True, True), (False, False)])
def test_what_brings_nothing_gets_a_small_share_of_the_time(knows, is_priced):
    """On a simulated clock, a target pass takes 1 s, a draft pass 0.3 s, and a choice 0.005 s."""
    model = noisy(target(), 0.02 if knows else 10.0)
    clock = itertools.count()
    drafter = model_drafter(model)
    drafter._clock = lambda: next(clock) * 0.005
    drafter._price = DraftPrice(StepBudget(flat(1.0, 0.01)), flat(0.3, 0.0))
    run, observe, num_steps = drafter._passes.run, drafter.observe, 0

    def slow_run(*arguments):
        for _ in range(60):
            next(clock)
        return run(*arguments)

    def second(_):
        nonlocal num_steps
        num_steps += 1
        return observe(PassReport(1.0))

    drafter._passes.run, drafter.observe, draft = slow_run, second, drafter.draft
    drafter.draft = lambda steps: draft([replace(step, is_priced=is_priced) for step in steps])
    passes = []
    for _ in range(36 if is_priced and not knows else 3):
        before = drafter.num_passes, num_steps
        decode(target(), jobs(1), drafter, 8, strategy="model")
        passes.append((drafter.num_passes - before[0]) / (num_steps - before[1]))
    if knows or not is_priced:
        assert min(passes) > 0.9, "asked at nearly every step"
    else:
        assert passes[0] > 0.2, "it is believed good until it was tried"
        assert 0.0 < sum(passes[20:]) / 16 * 0.3 < 0.02

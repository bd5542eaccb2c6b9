"""A running batch for tests: create it, step it to its end, and decode a prompt alone."""

from __future__ import annotations

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import PREFILL_CHUNK
from support.drafters import ScriptedDrafter

CONFIG = GenerationConfig(max_tokens=12, ignore_end_tokens=True, speculation="on")


def make_engine(target, drafter=None, k=4, prefill_chunk=PREFILL_CHUNK, **settings):
    draft = DraftConfig(k=k, strategy="greedy")
    return Engine(target, drafter or NullDrafter(), VerifierConfig(**settings), draft, prefill_chunk=prefill_chunk)


def finish(engine):
    """Step to the end; return the sequences and reasons by index."""
    ended = {}
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason is not None:
                assert output.sequence.index not in ended
                ended[output.sequence.index] = output
    return ended


def alone(target, prompt, config=CONFIG):
    [output] = make_engine(target).run([Request(0, tuple(prompt), config.model_copy(update={"max_tokens": 1}))])
    assert output.finish_reason == "length"
    engine = make_engine(target)
    engine.add(Request(0, tuple(prompt), config))
    return finish(engine)[0].sequence.output


def scripted(budget_to_draft):
    return ScriptedDrafter(lambda step: budget_to_draft(step.node_budget))

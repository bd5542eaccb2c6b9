"""The running batch: who joins, who waits, who fails, and that none of it touches the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import EMPTY_DRAFT, Draft, Proposal
from speculant_verifier.engine import Engine, Request
from support.drafters import ScriptedDrafter, chain, knowing
from support.tiny_models import tiny_gpt_oss

CONFIG = GenerationConfig(max_tokens=12, ignore_end_tokens=True, speculation="on")


@pytest.fixture(scope="module")
def target():
    return tiny_gpt_oss()


def make_engine(target, drafter=None, k=4, **settings):
    return Engine(target, drafter or NullDrafter(), VerifierConfig(**settings), DraftConfig(k=k))


def finish(engine):
    """Step to the end; return the sequences and reasons by index."""
    ended = {}
    while engine.has_work:
        for emission in engine.step():
            if emission.finish_reason is not None:
                assert emission.sequence.index not in ended
                ended[emission.sequence.index] = emission
    return ended


def alone(target, prompt, config=CONFIG):
    [emission] = make_engine(target).run([Request(0, tuple(prompt), config.model_copy(update={"max_tokens": 1}))])
    assert emission.finish_reason == "length"
    engine = make_engine(target)
    engine.add(Request(0, tuple(prompt), config))
    return finish(engine)[0].sequence.output


def test_requests_join_and_leave_a_running_batch(target):
    prompts = [(1, 2, 3), tuple(range(40)), (7,), (9, 8)]
    expected = [alone(target, prompt) for prompt in prompts]
    drafter = ScriptedDrafter(knowing([(*p, *o) for p, o in zip(prompts, expected, strict=True)], 0.7, 258))
    engine = make_engine(target, drafter, max_batch_size=3)
    outputs = {}
    for index, prompt in enumerate(prompts):
        engine.add(Request(index, prompt, CONFIG))
        for emission in engine.step():
            if emission.finish_reason:
                outputs[emission.sequence.index] = emission.sequence.output
    outputs |= {index: emission.sequence.output for index, emission in finish(engine).items()}
    assert [outputs[index] for index in range(4)] == expected
    assert not drafter.open_sessions


def test_long_prompts_do_not_stall_those_that_run(target):
    """While a prompt is read in stretches, every step still emits for the sequence that was there first."""
    engine = make_engine(target, prefill_chunk=16)
    first = engine.add(Request(0, (1, 2, 3), CONFIG.model_copy(update={"max_tokens": 40})))
    engine.step()
    second = engine.add(Request(1, tuple(index % 250 for index in range(300)), CONFIG))
    steps = 0
    while not second.num_emitted:
        assert any(emission.sequence is first for emission in engine.step())
        steps += 1
    assert steps >= 300 // 16
    outputs = finish(engine)
    assert outputs[1].sequence.output == alone(target, tuple(index % 250 for index in range(300)))


def test_requests_wait_until_keys_and_values_fit(target):
    """At any time, rows times the longest of them stay below the bound, and everybody gets a turn."""
    bound = 100
    engine = make_engine(target, max_kv_tokens=bound, max_batch_size=8)
    for index in range(6):
        engine.add(Request(index, tuple(range(1, 2 + 5 * index)), CONFIG))
    ended, most = {}, 0
    while engine.has_work:
        for emission in engine.step():
            if emission.finish_reason:
                ended[emission.sequence.index] = emission.sequence.output
        running = engine._running
        most = max(most, len(running))
        longest = max((len(each.prompt) + 12 + 4 for each in running), default=0)
        assert len(running) * longest <= bound
    assert most > 1
    assert [ended[index] for index in range(6)] == [alone(target, range(1, 2 + 5 * index)) for index in range(6)]


@pytest.mark.parametrize(
    ("prompt", "config", "message"),
    [
        ((), CONFIG, "empty"),
        (tuple([1] * 600), CONFIG, "shorten"),
        ((1, 258), CONFIG, "own tokenizer"),
        ((1, -1), CONFIG, "own tokenizer"),
        (tuple([1] * 150), CONFIG, "max-kv-tokens"),
    ],
)
def test_a_request_that_can_never_run_fails_alone(target, prompt, config, message):
    engine = make_engine(target, max_kv_tokens=128)
    engine.add(Request(0, prompt, config))
    engine.add(Request(1, (1, 2, 3), CONFIG))
    ended = finish(engine)
    assert ended[0].finish_reason == "error"
    assert message in ended[0].sequence.error
    assert ended[1].sequence.output == alone(target, (1, 2, 3))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_end_their_request_alone(temperature):
    """Neither a neighbour nor whoever gets the row afterwards meets the NaN."""
    target = tiny_gpt_oss()
    config = CONFIG.model_copy(update={"temperature": temperature})
    expected = alone(target, (1, 2, 3), config)
    with torch.no_grad():
        target.model.get_input_embeddings().weight[200] = float("nan")
    engine = make_engine(target, max_batch_size=2)
    engine.add(Request(0, (5, 200, 6), config))
    for index in (1, 2, 3):
        engine.add(Request(index, (1, 2, 3), config))
    ended = finish(engine)
    assert ended[0].finish_reason == "error"
    assert "NaN" in ended[0].sequence.error
    for index in (1, 2, 3):
        assert ended[index].sequence.output == expected


def test_memory_that_does_not_suffice_ends_the_youngest_and_spares_the_others(target, monkeypatch):
    expected = [alone(target, (1, 2, index)) for index in range(3)]
    forward = target.forward

    def small(token_ids, *rest, **more):
        if len(token_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(token_ids, *rest, **more)

    engine = make_engine(target, max_batch_size=3)
    for index in range(3):
        engine.add(Request(index, (1, 2, index), CONFIG))
    monkeypatch.setattr(target, "forward", small)
    ended = finish(engine)
    reasons = [ended[index].finish_reason for index in range(3)]
    assert reasons == ["length", "length", "error"]
    assert "max-kv-tokens" in ended[2].sequence.error
    assert [ended[index].sequence.output for index in range(2)] == expected[:2]


def test_a_cancelled_sequence_frees_its_row_and_session(target):
    drafter = ScriptedDrafter(knowing([], 1.0, 258))
    engine = make_engine(target, drafter, max_batch_size=1)
    first = engine.add(Request(0, (1, 2), CONFIG))
    second = engine.add(Request(1, (3, 4), CONFIG))
    engine.add(Request(2, (5, 6), CONFIG))
    engine.step()
    assert drafter.open_sessions == {first.session_id}
    engine.cancel(first)
    engine.cancel(second)
    ended = finish(engine)
    assert set(ended) == {2}
    assert ended[2].sequence.output == alone(target, (5, 6))
    assert not drafter.open_sessions


def test_forced_tokens_are_written_whatever_the_model_prefers(target):
    forced = (9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12)
    drafter = ScriptedDrafter(knowing([(1, 2, *forced)], 0.8, 258))
    engine = make_engine(target, drafter)
    engine.add(Request(0, (1, 2), CONFIG, forced=forced))
    [emission] = finish(engine).values()
    assert emission.sequence.output == forced
    assert sum(emission.sequence.accepted_by_depth) > 0


def test_prompts_are_read_in_the_order_in_which_they_came(target):
    """Callers who share an engine number their requests from 0, each for themselves."""
    engine = make_engine(target, prefill_chunk=20)
    config = CONFIG.model_copy(update={"max_tokens": 1})
    first = engine.add(Request(3, tuple(range(60)), config))
    engine.step()
    ended = []
    for _ in range(3):
        engine.add(Request(0, tuple(range(1, 61)), config))
        ended += [emission.sequence for emission in engine.step()]
    assert ended == [first]
    finish_all = [emission.sequence.index for _ in range(9) for emission in engine.step()]
    assert finish_all == [0, 0, 0]


def scripted(budget_to_draft):
    return ScriptedDrafter(lambda step: budget_to_draft(step.node_budget))


@pytest.mark.parametrize(
    ("lengths", "settings"),
    [((220, 100), {"max_kv_tokens": 2 * 256, "prefill_chunk": 200}), ((490, 240), {"prefill_chunk": 480})],
    ids=["bound", "default bound"],
)
def test_a_stretch_of_one_prompt_beside_the_end_of_another_stays_within_the_bound(target, lengths, settings):
    """All rows of a pass are as wide as the widest, so together they would take more than either needs."""
    engine = make_engine(target, max_batch_size=2, **settings)
    prompts = [tuple(index % 250 for index in range(length)) for length in lengths]
    for index, prompt in enumerate(prompts):
        engine.add(Request(index, prompt, CONFIG.model_copy(update={"max_tokens": 4})))
    outputs = [emission.sequence.output for _, emission in sorted(finish(engine).items())]
    config = CONFIG.model_copy(update={"max_tokens": 4})
    assert outputs == [alone(target, prompt, config) for prompt in prompts]


@pytest.mark.parametrize("step", range(3, 9))
@pytest.mark.parametrize("length", [98, 100])
def test_a_short_prompt_joins_one_that_is_nearly_done_within_the_bound(target, step, length):
    """Its few tokens are read with its draft, so the pass is wider than that of the long row alone."""
    drafter = scripted(lambda budget: chain([1] * budget))
    longest = -(-(length + 8 + 4) // 16) * 16  # too little for both at once: the short one has to wait
    engine = make_engine(target, drafter, max_kv_tokens=2 * longest)
    engine.add(Request(0, tuple(range(length)), CONFIG.model_copy(update={"max_tokens": 8})))
    ended = {}
    for _ in range(step):
        ended |= {emission.sequence.index: emission for emission in engine.step() if emission.finish_reason}
    engine.add(Request(1, tuple(range(8)), CONFIG))
    ended |= finish(engine)
    assert sorted(ended) == [0, 1]
    assert ended[1].sequence.output == alone(target, tuple(range(8)))


def proposal(token_ids, probabilities):
    return Proposal(np.array(token_ids, np.uint32), np.array(probabilities, np.float32))


@pytest.mark.parametrize(
    "draft",
    [
        Draft((1, 2), (0, 1), (0.1, 0.9)),
        Draft((1, 2), (0, 1), (math.nan, math.nan)),
        Draft((1, 2), (0, 1), (1e30, 1e30)),
        Draft((1, 2), (0, 1), (), [proposal([1, 5_000_000], [0.5, 0.5])] * 2),
        Draft((1, 2), (0, 1), (), [proposal([1, 2, 3], [1.0])] * 2),
    ],
    ids=["rising", "NaN", "above 1", "unknown tokens", "few probabilities"],
)
@pytest.mark.parametrize("rule", ["follow", "token", "block", "tree-wor"])
def test_drafts_that_can_not_be_are_no_drafts(target, draft, rule):
    """Whoever sends them must not end a request, far less those of others."""
    config = CONFIG.model_copy(update={"rule": rule, "temperature": 1.0, "speculation": "auto"})
    drafter = scripted(lambda budget: draft if budget >= 2 else EMPTY_DRAFT)
    engine = Engine(target, drafter, VerifierConfig(), DraftConfig(k=8, strategy="tree"))
    for index in range(3):
        engine.add(Request(index, (1, 2, 3), config))
    for emission in finish(engine).values():
        assert emission.finish_reason == "length", emission.sequence.error
        if rule == "follow" and draft.path_probabilities:
            assert not emission.sequence.drafted_by_depth

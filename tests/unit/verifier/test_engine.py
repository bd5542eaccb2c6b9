"""The running batch: who joins, who waits, who fails, and that none of it touches the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.types import EMPTY_DRAFT, Draft, Proposal
from speculant_verifier.cache import SlotCache
from speculant_verifier.cache.layers import SlotLayer
from speculant_verifier.engine import Engine, Request
from support.drafters import ScriptedDrafter, chain, knowing, knowing_tree
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


def test_memory_that_ends_while_the_cache_grows_leaves_it_whole(target, monkeypatch):
    """Whichever layer it ends at, whoever goes on has the layers that the cache says."""
    prompts = [(1, 2, 3), (1,) * 400]
    expected = alone(target, prompts[0])
    replace = SlotLayer._replace
    for failing in range(8):
        engine = make_engine(target, max_batch_size=2)
        engine.add(Request(0, prompts[0], CONFIG))
        engine.step()
        left = [failing]

        def small(layer, num_rows, num_slots, moves, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
            replace(layer, num_rows, num_slots, moves)

        with monkeypatch.context() as patched:
            patched.setattr(SlotLayer, "_replace", small)
            engine.add(Request(1, prompts[1], CONFIG))
            emissions = [emission for _ in range(2) for emission in engine.step()]
        reasons = {emission.sequence.index: emission.finish_reason for emission in emissions}
        assert reasons[1] == "error"
        engine.add(Request(2, prompts[0], CONFIG))
        ended = finish(engine)
        assert ended[0].sequence.output == ended[2].sequence.output == expected


def test_memory_that_ends_in_a_commit_reads_what_was_accepted_again(target, monkeypatch):
    expected = alone(target, (1, 2))
    drafter = ScriptedDrafter(knowing_tree([(1, 2, *expected)], 258))
    engine = make_engine(target, drafter, k=8)
    engine.add(Request(0, (1, 2), CONFIG))
    failures = []

    def full(self, moved):
        failures.append(moved)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(SlotCache, "_move", full)
    emissions = []
    while engine.has_work:
        emissions += engine.step()
    assert failures
    assert tuple(token for emission in emissions for token in emission.token_ids) == expected


def test_memory_that_does_not_suffice_for_a_prompt_ends_no_other_that_waits(target, monkeypatch):
    prefill = target.prefill

    def small(token_ids, *rest):
        if sum(map(len, token_ids)) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        prefill(token_ids, *rest)

    monkeypatch.setattr(target, "prefill", small)
    engine = make_engine(target, prefill_chunk=200)
    for index, length in enumerate((190, 150, 20)):
        engine.add(Request(index, (1,) * length, CONFIG))
    ended = finish(engine)
    assert [ended[index].finish_reason for index in range(3)] == ["error", "error", "length"]


@pytest.mark.parametrize("answer", [
    lambda steps: 1 // 0,
    lambda steps: [],
    lambda steps: [None] * len(steps),
    lambda steps: [Draft((None,), (0,))] * len(steps),
    lambda steps: [Draft((10**30, -1), (0, 1))] * len(steps),
    lambda steps: [Draft((1, 2), (0, 2))] * len(steps),
    lambda steps: [Draft((1, 2), (0, 1), (0.3, 0.9))] * len(steps),
    lambda steps: [Draft((1, 2), (0, 1), (float("nan"), 0.9))] * len(steps),
    lambda steps: [Draft((1, 1, 1), (0, 0, 0), (0.5, 0.5, 0.5))] * len(steps),
    lambda steps: [Draft((1,), (0,), (), (Proposal(np.array([1, 2**31], np.uint32), np.full(2, 0.5)),))] * len(steps),
])  # fmt: skip
@pytest.mark.parametrize("rule", ["follow", "token", "tree-wor"])
def test_whatever_a_drafter_answers_the_text_is_the_same(target, answer, rule):
    """Drafts with probabilities are trimmed by them, so these must be sound."""
    drafter = ScriptedDrafter(lambda _: None)
    drafter.draft = answer
    config = CONFIG.model_copy(update={"rule": rule, "speculation": "auto"})
    engine = Engine(target, drafter, VerifierConfig(), DraftConfig(k=4, strategy="tree"))
    engine.add(Request(0, (1, 2, 3), config))
    assert finish(engine)[0].sequence.output == alone(target, (1, 2, 3))


def test_a_session_that_can_not_be_opened_ends_no_other_request(target):
    """A strict drafter's refusal ends its own request; what is merely broken costs the drafts."""
    errors = [SpeculantError("no answer; start the sidecar"), OSError("broken"), None]

    class Failing(ScriptedDrafter):
        def open(self, session_id):
            if error := errors.pop(0):
                raise error
            super().open(session_id)

    drafter = Failing(lambda _: EMPTY_DRAFT)
    engine = make_engine(target, drafter)
    for index in range(3):
        engine.add(Request(index, (1, 2, 3), CONFIG))
    ended = finish(engine)
    assert [ended[index].finish_reason for index in range(3)] == ["error", "length", "length"]
    assert ended[0].sequence.error == "no answer; start the sidecar"
    assert ended[1].sequence.output == ended[2].sequence.output == alone(target, (1, 2, 3))
    assert not drafter.open_sessions


@pytest.mark.parametrize("most_nodes_kept", [0, 1, 2, 4])
def test_feedback_names_the_nodes_of_the_draft_that_the_drafter_made(target, monkeypatch, most_nodes_kept):
    """Also where nodes were left out: the row of a node is what the target says after that node's own path."""
    draft = Draft((7, 8, 9, 10), (0, 0, 2, 3), (0.1, 0.9, 0.8, 0.7), draft_id=5)
    told = []

    def script(step):
        told.append((tuple(step.token_ids), step.feedback))
        return draft

    engine = Engine(
        target, ScriptedDrafter(script), VerifierConfig(feedback_top_k=3), DraftConfig(k=4, strategy="tree")
    )
    order = [1, 2, 3, 0][:most_nodes_kept]

    def keep(histories, drafts, can_trim):
        return [sorted(order) if len(draft) else [] for draft in drafts]

    monkeypatch.setattr(engine._speculation, "keep", keep)
    engine.add(Request(0, (1, 2, 3), CONFIG.model_copy(update={"speculation": "auto"})))
    finish(engine)
    (known, _), (_, feedback) = told[:2]
    assert feedback.draft_id == 5
    assert list(feedback.nodes) == [0, *(node + 1 for node in sorted(order))]
    paths = {0: (), 1: (7,), 2: (8,), 3: (8, 9), 4: (8, 9, 10)}
    for node, row in zip(feedback.nodes, feedback.rows, strict=True):
        logits = target.forward([[*known, *paths[node]]], target.new_cache(1), [0])[0, 0]
        assert row.tolist() == logits.topk(3).indices.tolist()


def test_rows_that_are_padded_to_others_stay_within_the_bound(target):
    drafter = ScriptedDrafter(lambda step: chain([1] * step.node_budget))
    engine = make_engine(target, drafter, max_kv_tokens=2 * 48, max_batch_size=2)
    engine.add(Request(0, tuple(range(1, 25)), CONFIG))  # nearly at its end when eight pending tokens join
    for _ in range(11):
        engine.step()
    engine.add(Request(1, tuple(range(1, 9)), CONFIG))
    assert {each.finish_reason for each in finish(engine).values()} == {"length"}
    engine = make_engine(target, max_kv_tokens=2 * 528, max_batch_size=2, prefill_chunk=490)
    engine.add(Request(0, (1,) * 500, CONFIG.model_copy(update={"max_tokens": 8})))
    engine.add(Request(1, (1,) * 200, CONFIG))
    assert {each.finish_reason for each in finish(engine).values()} == {"length"}


def test_prompts_are_read_in_the_order_in_which_they_came(target):
    """Numbers of callers begin at 0 again and again; who came first must not wait for all who come later."""
    engine = make_engine(target, prefill_chunk=16)
    first = engine.add(Request(7, (1,) * 60, CONFIG))
    for _ in range(8):
        engine.add(Request(0, (1,) * 60, CONFIG))
        engine.step()
    assert first.num_emitted


def test_a_stop_check_that_fails_ends_its_request_alone(target):
    def failing(token_ids):
        raise ValueError("no such thing")

    engine = make_engine(target)
    engine.add(Request(0, (1, 2), CONFIG, stop_check=failing))
    engine.add(Request(1, (1, 2), CONFIG))
    ended = finish(engine)
    assert "stop check" in ended[0].sequence.error
    assert ended[1].sequence.output == alone(target, (1, 2))


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

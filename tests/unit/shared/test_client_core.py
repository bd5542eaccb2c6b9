"""The client's core, event by event, with a trivial drafter."""

from __future__ import annotations

import numpy as np
import pytest

from speculant_graph.client.batches import MAX_TOKENS_PER_MESSAGE, pack
from speculant_graph.client.session_registry import Session
from speculant_graph.errors import DrafterUnavailableError, SpeculantError, UnknownGraphError
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, DraftOptions, Feedback, SequenceStep, SessionOptions
from support.dict_drafter import drafted
from support.network import UNAVAILABLE, Network


@pytest.fixture
def network() -> Network:
    return Network()


STEP = SequenceStep(1, [1, 2, 3], 4)


def levels(network: Network) -> list[str]:
    return [report.level for report in network.reports]


def test_only_new_tokens_travel(network: Network) -> None:
    text: list[int] = []
    for number in range(20):
        text += [number] * 3
        [draft] = network.draft([SequenceStep(1, text, 4)])
        assert draft.token_ids == drafted(text, 4)
        sent = pb.StreamDraftRequest.FromString(network.payloads[-1]).draft
        assert list(sent.context_tokens) == [number] * 3
    assert network.core.counts.reopened_sessions == network.core.counts.failed_steps == 0


def test_a_lost_session_is_filled_again_in_the_same_step(network: Network) -> None:
    network.draft([STEP])
    network.drafter.sessions.clear()
    [draft] = network.draft([STEP])
    assert draft.token_ids == drafted(STEP.token_ids, 4)
    assert list(network.drafter.sessions.values()) == [STEP.token_ids]
    assert (network.core.counts.reopened_sessions, network.core.counts.failed_steps) == (1, 0)


@pytest.mark.parametrize("other", [[1, 2], [1, 9, 9], [1, 2, 4, 5]])
def test_another_text_under_an_old_id_is_another_session(network: Network, other: list[int]) -> None:
    network.draft([STEP])
    network.draft([SequenceStep(1, other, 4)])
    assert list(network.drafter.sessions.values()) == [other]
    assert network.core.counts.reopened_sessions == 0


def test_a_late_answer_is_noted_and_never_taken_for_the_next(network: Network) -> None:
    network.draft([STEP])
    late = network.begin([SequenceStep(1, [1, 2, 3, 4], 4)])
    network.work()
    assert not network.core.end(late, network.now_s)[0]
    [draft] = network.draft([SequenceStep(1, [1, 2, 3, 4, 5], 4)])
    assert draft.token_ids == drafted([1, 2, 3, 4, 5], 4)
    assert not late.drafts[0]
    assert (network.core.counts.late_answers, network.core.counts.failed_steps) == (1, 1)


def test_a_sequence_that_is_not_open_yet_does_not_hold_up_the_others(network: Network) -> None:
    network.draft([STEP])
    slow = SequenceStep(2, [5], 4)
    running = network.begin([STEP, slow])
    network.work()
    network.deliver(0)
    drafts = network.core.end(running, network.now_s)
    assert [bool(draft) for draft in drafts] == [True, False]
    assert (network.core.state, network.core.counts.failed_steps) == ("ok", 1)
    network.settle_opening(0)  # the opening continues in the background
    assert all(network.draft([STEP, slow]))


def test_long_texts_travel_in_chunks_and_large_batches_in_parts(network: Network) -> None:
    text = [number % 900 for number in range(5 * MAX_TOKENS_PER_MESSAGE // 2)]
    many = [SequenceStep(key, [key] * 100, 4) for key in range(2, 300)]
    drafts = network.draft([SequenceStep(1, text, 4), *many])
    assert [draft.token_ids for draft in drafts] == [drafted(text, 4), *(drafted(step.token_ids, 4) for step in many)]
    network.payloads.clear()
    network.draft(many)
    assert len(network.payloads) == 2  # each of at most 256 sequences
    network.payloads.clear()
    network.draft([SequenceStep(key, [key] * 100, 1_024) for key in range(2, 100)])
    assert len(network.payloads) > 2  # because each response must fit into a message, too


def test_feedback_travels_only_if_it_is_about_the_latest_draft(network: Network) -> None:
    taught = network.drafter.feedback

    def tell(draft_id: int, rows: list[list[int]]) -> Draft:
        feedback = Feedback(draft_id, [0, 1], np.array(rows))
        return network.draft([SequenceStep(1, [1, 2, 3], 4, feedback=feedback)])[0]

    [first] = network.draft([STEP])
    second = tell(first.draft_id, [[1, 2], [3, 4]])
    assert taught == [first.draft_id]
    third = tell(first.draft_id, [[1, 2], [3, 4]])  # not for the latest draft
    fourth = tell(third.draft_id, [[1, 2], [3, -1]])  # -1 is not a token
    fifth = tell(fourth.draft_id, [[1, 2]])  # fewer rows than nodes
    assert first.draft_id < second.draft_id < third.draft_id < fourth.draft_id < fifth.draft_id
    network.drafter.sessions.clear()
    network.draft([STEP])
    tell(fifth.draft_id, [[1, 2], [3, 4]])  # for a lost session
    assert taught == [first.draft_id]


@pytest.mark.parametrize("num_tokens", [3, 2 * MAX_TOKENS_PER_MESSAGE])
def test_feedback_comes_before_the_tokens_that_it_explains(num_tokens: int) -> None:
    session = Session(wire_id=7, is_open=True, draft_id=5)
    feedback = Feedback(5, [0], np.array([[1, 2]]))
    step = SequenceStep(1, [1] * num_tokens, 4, feedback=feedback)
    messages = list(pack([(0, step, session)], DraftOptions(), lambda index, error: pytest.fail(str(error))))
    first, *others = [pb.DraftRequest.FromString(message.request.payload()) for message in messages]
    assert (list(first.feedback_draft_ids), list(first.feedback_tokens)) == ([5], [1, 2])
    assert not any(message.feedback_nodes for message in others)


@pytest.mark.parametrize(
    "odd",
    [SequenceStep(2, [2**40], 4), SequenceStep(2, [5], -1), SequenceStep(2, [5], 4, options=DraftOptions("nasd"))],
)
def test_a_sequence_that_can_not_be_sent_costs_only_itself(network: Network, odd: SequenceStep) -> None:
    drafts = network.draft([STEP, odd, SequenceStep(3, [5], 4, options=DraftOptions(max_depth=2))])
    assert [bool(draft) for draft in drafts] == [True, False, True]


def test_the_breaker_opens_after_failures_in_a_row_and_probes_then(network: Network) -> None:
    network.draft([STEP])
    network.fail([STEP], 2)
    assert network.draft([STEP])[0]
    network.fail([STEP], 3)
    assert network.is_paused
    assert levels(network) == ["WARNING"]
    network.payloads.clear()
    for _ in range(10):  # during a pause
        assert not network.draft([STEP])[0]
        network.now_s += 0.001
    [probe] = [pb.StreamDraftRequest.FromString(payload) for payload in network.payloads]
    assert probe.draft == pb.DraftRequest()
    assert network.core.counts.skipped_steps == 10
    assert network.core.state == "unavailable"
    network.core.stream_ended(UNAVAILABLE, network.now_s)
    network.now_s += 0.06
    assert not network.draft([STEP])[0]
    assert network.is_paused
    network.recover([STEP])
    assert network.draft([STEP])[0]
    assert levels(network) == ["WARNING", "INFO"]
    # An answered probe counts less than a step. If no step is answered after it, one failure opens the breaker.
    network.fail([STEP], 3)
    network.recover([STEP])
    network.fail([STEP])
    assert network.is_paused


def test_steps_that_run_at_the_same_time_fail_as_one(network: Network) -> None:
    network.draft([STEP])
    running = [network.begin([STEP]) for _ in range(10)]
    network.work(loses=True)
    network.now_s += 0.02
    for late in running:
        network.core.end(late, network.now_s)
    assert not network.is_paused


@pytest.mark.parametrize("code", [3, 8])
def test_refusals_cost_the_step_and_leave_the_breaker_closed(network: Network, code: int) -> None:
    network.draft([STEP])
    for _ in range(5):
        running = network.begin([STEP])
        network.work()
        network.refuse(code)
        assert not network.core.end(running, network.now_s)[0]
        network.work()
    assert not network.is_paused
    assert levels(network) == ["WARNING"]
    assert network.draft([STEP])[0]


def test_a_drafter_that_asks_for_a_delay_is_left_alone_for_it(network: Network) -> None:
    network.draft([STEP])
    running = network.begin([STEP])
    network.work()
    network.refuse(8, retry_delay_ms=500)
    network.core.end(running, network.now_s)
    num_payloads = len(network.payloads)
    assert not network.draft([STEP])[0]
    assert len(network.payloads) == num_payloads
    network.now_s += 0.6
    assert network.draft([STEP])[0]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (DrafterUnavailableError("UNAVAILABLE: the certificate is not trusted"), "the certificate is not trusted"),
        (None, "no answer to a probe either"),
    ],
)
def test_late_answers_are_reported_with_what_the_probe_finds(
    network: Network, outcome: SpeculantError | None, reason: str
) -> None:
    for _ in range(3):
        network.core.end(network.begin([STEP]), network.now_s)
        network.now_s += 0.02
    network.work()
    assert network.reports == []
    assert network.core.begin([STEP], network.now_s, lambda: None) is None
    if outcome is not None:
        network.core.stream_ended(outcome, network.now_s)
    network.now_s += 0.2
    network.core.begin([STEP], network.now_s, lambda: None)
    network.work()
    [report] = network.reports
    assert "no draft within 20 ms" in report.text
    assert reason in report.text


def test_a_session_that_ended_while_it_was_opened_is_closed(network: Network) -> None:
    network.begin([STEP])
    network.work()
    network.core.finish(1)
    network.settle_opening(0)
    network.work()
    assert network.drafter.sessions == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, ("ours", "usual", True)),
        (SessionOptions(tenant="a"), ("a", "usual", True)),
        (SessionOptions(tenant="", graph="", learn=False), ("", "", False)),
    ],
)
def test_a_session_is_opened_as_it_wants_whenever_it_is_opened(
    network: Network, options: SessionOptions | None, expected: tuple[str, str, bool]
) -> None:
    opened: list[tuple[str, str, bool]] = []
    settle = network.settle_opening

    def note(number: int, error: SpeculantError | None = None) -> None:
        request = network.openings[number].request
        opened.append((request.tenant, request.graph, request.learn))
        settle(number, error)

    network.settle_opening = note  # type: ignore[method-assign]
    network.core.open(1, network.now_s, lambda: None, options)
    network.core.open(1, network.now_s, lambda: None, SessionOptions("late", "late", learn=False))  # it is already open
    network.draft([STEP])
    network.drafter.sessions.clear()  # the session is lost
    network.draft([STEP])
    network.draft([SequenceStep(1, [7, 7], 4)])  # another text means another session
    network.core.finish(1)
    network.work()
    assert opened == [expected] * 3
    assert [tenant for _, tenant in network.closed] == [expected[0]] * 2


def test_ids_on_the_wire_are_random_and_the_clients_own() -> None:
    found: list[int] = []
    for _ in range(2):
        network = Network()
        assert all(network.draft([SequenceStep(key, [key], 4) for key in (1, 2, 3)]))
        found += network.drafter.sessions
    assert len(set(found)) == 6
    assert min(found) > 3


def test_a_graph_that_is_not_there_says_nothing_of_the_drafter(network: Network) -> None:
    network.draft([STEP])
    missing = UnknownGraphError("there is no such graph")
    for _ in range(5):
        opening = network.core.open(2, network.now_s, lambda: None, SessionOptions(graph="nowhere"))
        network.work()
        network.settle_opening(0, missing)
        assert opening is not None
        assert not isinstance(opening, SpeculantError)
        assert network.core.record_open(opening, network.now_s) is missing
        running = network.begin([SequenceStep(2, [4, 5], 4)])
        network.work()
        while network.openings:
            network.settle_opening(0, missing)
            network.work()
        assert network.core.end(running, network.now_s)[0].token_ids == ()
        assert network.core.state == "ok"
        network.now_s += 1.0
    assert network.reports == []
    assert network.draft([STEP])[0].token_ids == drafted(STEP.token_ids, 4)

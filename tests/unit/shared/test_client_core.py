"""The client's core against an obvious drafter, with every order of events that a network can come up with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.client.actions import CloseSession, DropStream, OpenSession, Report, Send, StartProbing
from speculant_graph.client.core import ClientCore
from speculant_graph.client.packing import MAX_TOKENS_PER_MESSAGE
from speculant_graph.client.placement import preferred, score
from speculant_graph.client.rounds import Round
from speculant_graph.client.sessions import Opening
from speculant_graph.config import ClientConfig
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    SpeculantError,
    TokenizerMismatchError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import MAX_MESSAGE_BYTES
from speculant_graph.rpc.messages import OpenRequest, StepOptions
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, Feedback, SequenceStep
from support.dict_drafter import DictDrafter, drafted

UNAVAILABLE = DrafterUnavailableError("UNAVAILABLE: gone")


@dataclass
class Network:
    """A core, its drafters, and what is on the way between them."""

    num_replicas: int = 1
    now_s: float = 100.0
    openings: list[Opening] = field(default_factory=list)
    answers: list[tuple[int, int, bytes]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    num_probings: int = 0

    def __post_init__(self) -> None:
        self.drafters = [DictDrafter() for _ in range(self.num_replicas)]
        self.core = ClientCore(
            [f"unix:///drafter-{number}" for number in range(self.num_replicas)],
            ClientConfig(address="unix:///unused", failures_before_pause=3, probe_interval_ms=50.0),
            options=StepOptions("greedy"),
            strategy="greedy",
            opening=OpenRequest(1),
        )
        self._streams: dict[int, int] = {}
        self._sent: dict[tuple[int, int], int] = {}

    def work(self, *, loses: bool = False) -> None:
        """Do what the core wants; openings and answers stay on the way, and messages may get lost."""
        for action in self.core.take_actions():
            match action:
                case Send(replica, stream, payload):
                    assert self._streams.setdefault(replica, stream) == stream
                    self._check(replica, payload)
                    self.payloads.append(payload)
                    if not loses:
                        self.answers.append((replica, stream, self.drafters[replica].answer(payload)))
                case DropStream(replica, stream):
                    assert self._streams.pop(replica, stream) == stream
                case OpenSession(opening):
                    self.openings.append(opening)
                case CloseSession(replica, wire_id):
                    self.drafters[replica].close(wire_id)
                case StartProbing():
                    self.num_probings += 1
                case Report():
                    self.reports.append(action)

    def _check(self, replica: int, payload: bytes) -> None:
        """Assert that no message begins behind what was sent before it."""
        assert len(payload) < MAX_MESSAGE_BYTES / 4
        draft = pb.StreamDraftRequest.FromString(payload).draft
        for index, wire_id in enumerate(draft.session_ids):
            position = draft.positions[index] if draft.positions else 0
            assert wire_id != 0
            assert position <= self._sent.get((replica, wire_id), 0)
            end = position + draft.context_lengths[index]
            self._sent[replica, wire_id] = max(end, self._sent.get((replica, wire_id), 0))

    def settle_opening(self, number: int, error: SpeculantError | None = None) -> None:
        opening = self.openings.pop(number % len(self.openings))
        request = convert.encode_open_request(opening.request)
        answer = self.drafters[opening.replica].open(request)
        self.core.opened(opening, error or convert.decode_open_answer(answer), self.now_s)

    def deliver(self, number: int, *, keeps: bool = False) -> None:
        place = number % len(self.answers)
        replica, stream, payload = self.answers[place] if keeps else self.answers.pop(place)
        self.core.answered(replica, stream, payload, self.now_s)

    def begin(self, steps: list[SequenceStep]) -> Round:
        return self.core.begin(steps, self.now_s, lambda: None)

    def draft(self, steps: list[SequenceStep]) -> list[Draft]:
        """Run one step on a network without faults."""
        if self.core.skips():
            return [Draft()] * len(steps)
        running = self.begin(steps)
        self.work()
        while running.waiting and (self.openings or self.answers):
            if self.openings:
                self.settle_opening(0)
            else:
                self.deliver(0)
            self.work()
        self.now_s += 0.02
        drafts = self.core.end(running, self.now_s)
        self.work()
        return drafts

    def fail(self, steps: list[SequenceStep], times: int = 1) -> None:
        """Run steps whose streams end at once."""
        for _ in range(times):
            running = self.begin(steps)
            self.work(loses=True)
            for replica in range(self.num_replicas):
                self.core.stream_ended(replica, self.core._replicas[replica].stream, UNAVAILABLE, self.now_s)
            self.now_s += 0.001
            self.core.end(running, self.now_s)
            self.now_s += 0.001
            self.work(loses=True)


OPERATIONS = (
    *("begin", "open", "answer") * 6, *("end",) * 4, "refuse", "repeat answer", "lose answer", "end stream",
    "lose session", "finish", "probe", "fail probe", "wait", "other text", "shorter text", "foreign answer",
    "refuse step",
)  # fmt: skip


def play(network: Network, operations: list[tuple[str, int]]) -> dict[int, list[int]]:
    """Play operations; every draft that comes out must belong to the step that asked for it."""
    core = network.core
    texts: dict[int, list[int]] = {}
    running: list[Round] = []

    def end(number: int) -> None:
        ended = running.pop(number % len(running))
        for step, draft in zip(ended.steps, core.end(ended, network.now_s), strict=True):
            assert draft.token_ids in ((), drafted(step.token_ids, step.node_budget))
            assert bool(draft.draft_id) == bool(draft)

    for name, number in operations:
        session_id, replica = number % 3, number % network.num_replicas
        text = texts.setdefault(session_id, [session_id])
        match name:
            case "begin":
                text.extend(range(number % 4))
                steps = [SequenceStep(key, tuple(texts[key]), 3) for key in list(texts)[: 1 + number % 3]]
                if not core.skips():
                    running.append(network.begin(steps))
            case "end" if running:
                end(number)
            case "open" if network.openings:
                network.settle_opening(number)
            case "refuse" if network.openings:
                errors = (UNAVAILABLE, DraftLimitError("full", 0.01), TokenizerMismatchError("other"))
                network.settle_opening(number, errors[number % 3])
            case "answer" | "repeat answer" if network.answers:
                network.deliver(number, keeps=name == "repeat answer")
            case "lose answer" if network.answers:
                network.answers.pop(number % len(network.answers))
            case "end stream":
                errors = (UNAVAILABLE, DraftLimitError("full", 0.01), DraftRequestError("odd"))
                core.stream_ended(replica, core._replicas[replica].stream, errors[number % 3], network.now_s)
            case "lose session":
                held = network.drafters[replica].sessions
                if held:
                    del held[sorted(held)[number % len(held)]]
            case "finish":
                core.finish(session_id)
                del texts[session_id]
            case "probe" | "fail probe":
                if replica in core.to_probe():
                    core.probed(replica, None if name == "probe" else UNAVAILABLE)
            case "wait":
                network.now_s += number / 1_000
            case "other text":
                texts[session_id] = [*(token + 1 for token in text), 7]
            case "shorter text":
                texts[session_id] = text[: number % (len(text) + 1)] or [5]
            case "foreign answer":
                core.answered(replica, core._replicas[replica].stream, bytes([number % 256] * 3), network.now_s)
            case "refuse step" if network.answers:
                where, stream, payload = network.answers.pop()
                answer = pb.StreamDraftResponse.FromString(payload)
                answer.error.code = (3, 8, 13, 14)[number % 4]
                core.answered(where, stream, answer.SerializeToString(), network.now_s)
        network.work(loses=number % 11 == 10)
        for session in core._book._sessions.values():
            assert session.position <= session.num_sent
    while running:
        end(0)
    network.work()
    return texts


@settings(max_examples=150)
@given(
    num_replicas=st.integers(1, 3),
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 60)), min_size=20, max_size=80),
)
def test_whatever_happens_drafts_fit_their_steps_and_come_again(
    num_replicas: int, operations: list[tuple[str, int]]
) -> None:
    network = Network(num_replicas)
    texts = play(network, operations)
    # From here on nothing goes wrong any more.
    network.now_s += 1.0
    for replica in network.core.to_probe():
        network.core.probed(replica, None)
    for _ in range(2):
        steps = [SequenceStep(key, text, 3) for key, text in texts.items()] or [SequenceStep(9, [9], 3)]
        drafts = network.draft(steps)
        network.now_s += 1.0
        for replica in network.core.to_probe():
            network.core.probed(replica, None)
    assert [draft.token_ids for draft in drafts] == [drafted(step.token_ids, 3) for step in steps]
    assert network.core.state == "ok"


@pytest.fixture
def network() -> Network:
    return Network()


STEP = SequenceStep(1, [1, 2, 3], 4)


def test_only_new_tokens_travel(network: Network) -> None:
    text: list[int] = []
    for number in range(20):
        text += [number] * 3
        [draft] = network.draft([SequenceStep(1, text, 4)])
        assert draft.token_ids == drafted(text, 4)
        sent = pb.StreamDraftRequest.FromString(network.payloads[-1]).draft
        assert list(sent.context_tokens) == [number] * 3
    assert network.core.counts.reopened_sessions == network.core.counts.failed_steps == 0


def test_a_lost_session_is_filled_again_under_its_id_in_the_same_step(network: Network) -> None:
    network.draft([STEP])
    [wire_id] = network.drafters[0].sessions
    network.drafters[0].sessions.clear()
    [draft] = network.draft([STEP])
    assert draft.token_ids == drafted(STEP.token_ids, 4)
    assert list(network.drafters[0].sessions) == [wire_id]
    assert (network.core.counts.reopened_sessions, network.core.counts.failed_steps) == (1, 0)


@pytest.mark.parametrize("other", [[1, 2], [1, 9, 9], [1, 2, 4, 5]])
def test_another_text_under_an_old_id_is_another_session(network: Network, other: list[int]) -> None:
    network.draft([STEP])
    [draft] = network.draft([SequenceStep(1, other, 4)])
    assert draft.token_ids == drafted(other, 4)
    assert list(network.drafters[0].sessions.values()) == [other]
    assert network.core.counts.reopened_sessions == 0


def test_what_a_replica_holds_under_a_new_id_is_not_built_on(network: Network) -> None:
    running = network.begin([STEP])
    network.work()
    first = network.openings[0].request.session_id
    network.drafters[0].sessions[first] = [8, 8]
    while running.waiting:
        if network.openings:
            network.settle_opening(0)
        else:
            network.deliver(0)
        network.work()
    assert network.core.end(running, network.now_s)[0].token_ids == drafted(STEP.token_ids, 4)
    assert first not in network.drafters[0].sessions


def test_a_session_that_somebody_else_fed_is_given_up(network: Network) -> None:
    network.draft([STEP])
    [held] = network.drafters[0].sessions.values()
    held += [8, 8]
    [draft] = network.draft([STEP])
    assert draft.token_ids == drafted(STEP.token_ids, 4)
    assert list(network.drafters[0].sessions.values()) == [STEP.token_ids]


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
    network.settle_opening(0)  # goes on in the background
    assert all(network.draft([STEP, slow]))


def test_long_texts_travel_in_chunks_and_large_batches_in_parts(network: Network) -> None:
    text = [number % 900 for number in range(5 * MAX_TOKENS_PER_MESSAGE // 2)]
    many = [SequenceStep(key, [key] * 100, 4) for key in range(2, 300)]
    drafts = network.draft([SequenceStep(1, text, 4), *many])
    assert [draft.token_ids for draft in drafts] == [drafted(text, 4), *(drafted(step.token_ids, 4) for step in many)]
    network.payloads.clear()
    network.draft(many)
    assert len(network.payloads) == 2  # of at most 256 sequences
    network.payloads.clear()
    network.draft([SequenceStep(key, [key] * 100, 1_024) for key in range(2, 100)])
    assert len(network.payloads) > 2  # as the answers must fit into a message, too


def test_feedback_travels_only_if_it_is_about_the_latest_draft_of_the_replica(network: Network) -> None:
    [first] = network.draft([STEP])

    def tell(draft_id: int, rows: list[list[int]]) -> Draft:
        feedback = Feedback(draft_id, [0, 1], np.array(rows))
        return network.draft([SequenceStep(1, [1, 2, 3], 4, feedback=feedback)])[0]

    # The encoder may leave feedback out, so what it is given is looked at.
    session = network.core._book.session(1)
    good = Feedback(first.draft_id, [0, 1], np.array([[1, 2], [3, 4]]))
    assert session.fitting_feedback(good) is good
    assert session.fitting_feedback(Feedback(first.draft_id, [0], np.array([[1, -1]]))) is None
    assert session.fitting_feedback(Feedback(first.draft_id, [0, 1], np.array([[1]]))) is None
    second = tell(first.draft_id, [[1, 2], [3, 4]])
    assert session.fitting_feedback(good) is None
    assert second.draft_id > first.draft_id
    network.drafters[0].sessions.clear()
    network.draft([STEP])
    assert session.fitting_feedback(Feedback(second.draft_id, [0], np.array([[1]]))) is None


def test_a_sequence_that_can_not_be_sent_costs_only_itself(network: Network) -> None:
    drafts = network.draft([STEP, SequenceStep(2, [2**40], 4)])
    assert [bool(draft) for draft in drafts] == [True, False]


def test_the_breaker_opens_after_failures_in_a_row_and_skips_then(network: Network) -> None:
    network.draft([STEP])
    network.fail([STEP], 2)
    assert network.draft([STEP])[0]
    network.fail([STEP], 3)
    assert network.core.to_probe() == [0]
    assert [report.level for report in network.reports] == ["WARNING"]
    num_payloads = len(network.payloads)
    assert not network.draft([STEP])[0]
    assert len(network.payloads) == num_payloads
    assert network.core.counts.skipped_steps == 1
    assert network.core.state == "unavailable"
    network.core.probed(0, UNAVAILABLE)
    assert network.core.to_probe() == [0]
    network.core.probed(0, None)
    assert network.draft([STEP])[0]
    assert [report.level for report in network.reports] == ["WARNING", "INFO"]
    # A probe that was answered is less than a step: after it one failure is enough, if no step was answered.
    network.fail([STEP], 3)
    network.core.probed(0, None)
    network.fail([STEP])
    assert network.core.to_probe() == [0]


def test_steps_that_run_at_the_same_time_fail_as_one(network: Network) -> None:
    network.draft([STEP])
    running = [network.begin([STEP]) for _ in range(10)]
    network.work(loses=True)
    network.now_s += 0.02
    for late in running:
        network.core.end(late, network.now_s)
    assert network.core.to_probe() == []


@pytest.mark.parametrize("code", [3, 8])
def test_refusals_cost_the_step_and_leave_the_breaker_closed(network: Network, code: int) -> None:
    network.draft([STEP])
    for _ in range(5):
        running = network.begin([STEP])
        network.work()
        replica, stream, payload = network.answers.pop()
        answer = pb.StreamDraftResponse(step_id=pb.StreamDraftResponse.FromString(payload).step_id)
        answer.error.code = code
        answer.error.retry_delay.FromMilliseconds(0)
        network.core.answered(replica, stream, answer.SerializeToString(), network.now_s)
        assert not network.core.end(running, network.now_s)[0]
        network.work()
    assert network.core.to_probe() == []
    assert [report.level for report in network.reports] == ["WARNING"]
    assert network.draft([STEP])[0]


def test_a_replica_that_asks_for_a_delay_is_left_alone_for_it(network: Network) -> None:
    network.draft([STEP])
    running = network.begin([STEP])
    network.work()
    replica, stream, payload = network.answers.pop()
    answer = pb.StreamDraftResponse(step_id=pb.StreamDraftResponse.FromString(payload).step_id)
    answer.error.code = 8
    answer.error.retry_delay.FromMilliseconds(500)
    network.core.answered(replica, stream, answer.SerializeToString(), network.now_s)
    network.core.end(running, network.now_s)
    num_payloads = len(network.payloads)
    assert not network.draft([STEP])[0]
    assert len(network.payloads) == num_payloads
    network.now_s += 0.6
    assert network.draft([STEP])[0]


def test_a_refused_opening_is_tried_again_after_a_pause(network: Network) -> None:
    running = network.begin([STEP])
    network.work()
    network.settle_opening(0, DraftLimitError("full", 0.3))
    assert not network.core.end(running, network.now_s)[0]
    assert not network.draft([STEP])[0]
    network.now_s += 0.4
    assert network.draft([STEP])[0]


def test_late_rows_are_reported_with_what_the_probe_finds(network: Network) -> None:
    for _ in range(3):
        network.core.end(network.begin([STEP]), network.now_s)
        network.now_s += 0.02
    network.work()
    assert network.reports == []
    network.core.probed(0, DrafterUnavailableError("UNAVAILABLE: the certificate is not trusted"))
    network.work()
    [report] = network.reports
    assert "no draft within 20 ms (UNAVAILABLE: the certificate is not trusted)" in report.text


def test_a_session_that_ended_while_it_was_opened_is_closed(network: Network) -> None:
    network.begin([STEP])
    network.work()
    network.core.finish(1)
    network.settle_opening(0)
    network.work()
    assert network.drafters[0].sessions == {}


def test_sessions_move_when_their_replica_is_down_and_new_ones_prefer_it_again() -> None:
    network = Network(2)
    steps = [SequenceStep(key, [key, 5], 4) for key in range(40)]
    expected = [drafted(step.token_ids, 4) for step in steps]
    assert [draft.token_ids for draft in network.draft(steps)] == expected
    at_first = [len(drafter.sessions) for drafter in network.drafters]
    assert sum(at_first) == 40
    assert min(at_first) > 5
    first = network.core._replicas[0]
    for _ in range(3):
        running = network.begin(steps)
        network.work()
        network.core.stream_ended(0, first.stream, UNAVAILABLE, network.now_s)
        for _ in range(len(network.answers)):
            network.deliver(0)
        network.now_s += 0.01
        # The sequences of the other replica have their drafts.
        drafts = network.core.end(running, network.now_s)
        assert sum(map(bool, drafts)) == at_first[1]
        assert network.core.state == "ok"
        network.now_s += 0.01
    assert network.core.counts.failed_steps == 3
    assert [draft.token_ids for draft in network.draft(steps)] == expected
    assert network.core.counts.failovers == at_first[0]
    assert len(network.drafters[1].sessions) == 40
    network.core.probed(0, None)
    more = [SequenceStep(key, [key, 6], 4) for key in range(100, 140)]
    held = set(network.drafters[0].sessions)
    assert all(network.draft([*steps, *more]))
    assert len(set(network.drafters[0].sessions) - held) > 5
    assert network.core.counts.failovers == at_first[0]


def test_rendezvous_moves_only_the_sessions_of_what_went() -> None:
    addresses = [f"unix:///drafter-{number}" for number in range(4)]
    before = {wire_id: preferred(wire_id, addresses) for wire_id in range(1, 400)}
    assert min(list(before.values()).count(address) for address in addresses) > 60
    after = {wire_id: preferred(wire_id, addresses[1:]) for wire_id in before}
    assert all(after[wire_id] == place for wire_id, place in before.items() if place != addresses[0])
    assert score(1, "unix:///drafter-0") == 6657225714182329686  # the same for ever: clients of several releases agree


def test_ids_on_the_wire_are_random_and_the_clients_own() -> None:
    found: list[int] = []
    for _ in range(2):
        network = Network()
        assert all(network.draft([SequenceStep(key, [key], 4) for key in (1, 2, 3)]))
        found += network.drafters[0].sessions
    assert len(set(found)) == 6
    assert min(found) > 3


def test_a_closed_core_drafts_no_more(network: Network) -> None:
    network.draft([STEP])
    network.core.close()
    network.work()
    assert network.drafters[0].sessions == {}
    assert not network.draft([STEP])[0]
    assert isinstance(network.core.open(5, network.now_s, noop()), DrafterUnavailableError)


def noop() -> Callable[[], None]:
    return lambda: None

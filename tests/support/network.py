"""The client's core, a simple drafter, and a simulated network between them that tests control."""

from __future__ import annotations

from dataclasses import dataclass, field

from speculant_graph.client.batches import InFlightBatch
from speculant_graph.client.core import ClientCore
from speculant_graph.client.session_registry import CloseSession, DropStream, Opening, OpenSession, Report, Send
from speculant_graph.errors import DrafterUnavailableError, SpeculantError
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import MAX_MESSAGE_BYTES
from speculant_graph.rpc.step_messages import OpenRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, DraftOptions, SequenceStep
from support.dict_drafter import DictDrafter

UNAVAILABLE = DrafterUnavailableError("UNAVAILABLE: gone")


@dataclass
class Network:
    """A core, its drafter, and the messages in transit between them."""

    now_s: float = 100.0
    openings: list[Opening] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafter = DictDrafter()
        self.core = ClientCore(
            "unix:///drafter",
            20.0,
            options=DraftOptions("greedy"),
            strategy="greedy",
            opening=OpenRequest(1, tenant="ours", graph="usual", learn=True),
        )
        self._sent: dict[int, int] = {}

    @property
    def is_paused(self) -> bool:
        return self.core.statistics().num_paused > 0

    def work(self, *, loses: bool = False) -> None:
        """Carry out the core's actions; openings and answers stay in transit, and with ``loses`` messages are lost."""
        for action in self.core.take_actions():
            match action:
                case Send(payload):
                    self._check(payload)
                    self.payloads.append(payload)
                    if not loses:
                        self.answers.append(self.drafter.answer(payload))
                case DropStream():
                    pass  # messages in transit still arrive
                case OpenSession(opening):
                    self.openings.append(opening)
                case CloseSession(wire_id, tenant):
                    self.closed.append((wire_id, tenant))
                    self.drafter.close(wire_id)
                case Report():
                    self.reports.append(action)

    def _check(self, payload: bytes) -> None:
        """Assert that no message leaves a gap after the tokens sent before it."""
        assert len(payload) < MAX_MESSAGE_BYTES / 4
        draft = pb.StreamDraftRequest.FromString(payload).draft
        for index, wire_id in enumerate(draft.session_ids):
            position = draft.positions[index] if draft.positions else 0
            assert wire_id != 0
            assert position <= self._sent.get(wire_id, 0)
            self._sent[wire_id] = max(position + draft.context_lengths[index], self._sent.get(wire_id, 0))

    def settle_opening(self, number: int, error: SpeculantError | None = None) -> None:
        opening = self.openings.pop(number % len(self.openings))
        answer = self.drafter.open(convert.encode_open_request(opening.request))
        self.core.opened(opening, error or convert.decode_open_response(answer), self.now_s)

    def deliver(self, number: int, *, keeps: bool = False) -> None:
        index = number % len(self.answers)
        self.core.answered(self.answers[index] if keeps else self.answers.pop(index), self.now_s)

    def refuse(self, code: int, retry_delay_ms: int = 0) -> None:
        """Answer the latest message with an error."""
        answer = pb.StreamDraftResponse(step_id=pb.StreamDraftResponse.FromString(self.answers.pop()).step_id)
        answer.error.code = code
        answer.error.retry_delay.FromMilliseconds(retry_delay_ms)
        self.core.answered(answer.SerializeToString(), self.now_s)

    def begin(self, steps: list[SequenceStep]) -> InFlightBatch:
        batch = self.core.begin(steps, self.now_s, lambda: None)
        assert batch is not None, "the drafter is not to be asked"
        return batch

    def draft(self, steps: list[SequenceStep]) -> list[Draft]:
        """Run one step on a network without faults."""
        running = self.core.begin(steps, self.now_s, lambda: None)
        self.work()
        if running is None:
            return [Draft()] * len(steps)
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
            self.core.stream_ended(UNAVAILABLE, self.now_s)
            self.now_s += 0.001
            self.core.end(running, self.now_s)
            self.now_s += 0.001
            self.work(loses=True)

    def recover(self, steps: list[SequenceStep]) -> None:
        """Let the drafter answer a probe, if it is down."""
        while self.is_paused:
            self.now_s += 0.1
            self.core.begin(steps, self.now_s, lambda: None)
            self.work()
            while self.answers:
                self.deliver(0)

"""The client's core, obvious drafters, and a network between them that tests hold in their hands."""

from __future__ import annotations

from dataclasses import dataclass, field

from speculant_graph.client.actions import CloseSession, DropStream, OpenSession, Report, Send, StartProbing
from speculant_graph.client.batches import InFlightBatch
from speculant_graph.client.core import ClientCore
from speculant_graph.client.sessions import Opening
from speculant_graph.config import ClientConfig
from speculant_graph.errors import DrafterUnavailableError, SpeculantError
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import MAX_MESSAGE_BYTES
from speculant_graph.rpc.messages import OpenRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, DraftOptions, SequenceStep
from support.dict_drafter import DictDrafter

UNAVAILABLE = DrafterUnavailableError("UNAVAILABLE: gone")


@dataclass
class Network:
    """A core, its drafters, and what is on the way between them."""

    num_replicas: int = 1
    now_s: float = 100.0
    openings: list[Opening] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)
    num_probings: int = 0

    def __post_init__(self) -> None:
        self.drafters = [DictDrafter() for _ in range(self.num_replicas)]
        self.core = ClientCore(
            [f"unix:///drafter-{number}" for number in range(self.num_replicas)],
            ClientConfig(address="unix:///unused", failures_before_pause=3, probe_interval_ms=50.0),
            options=DraftOptions("greedy"),
            strategy="greedy",
            opening=OpenRequest(1, tenant="ours", graph="usual", learn=True),
        )
        self._sent: dict[tuple[int, int], int] = {}

    def work(self, *, loses: bool = False) -> None:
        """Do what the core wants; openings and answers stay on the way, and messages may get lost."""
        for action in self.core.take_actions():
            match action:
                case Send(replica, payload):
                    self._check(replica, payload)
                    self.payloads.append(payload)
                    if not loses:
                        self.answers.append((replica, self.drafters[replica].answer(payload)))
                case DropStream():
                    pass  # what is on the way comes all the same
                case OpenSession(opening):
                    self.openings.append(opening)
                case CloseSession(replica, wire_id, tenant):
                    self.closed.append((wire_id, tenant))
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
        replica, payload = self.answers[place] if keeps else self.answers.pop(place)
        self.core.answered(replica, payload, self.now_s)

    def begin(self, steps: list[SequenceStep]) -> InFlightBatch:
        batch = self.core.begin(steps, self.now_s, lambda: None)
        assert batch is not None, "no replica can be asked"
        return batch

    def draft(self, steps: list[SequenceStep]) -> list[Draft]:
        """Run one step on a network without faults."""
        running = self.core.begin(steps, self.now_s, lambda: None)
        if running is None:
            return [Draft()] * len(steps)
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
                self.core.stream_ended(replica, UNAVAILABLE, self.now_s)
            self.now_s += 0.001
            self.core.end(running, self.now_s)
            self.now_s += 0.001
            self.work(loses=True)

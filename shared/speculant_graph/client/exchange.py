"""Steps out, answers in: step ids, late answers, and a stream that is given up when it stays silent.

Knows messages and streams, but not what a session is; every answer comes back with the request it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable

from speculant_graph.client.connection import StepStream
from speculant_graph.errors import DrafterUnavailableError, DraftRequestError, SpeculantError
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import StepAnswer, StepRequest
from speculant_graph.rpc.status import from_status, status_of_number
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from speculant_graph.types import StrategyName

_PATIENCE_S = 5.0
"""A stream that has been silent for so long, with steps to answer, is given up for a new one."""


class StepExchange:
    """Sends steps over one long-lived stream, which is made when the first is sent and again after it ended."""

    def __init__(self, stub: DrafterServiceStub, strategy: StrategyName, clock: Callable[[], float]) -> None:
        """Make an exchange; nothing is sent yet.

        Args:
            stub: where streams are made.
            strategy: what drafts are asked for.
            clock: monotonic time in seconds.
        """
        self._stub = stub
        self._strategy = strategy
        self._clock = clock
        self._stream: StepStream | None = None
        self._unanswered: dict[int, StepRequest] = {}
        self._last_step_id = 0
        self._last_sent_s = 0.0
        self.vocabulary_size = 0
        """Drafted token ids must be below it; it comes with the answer to an opened session."""

    def send(self, request: StepRequest) -> None:
        """Send a step; returns at once."""
        if self._stream is None:
            self._stream = StepStream(self._stub)
        self._last_step_id += 1
        self._unanswered[self._last_step_id] = request
        message = pb.StreamDraftRequest(step_id=self._last_step_id, draft=convert.encode_step_request(request))
        self._stream.send(message)
        self._last_sent_s = self._clock()

    @property
    def is_answered(self) -> bool:
        """Whether the step sent last has its answer, so that the answer received last is the one."""
        return self._last_step_id not in self._unanswered

    def receive(self, timeout_s: float) -> tuple[StepRequest, StepAnswer] | None:
        """Return the next answer, early or late, with its request; None if there is none in time.

        Raises:
            SpeculantError: the step failed, or the stream has ended; in the latter case it is dropped.
        """
        if self._stream is None:
            return None
        try:
            message = self._stream.receive(timeout_s)
        except SpeculantError:
            self.drop()
            raise
        if message is None:
            return None
        request = self._unanswered.pop(message.step_id, None)
        if request is None:
            raise DraftRequestError(f"the drafter answered step {message.step_id}, which was not asked")
        if message.WhichOneof("outcome") != "draft":
            raise from_status(status_of_number(message.error.code), message.error.message)
        answer = convert.decode_step_answer(
            message.draft,
            budgets=[sequence.node_budget or 0 for sequence in request.sequences],
            strategy=self._strategy,
            vocabulary_size=self.vocabulary_size,
        )
        return request, answer

    def check_patience(self) -> None:
        """Give up a stream that has been silent for long.

        Raises:
            DrafterUnavailableError: steps still wait for an answer, and not for long: one more would not help.
        """
        if not self._unanswered:
            return
        if self._clock() - self._last_sent_s < _PATIENCE_S:
            raise DrafterUnavailableError("the drafter hangs: earlier steps are not answered yet")
        self.drop()

    def drop(self) -> None:
        """End the stream; answers to what was sent will never come."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._unanswered.clear()

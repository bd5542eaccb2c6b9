"""The client of a drafter sidecar: one stream, a deadline per step, and never an exception while decoding.

Whatever goes wrong, a step without an answer is a step without a draft. Only new tokens are sent: the client
keeps the position that the server expects next. As the whole sequence comes with every step, a session that was
lost to a restart or an eviction is opened and filled again on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from loguru import logger

from speculant_graph.client.breaker import Breaker
from speculant_graph.client.connection import StepStream
from speculant_graph.client.counts import Counts
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftRequestError,
    SpeculantError,
    TokenizerMismatchError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.messages import (
    OpenAnswer,
    OpenRequest,
    SequenceAnswer,
    SequenceRequest,
    SequenceStatus,
    StepAnswer,
    StepOptions,
    StepRequest,
)
from speculant_graph.rpc.status import from_status, status_of_number
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    DrafterState,
    DrafterStatistics,
    Fingerprint,
    SequenceStep,
)

_MAX_TOKENS_PER_MESSAGE = 16_384
"""64 KiB: far below the message limit of any sensible server."""
_MAX_EXCHANGES_PER_STEP = 2
_PATIENCE_WITH_STREAM_S = 5.0
"""A stream that has been silent for so long, with steps to answer, is given up for a new one."""


@dataclass(slots=True)
class _Session:
    next_position: int = 0
    is_open: bool = False
    was_open: bool = False


class DrafterClient:
    """Drafts from a sidecar. Not to be shared between threads."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        tokenizer: Fingerprint | None,
        draft: DraftConfig,
        strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a client; it connects when the first session is opened.

        Args:
            config: address and patience.
            tokenizer: the verifier's; None leaves the comparison out.
            draft: strategy and cap of q; the number of nodes comes with every step.
            strict: raise if a session can't be opened, instead of going on without drafts.
            clock: monotonic time in seconds.

        Raises:
            ConfigError: the address has neither of the two forms.
        """
        self._config = config
        self._tokenizer = tokenizer
        self._strategy = draft.strategy
        self._options = StepOptions(draft.strategy, draft.max_candidates)
        self._strict = strict
        self._clock = clock
        self._channel = connect_channel(config.address)
        self._stub = DrafterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._breaker = Breaker(config.failures_before_pause, config.pause_ms / 1e3, clock)
        self._stream: StepStream | None = None
        self._sessions: dict[int, _Session] = {}
        self._vocabulary_size = 0
        self._last_step_id = 0
        self._unanswered: dict[int, StepRequest] = {}
        self._last_sent_s = 0.0
        self._closing: set[Any] = set()
        self._is_outage = False
        self._state: DrafterState = "ok"
        self._counts = Counts()

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""
        return self._state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""
        return self._counts.snapshot()

    def open(self, session_id: int) -> None:
        """Begin a session; if the drafter does not answer, its first steps try again.

        Raises:
            TokenizerMismatchError: the drafter's graph is of another tokenizer.
            SpeculantError: the session can't be opened, and the client is strict.
        """
        self._sessions[session_id] = _Session()
        if not self._strict and not self._breaker.allows():
            return
        try:
            self._check_stream()
            self._open_sessions([session_id], self._clock() + self._config.open_deadline_ms / 1e3)
        except TokenizerMismatchError:
            self._breaker.succeeded()
            raise
        except Exception as error:
            self._note_failure(error, is_outage=True)
            if self._strict:
                raise
        else:
            self._note_success()

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises."""
        drafts = [EMPTY_DRAFT] * len(steps)
        if not steps:
            return drafts
        self._counts.steps += 1
        if not self._breaker.allows():
            self._counts.failed_steps += 1
            return drafts
        started_s = self._clock()
        try:
            self._draft_into(drafts, steps, started_s + self._config.deadline_ms / 1e3)
        except Exception as error:
            # Not even an error of our own may stop the decoding.
            self._counts.failed_steps += 1
            self._note_failure(error)
        else:
            self._note_success()
            self._counts.round_trip_s.append(self._clock() - started_s)
        self._counts.drafted_nodes += sum(map(len, drafts))
        return drafts

    def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        session = self._sessions.pop(session_id, None)
        if session is None or not session.is_open:
            return
        request = pb.CloseSessionRequest(session_id=session_id)
        call = self._stub.CloseSession.future(request, timeout=self._config.open_deadline_ms / 1e3)
        # A call that nobody holds is cancelled.
        self._closing.add(call)
        call.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """End all sessions, the stream and the connection."""
        for session_id in list(self._sessions):
            self.finish(session_id)
        deadline_s = self._clock() + self._config.open_deadline_ms / 1e3
        for call in list(self._closing):
            with suppress(grpc.FutureTimeoutError):
                call.exception(timeout=max(deadline_s - self._clock(), 0.0))
        self._drop_stream()
        self._channel.close()

    def _draft_into(self, drafts: list[Draft], steps: Sequence[SequenceStep], deadline_s: float) -> None:
        self._check_stream()
        waiting = list(range(len(steps)))
        for _ in range(_MAX_EXCHANGES_PER_STEP):
            batch = [steps[index] for index in waiting]
            self._open_sessions(self._without_session(batch), deadline_s)
            answers = self._exchange(batch, deadline_s).sequences
            for index, answer in zip(waiting, answers, strict=True):
                drafts[index] = answer.draft
            waiting = [
                index
                for index, answer in zip(waiting, answers, strict=True)
                if self._must_resend(steps[index].session_id, answer)
            ]
            if not waiting:
                return
        raise DrafterUnavailableError("the drafter keeps losing its sessions; raise its max_sessions")

    def _must_resend(self, session_id: int, answer: SequenceAnswer) -> bool:
        session = self._sessions[session_id]
        if answer.status is SequenceStatus.OK:
            return False
        if answer.status is SequenceStatus.INVALID_TOKEN:
            # Trying again would not help, and other sequences are fine.
            self._counts.last_failure = "a token id is outside the vocabulary of the drafter's graph"
            return False
        if answer.status is SequenceStatus.OUT_OF_SYNC and answer.next_position < session.next_position:
            session.next_position = answer.next_position
        else:
            session.is_open = False
        return True

    def _without_session(self, steps: Sequence[SequenceStep]) -> list[int]:
        missing = []
        for step in steps:
            session = self._sessions.setdefault(step.session_id, _Session())
            # A sequence shorter than what the server has is another one.
            if not session.is_open or session.next_position > len(step.token_ids):
                missing.append(step.session_id)
        return missing

    def _open_sessions(self, session_ids: Sequence[int], deadline_s: float) -> None:
        """Open sessions that begin at position 0, all at the same time."""
        try:
            calls = [self._start_open(session_id, deadline_s) for session_id in session_ids]
            for session_id, call in zip(session_ids, calls, strict=True):
                answer = convert.decode_open_answer(call.result())
                if answer.next_position > 0:
                    answer = self._open_afresh(session_id, deadline_s)
                self._vocabulary_size = answer.tokenizer.vocabulary_size
                session = self._sessions[session_id]
                self._counts.reopened_sessions += session.was_open
                self._sessions[session_id] = _Session(is_open=True, was_open=True)
        except grpc.RpcError as error:
            # A call's RpcError is the call itself.
            failure = from_status(error.code(), error.details())
            if isinstance(failure, TokenizerMismatchError) and self._tokenizer is not None:
                name, address = self._tokenizer.name, self._config.address
                failure = TokenizerMismatchError(f"tokenizer {name} does not fit the drafter at {address}: {failure}")
            raise failure from error

    def _open_afresh(self, session_id: int, deadline_s: float) -> OpenAnswer:
        """Open a session under whose id the server still holds another sequence."""
        timeout_s = max(deadline_s - self._clock(), 0.0)
        self._stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=timeout_s)
        return convert.decode_open_answer(self._start_open(session_id, deadline_s).result())

    def _start_open(self, session_id: int, deadline_s: float) -> Any:
        sha256 = self._tokenizer.sha256 if self._tokenizer is not None else ""
        request = convert.encode_open_request(OpenRequest(session_id, sha256))
        return self._stub.OpenSession.future(request, timeout=max(deadline_s - self._clock(), 0.0))

    def _exchange(self, steps: Sequence[SequenceStep], deadline_s: float) -> StepAnswer:
        """Send what the server has not seen, and return the answer to the last message."""
        if self._stream is None:
            self._stream = StepStream(self._stub)
        for request in self._requests(steps):
            self._last_step_id += 1
            self._unanswered[self._last_step_id] = request
            draft = convert.encode_step_request(request)
            self._stream.send(pb.StreamDraftRequest(step_id=self._last_step_id, draft=draft))
        self._last_sent_s = self._clock()
        while True:
            answer = self._receive(deadline_s - self._clock())
            if answer is None:
                raise DrafterUnavailableError(f"no draft within {self._config.deadline_ms:g} ms")
            if self._last_step_id not in self._unanswered:
                return answer

    def _requests(self, steps: Sequence[SequenceStep]) -> list[StepRequest]:
        """Return the messages of a step: the last one drafts, others bring the tokens that do not fit into it."""
        share = max(_MAX_TOKENS_PER_MESSAGE // len(steps), 1)
        requests, last = [], []
        for step in steps:
            start, end = self._sessions[step.session_id].next_position, len(step.token_ids)
            while end - start > share:
                token_ids = tuple(step.token_ids[start : start + _MAX_TOKENS_PER_MESSAGE])
                part = SequenceRequest(token_ids, step.session_id, start, node_budget=0)
                requests.append(StepRequest((part,), self._options))
                start += len(token_ids)
            token_ids = tuple(step.token_ids[start:])
            last.append(SequenceRequest(token_ids, step.session_id, start, step.node_budget, step.seed))
        return [*requests, StepRequest(tuple(last), self._options)]

    def _receive(self, timeout_s: float) -> StepAnswer | None:
        """Return the next answer on the stream, early or late, after noting what the server has taken.

        Raises:
            SpeculantError: the step failed or the stream has ended; in the latter case it is dropped.
        """
        assert self._stream is not None
        try:
            message = self._stream.receive(timeout_s)
        except SpeculantError:
            self._drop_stream()
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
            vocabulary_size=self._vocabulary_size,
        )
        for sequence, outcome in zip(request.sequences, answer.sequences, strict=True):
            session = self._sessions.get(sequence.session_id or 0)
            if session is not None and outcome.status is SequenceStatus.OK:
                session.next_position = outcome.next_position
        return answer

    def _check_stream(self) -> None:
        """Read late answers, whose drafts nobody needs any more.

        Raises:
            DrafterUnavailableError: this is the try after a pause, and steps sent before it still wait for an
                answer: one more would not help.
        """
        while self._stream is not None:
            with suppress(SpeculantError):
                if self._receive(0.0) is None:
                    break
        if self._unanswered and self._breaker.state == "half-open":
            if self._clock() - self._last_sent_s < _PATIENCE_WITH_STREAM_S:
                raise DrafterUnavailableError("the drafter hangs: earlier steps are not answered yet")
            self._drop_stream()

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._unanswered.clear()

    def _note_success(self) -> None:
        self._breaker.succeeded()
        self._state = "ok"
        if self._is_outage:
            self._is_outage = False
            logger.info("the drafter at {} answers again", self._config.address)

    def _note_failure(self, error: Exception, *, is_outage: bool = False) -> None:
        """Count a failure; a single late answer is not yet an outage worth a warning."""
        self._breaker.failed()
        self._state = "unavailable"
        self._counts.last_failure = str(error) if isinstance(error, SpeculantError) else repr(error)
        if not self._is_outage and (is_outage or self._breaker.state == "open"):
            self._is_outage = True
            reason = self._counts.last_failure
            logger.warning("no drafts from the drafter at {}, going on without: {}", self._config.address, reason)

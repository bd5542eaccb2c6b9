"""The client of a drafter sidecar: one stream, a deadline per step, and never an exception while decoding.

Whatever goes wrong, a step without an answer is a step without a draft. Only new tokens are sent: the client
keeps the position that the server expects next. As the whole sequence comes with every step, a session that was
lost to a restart or an eviction is opened and filled again on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
from loguru import logger

from speculant_graph.client.breaker import Breaker
from speculant_graph.client.counts import Counts
from speculant_graph.client.exchange import StepExchange
from speculant_graph.client.sessions import SessionTable
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import DrafterUnavailableError, SpeculantError, TokenizerMismatchError
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.messages import OpenAnswer, OpenRequest, SequenceAnswer, StepOptions
from speculant_graph.rpc.status import from_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from speculant_graph.types import EMPTY_DRAFT, Draft, DrafterState, DrafterStatistics, Fingerprint, SequenceStep

_MAX_EXCHANGES_PER_STEP = 2


class DrafterClient:
    """Drafts from a sidecar. Not to be shared between threads."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        tokenizer: Fingerprint | None,
        draft: DraftConfig,
        strict: bool = False,
        wants_proposals: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a client; it connects when the first session is opened.

        Args:
            config: address and patience.
            tokenizer: the verifier's; None leaves the comparison out.
            draft: strategy and cap of q; the number of nodes comes with every step.
            strict: raise if a session can't be opened, instead of going on without drafts.
            wants_proposals: have the distributions q of sampling strategies sent; a verifier whose rule needs none
                saves the sidecar most of its work.
            clock: monotonic time in seconds.

        Raises:
            ConfigError: the address has neither of the two forms, or the sidecar does not serve the strategy.
        """
        convert.require_served(draft.strategy)
        self._config = config
        self._tokenizer = tokenizer
        self._options = StepOptions(draft.strategy, draft.max_candidates, omit_proposals=not wants_proposals)
        self._strict = strict
        self._clock = clock
        self._channel = connect_channel(config.address)
        self._stub = DrafterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._breaker = Breaker(config.failures_before_pause, config.probe_interval_ms / 1e3, clock)
        self._sessions = SessionTable()
        self._exchange = StepExchange(self._stub, draft.strategy, clock)
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
        self._sessions.add(session_id)
        if not self._strict and not self._breaker.allows():
            return
        try:
            self._read_late_answers()
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
        if not self._sessions.remove(session_id):
            return
        request = pb.CloseSessionRequest(session_id=session_id)
        call = self._stub.CloseSession.future(request, timeout=self._config.open_deadline_ms / 1e3)
        # A call that nobody holds is cancelled.
        self._closing.add(call)
        call.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """End all sessions, the stream and the connection."""
        for session_id in self._sessions:
            self.finish(session_id)
        deadline_s = self._clock() + self._config.open_deadline_ms / 1e3
        for call in list(self._closing):
            with suppress(grpc.FutureTimeoutError):
                call.exception(timeout=max(deadline_s - self._clock(), 0.0))
        self._exchange.drop()
        self._channel.close()

    def _draft_into(self, drafts: list[Draft], steps: Sequence[SequenceStep], deadline_s: float) -> None:
        self._read_late_answers()
        waiting = list(range(len(steps)))
        for _ in range(_MAX_EXCHANGES_PER_STEP):
            batch = [steps[index] for index in waiting]
            self._open_sessions(self._sessions.without_session(batch), deadline_s)
            answers = self._answers(batch, deadline_s)
            for index, answer in zip(waiting, answers, strict=True):
                drafts[index] = answer.draft
            waiting = [
                index
                for index, answer in zip(waiting, answers, strict=True)
                if self._sessions.must_resend(steps[index].session_id, answer)
            ]
            if not waiting:
                return
        raise DrafterUnavailableError("the drafter keeps losing its sessions; raise its max_sessions")

    def _answers(self, steps: Sequence[SequenceStep], deadline_s: float) -> Sequence[SequenceAnswer]:
        """Send what the server has not seen, and return the answer to the last message."""
        for request in self._sessions.requests(steps, self._options):
            self._exchange.send(request)
        while True:
            received = self._exchange.receive(deadline_s - self._clock())
            if received is None:
                raise DrafterUnavailableError(f"no draft within {self._config.deadline_ms:g} ms")
            self._sessions.note_answer(*received)
            if self._exchange.is_answered:
                return received[1].sequences

    def _read_late_answers(self) -> None:
        """Note what answers that came too late have taken; nobody needs their drafts any more.

        Raises:
            DrafterUnavailableError: this is the try after a pause, and steps sent before it still wait.
        """
        while True:
            with suppress(SpeculantError):
                received = self._exchange.receive(0.0)
                if received is None:
                    break
                self._sessions.note_answer(*received)
        if self._breaker.state == "half-open":
            self._exchange.check_patience()

    def _open_sessions(self, session_ids: Sequence[int], deadline_s: float) -> None:
        """Open sessions that begin at position 0, all at the same time."""
        try:
            calls = [self._start_open(session_id, deadline_s) for session_id in session_ids]
            for session_id, call in zip(session_ids, calls, strict=True):
                answer = convert.decode_open_answer(call.result())
                if answer.next_position > 0:
                    answer = self._open_afresh(session_id, deadline_s)
                self._exchange.vocabulary_size = answer.tokenizer.vocabulary_size
                self._counts.reopened_sessions += self._sessions.note_open(session_id)
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

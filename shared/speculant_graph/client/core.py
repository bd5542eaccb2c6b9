"""The client's state machine, which does no I/O: it takes events, and returns actions to run.

The state machine chooses the messages to send, interprets answers, and decides when to suspend requests. The state
machine does not send, wait or read a clock, so tests can feed it events in any order. The state machine is not
thread-safe.

Every draft step contains the whole sequence. If the drafter loses a session, or another drafter answers at the address,
the client opens the session again and resends the tokens. After any error, a sequence without an answer gets an empty
draft.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from speculant_graph.client.batches import (
    Entry,
    InFlightBatch,
    Message,
    SentMessage,
    pack,
)
from speculant_graph.client.breaker import SILENT, Breaker, is_refusal, retry_delay_s
from speculant_graph.client.session_registry import (
    ENDED,
    Action,
    Counts,
    DropStream,
    Opening,
    Report,
    Send,
    Session,
    SessionRegistry,
    new_wire_id,
)
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftRequestError,
    OverloadError,
    SpeculantError,
    TokenizerMismatchError,
    UnknownGraphError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.step_messages import OpenRequest, OpenResponse, SequenceStatus
from speculant_graph.strategies import STRATEGIES, StrategyName
from speculant_graph.types import (
    Draft,
    DrafterState,
    DrafterStatistics,
    DraftOptions,
    SequenceStep,
    SessionOptions,
)

_MAX_EXCHANGES_PER_STEP = 2
_MAX_UNANSWERED = 4_096
"""Maximum number of unanswered messages to remember; a drafter may never answer some of them."""
_LOSES_SESSIONS = DrafterUnavailableError("the drafter keeps losing its sessions; raise its server.max_session_memory")


class ClientCore:
    """Keeps the sessions, the running steps and the drafter state of one client."""

    def __init__(
        self,
        address: str,
        deadline_ms: float,
        *,
        options: DraftOptions,
        strategy: StrategyName,
        opening: OpenRequest,
        tokenizer_name: str = "",
        wire_ids: Callable[[], int] = new_wire_id,
    ) -> None:
        """Make a core without sessions.

        Args:
            address: the drafter's address, for error messages.
            deadline_ms: the deadline of a step, for error messages.
            options: default options of drafts.
            strategy: the default strategy, recorded in each draft made with it.
            opening: template of the request that opens a session; every session sets its own id.
            tokenizer_name: the verifier's tokenizer, for error messages.
            wire_ids: returns session ids that no other client uses.
        """
        self._address = address
        self._options, self._strategy = options, strategy
        self._tokenizer_name = tokenizer_name
        self._too_late = DrafterUnavailableError(f"no draft within {deadline_ms:g} ms")
        self._is_closed = False
        self.counts = Counts()
        """Counts so far."""
        self.state: DrafterState = "ok"
        """Whether the drafter answered the last step."""
        self._actions: list[Action] = []
        self.breaker = Breaker(address, lambda level, text: self._actions.append(Report(level, text)))
        """Circuit breaker that decides when to suspend requests to the drafter."""
        self._registry = SessionRegistry(self.breaker, self._actions, self.counts, request=opening, wire_ids=wire_ids)
        self._vocabulary_size = 0  # limit of drafted token ids; every opening sets it
        self._unanswered: dict[int, SentMessage] = {}  # by step id, oldest first
        self._step_ids = itertools.count(1)  # never reused, not even after the stream is replaced
        self._probe_id = 0

    def statistics(self) -> DrafterStatistics:
        """Return the current statistics, including whether the drafter is paused."""
        return replace(self.counts.snapshot(), num_paused=int(self.breaker.is_down))

    def take_actions(self) -> list[Action]:
        """Return the actions that have accumulated since the last call, in order."""
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    # --- calls of the user

    def open(
        self,
        session_id: int,
        now_s: float,
        callback: Callable[[], None],
        options: SessionOptions | None = None,
    ) -> Opening | SpeculantError | None:
        """Open a session, if it is not open.

        Args:
            session_id: the caller's id.
            now_s: current time.
            callback: called when the returned opening ends.
            options: options of a new session; they override the client's settings.

        Returns:
            The opening to wait for; None if the session is open; an error if it can't be opened now.
        """
        if self._is_closed:
            return DrafterUnavailableError("the client is closed; make another")
        session = self._registry.session(session_id, options)
        if session.is_open:
            return None
        self.probe(now_s)
        if self.breaker.is_down:
            return DrafterUnavailableError(f"the drafter at {self._address} is down: {self.counts.last_failure}")
        opening = self._registry.begin_opening(session, now_s)
        opening.callbacks.append(callback)
        return opening

    def record_open(self, opening: Opening, now_s: float) -> SpeculantError | None:
        """Record the outcome of an opening that a caller waited for; return the error, if any."""
        error = opening.error if opening.is_over else DrafterUnavailableError("the drafter did not open the session")
        if error is None:
            self.state = "ok"
            self.breaker.record_success()
        elif isinstance(error, TokenizerMismatchError):
            self.state, self.counts.last_failure = "unavailable", str(error)
        elif isinstance(error, UnknownGraphError):  # this session's options are wrong; the drafter is healthy
            self.counts.last_failure = str(error)
        elif error is not ENDED:
            self.state, self.counts.last_failure = "unavailable", str(error)
            self._record_failure(error, opening.started_s, now_s)
            self.breaker.report_outage(str(error))
        return error

    def begin(self, steps: Sequence[SequenceStep], now_s: float, finished: Callable[[], None]) -> InFlightBatch | None:
        """Start a step for a batch of sequences.

        Args:
            steps: at least one sequence.
            now_s: current time.
            finished: called if all sequences are resolved before :meth:`end`.

        Returns:
            The running batch; None if no request is sent to the drafter.
        """
        self.counts.steps += 1
        if self.breaker.is_down:
            self.probe(now_s)
        if self._is_closed or self.breaker.is_down:
            self.counts.failed_steps += 1
            self.counts.skipped_steps += 1
            self.state = "unavailable"
            return None
        batch = InFlightBatch(steps, now_s, finished)
        self._advance(batch, range(len(steps)), now_s)
        return batch

    def end(self, batch: InFlightBatch, now_s: float) -> list[Draft]:
        """End a step, even if answers are missing; return its drafts."""
        batch.is_over = True
        for index in list(batch.waiting):
            batch.fail(index, self._too_late)
        error = batch.failure
        if batch.is_reached:
            self.breaker.record_success()
        if error is not None:
            self.counts.last_failure = str(error)
            if not batch.is_reached and not isinstance(error, UnknownGraphError):
                self._record_failure(error, batch.started_s, now_s)
        if batch.has_failed:
            self.counts.failed_steps += 1
            self.counts.skipped_steps += not batch.has_sent
        else:
            self.counts.round_trip_s.append(now_s - batch.started_s)
        if batch.is_answered:
            self.state = "ok"
        elif self.breaker.is_resting(now_s) or not isinstance(error, UnknownGraphError | None):
            self.state = "unavailable"  # a refused or paused session is not an outage
        self.counts.drafted_nodes += sum(map(len, batch.drafts))
        return batch.drafts

    def record_defect(self, error: Exception) -> None:
        """Record a step that failed because of an unexpected error in this client."""
        reason = repr(error)
        if reason != self.counts.last_failure:
            self._actions.append(Report("WARNING", f"drafting failed, continuing without drafts: {reason}"))
        self.counts.failed_steps += 1
        self.state, self.counts.last_failure = "unavailable", reason

    def probe(self, now_s: float) -> None:
        """Probe a drafter that is down by sending it a step without sequences. No step waits for a probe's answer."""
        if self.breaker.has_lost_probe(now_s):
            self._drop_stream(SILENT)
        if self.breaker.begin_probe(now_s):
            self._probe_id = next(self._step_ids)
            self._actions.append(Send(convert.request_writer().payload(self._probe_id)))

    def finish(self, session_id: int) -> None:
        """End a session; unknown ids are ignored."""
        self._registry.finish(session_id)

    def close(self) -> None:
        """Close all sessions and the stream, and fail running steps."""
        self._is_closed = True
        self._registry.finish_all()
        self._drop_stream(ENDED)

    # --- events of the connection

    def answered(self, payload: bytes, now_s: float) -> None:
        """Handle an answer from the stream, even if it is late."""
        try:
            step_id = convert.read_answer_step_id(payload)
        except SpeculantError as error:
            self._drop_stream(error)
            return
        sent = self._unanswered.pop(step_id, None)
        if sent is None and step_id != self._probe_id:  # an unknown step, or a second answer
            return
        try:
            decoded = convert.decode_step_answer(
                payload,
                budgets=[entry.node_budget for entry in sent.entries] if sent is not None else (),
                strategy=self._strategy if sent is None else sent.strategy,
                vocabulary_size=self._vocabulary_size,
            )
        except SpeculantError as error:
            self._refused(sent, error, now_s)
            return
        if sent is None:
            self.breaker.record_probe(None)
            return
        batch = sent.batch
        self.counts.late_answers += batch.is_over
        batch.is_reached = batch.is_reached or not batch.is_over
        again = []
        outcomes = zip(sent.entries, decoded.statuses, decoded.next_positions, decoded.drafts, strict=True)
        for entry, status, position, draft in outcomes:
            must_resend = self._record_outcome(entry, status, position, decoded.draft_id)
            if entry.batch_index not in batch.waiting:
                continue
            if must_resend:
                again.append(entry.batch_index)
            else:
                batch.is_answered = True
                batch.resolve(entry.batch_index, draft)
        if again:
            self._advance(batch, again, now_s)

    def stream_ended(self, error: SpeculantError, now_s: float) -> None:
        """Handle the end of the stream; the next step starts a new one."""
        if is_refusal(error):  # an immediate retry would be refused, too
            self.breaker.retry_after_s = max(self.breaker.retry_after_s, now_s + retry_delay_s(error))
        self._drop_stream(error)

    def opened(self, opening: Opening, outcome: OpenResponse | SpeculantError, now_s: float) -> None:
        """Record the outcome of opening a session, and continue or fail the steps that waited for it."""
        if isinstance(outcome, TokenizerMismatchError) and self._tokenizer_name:
            outcome = TokenizerMismatchError(
                f"the drafter at {self._address} refuses tokenizer {self._tokenizer_name}: {outcome}"
            )
        if isinstance(outcome, OpenResponse):
            self._vocabulary_size = outcome.tokenizer.vocabulary_size
        self._registry.record_opened(opening, outcome, now_s)
        for callback in opening.callbacks:
            callback()
        for batch, index in opening.waiting:
            if opening.error is not None:
                batch.fail(index, opening.error)
            elif index in batch.waiting:
                self._advance(batch, [index], now_s)

    # --- steps

    def _advance(self, batch: InFlightBatch, indices: Iterable[int], now_s: float) -> None:
        """For each waiting sequence, request a draft, open its session, or mark it as failed."""
        ready: dict[DraftOptions, list[tuple[int, SequenceStep, Session]]] = {}
        for index in indices:
            step = batch.steps[index]
            session = self._registry.session(step.session_id)
            if session.holds_another_text(step):
                self._registry.restart(session)
            if self.breaker.is_resting(now_s) or now_s < session.retry_after_s:
                batch.fail(index, None)
            elif batch.num_exchanges[index] == _MAX_EXCHANGES_PER_STEP:
                batch.fail(index, _LOSES_SESSIONS)
            elif session.is_open:
                ready.setdefault(step.options, []).append((index, step, session))
            else:
                self._registry.begin_opening(session, now_s).waiting.append((batch, index))
                batch.has_sent = True
        for requested, sequences in ready.items():
            batch.has_sent = True
            options = _asked_for(requested, self._options, self._strategy)
            for message in pack(sequences, options, partial(self._refuse, batch)):
                self._send(batch, message, options)
            for index, step, session in sequences:
                session.record_sent(step)
                batch.num_exchanges[index] += 1

    def _send(self, batch: InFlightBatch, message: Message, options: DraftOptions) -> None:
        step_id = next(self._step_ids)
        self._unanswered[step_id] = SentMessage(batch, message.entries, options.strategy or self._strategy)
        if len(self._unanswered) > _MAX_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]
        self._actions.append(Send(message.request.payload(step_id)))

    @staticmethod
    def _refuse(batch: InFlightBatch, index: int, error: Exception) -> None:
        """Mark a sequence that can't be sent as failed."""
        if not isinstance(error, SpeculantError):
            reason = f"a sequence can't be sent ({type(error).__name__})"
            error = DraftRequestError(reason, fix="give ids and budgets of 0 or more")
        batch.fail(index, error)

    def _record_outcome(self, entry: Entry, status: int, position: int, draft_id: int) -> bool:
        """Record how much of a sequence the drafter has; return whether the sequence must be sent again."""
        session, is_current = entry.session, entry.is_current
        if status == SequenceStatus.OK and entry.end <= position <= (session.num_sent if is_current else entry.end):
            if is_current:
                session.position = max(session.position, position)
                session.draft_id = draft_id
            return False
        if not is_current:
            return True
        if status == SequenceStatus.OUT_OF_SYNC and position < entry.start:
            session.position = min(session.position, position)
        elif status == SequenceStatus.SESSION_LOST:
            self._registry.record_lost(session)
        else:
            self._registry.restart(session)  # the drafter has tokens that were not sent
        return True

    # --- failures

    def _refused(self, sent: SentMessage | None, error: SpeculantError, now_s: float) -> None:
        """Handle an error response to a message."""
        if isinstance(error, OverloadError):
            self.breaker.retry_after_s = max(self.breaker.retry_after_s, now_s + error.retry_delay_s)
        if sent is None:
            self.breaker.record_probe(error)
            return
        self.counts.late_answers += sent.batch.is_over
        for entry in sent.entries:
            sent.batch.fail(entry.batch_index, error)

    def _record_failure(self, error: SpeculantError, started_s: float, now_s: float) -> None:
        was_down = self.breaker.is_down
        self.breaker.record_failure(error, started_s, now_s, was_late=error is self._too_late)
        if self.breaker.is_down and not was_down:
            self._drop_stream(error)  # a drafter that is back must not get old messages

    def _drop_stream(self, error: SpeculantError) -> None:
        self._actions.append(DropStream())
        self.breaker.record_probe(error)
        lost, self._unanswered = self._unanswered, {}
        for sent in lost.values():
            for entry in sent.entries:
                sent.batch.fail(entry.batch_index, error)


@lru_cache(maxsize=256)
def _asked_for(requested: DraftOptions, own: DraftOptions, strategy: StrategyName) -> DraftOptions:
    """Return the options for a draft request: the step's options override the client's."""
    options = requested.over(own)
    has_q = STRATEGIES[options.strategy or strategy].has_proposals and not options.omit_proposals
    return options if has_q or options.siblings == "none" else replace(options, siblings="none")

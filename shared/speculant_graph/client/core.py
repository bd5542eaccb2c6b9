"""The client without its sockets: events in, actions out.

It decides what is sent to which replica, what an answer means, and when a drafter is left alone. It neither sends nor
waits nor reads a clock, so that tests can play any order of events. Not to be called by two threads at the same time.

As the whole sequence comes with every step, a session that a replica has lost, or that moves to another one, is opened
and filled again on the way. Whatever goes wrong, a sequence without an answer is a sequence without a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from speculant_graph.client.actions import Action, DropStream, Report, Send
from speculant_graph.client.batches import Entry, InFlightBatch, SentMessage
from speculant_graph.client.counts import Counts
from speculant_graph.client.packing import Message, RequestedOptions, pack, with_requested
from speculant_graph.client.registry import ENDED, SessionRegistry
from speculant_graph.client.replica import Replica, is_refusal, retry_delay_s
from speculant_graph.client.sessions import Opening, Session, new_wire_id
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    SpeculantError,
    TokenizerMismatchError,
    UnknownGraphError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import OpenAnswer, OpenRequest, SequenceAnswer, SequenceStatus, StepRequest
from speculant_graph.types import (
    Draft,
    DrafterState,
    DrafterStatistics,
    DraftOptions,
    SequenceStep,
    SessionOptions,
    StrategyName,
)

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig

_MAX_EXCHANGES_PER_STEP = 2
_LOSES_SESSIONS = DrafterUnavailableError("the drafter keeps losing its sessions; raise its server.max_sessions")


class ClientCore:
    """Sessions, replicas and running steps of one client."""

    def __init__(
        self,
        addresses: Sequence[str],
        config: ClientConfig,
        *,
        options: DraftOptions,
        strategy: StrategyName,
        opening: OpenRequest,
        tokenizer_name: str = "",
        wire_ids: Callable[[], int] = new_wire_id,
    ) -> None:
        """Make a core without sessions.

        Args:
            addresses: of the replicas; they are known by their indices.
            config: patience.
            options: how drafts are asked for.
            strategy: named in the drafts.
            opening: what every session is opened with, but for its id.
            tokenizer_name: the verifier's tokenizer, for messages to people.
            wire_ids: makes session ids that no other client uses.
        """
        self._actions: list[Action] = []
        self._replicas = [
            Replica(index, address, config.failures_before_pause, self._actions)
            for index, address in enumerate(addresses)
        ]
        self._options, self._strategy = options, strategy
        self._draws = strategy == "sampling" and not options.omit_proposals
        self._tokenizer_name = tokenizer_name
        self._pause_s = config.probe_interval_ms / 1e3
        self._too_late = DrafterUnavailableError(f"no draft within {config.deadline_ms:g} ms")
        self._is_closed = False
        self.counts = Counts()
        """What was counted so far."""
        self._registry = SessionRegistry(
            self._replicas, self._actions, self.counts, request=opening, wire_ids=wire_ids, pause_s=self._pause_s
        )
        self.state: DrafterState = "ok"
        """Whether the last step was answered."""

    def statistics(self) -> DrafterStatistics:
        """Return the counts as they are now, and how many replicas are left alone."""
        paused = sum(replica.is_down for replica in self._replicas)
        return replace(self.counts.snapshot(), replicas=len(self._replicas), paused_replicas=paused)

    def take_actions(self) -> list[Action]:
        """Return what is to be done since the last call, in order."""
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    # --- what the caller does

    def open(
        self,
        session_id: int,
        now_s: float,
        callback: Callable[[], None],
        options: SessionOptions | None = None,
    ) -> Opening | SpeculantError | None:
        """Begin a session; one that has begun goes on.

        Args:
            session_id: the caller's id.
            now_s: now.
            callback: called when the opening that is returned is over.
            options: what a session that begins wants beside the client's settings.

        Returns:
            The opening to wait for, None if the session is open, or why it can't be opened now.
        """
        if self._is_closed:
            return DrafterUnavailableError("the client is closed; make another")
        session = self._registry.session(session_id, options)
        replica = self._registry.assigned_replica(session)
        if session.is_open:
            return None
        if replica.is_down:
            return DrafterUnavailableError(f"the drafter at {replica.address} is down: {self.counts.last_failure}")
        opening = self._registry.begin_opening(session, now_s)
        opening.callbacks.append(callback)
        return opening

    def note_open(self, opening: Opening, now_s: float) -> SpeculantError | None:
        """Note the outcome of an opening that a caller waited for; return why it failed."""
        replica = self._replicas[opening.replica]
        error = opening.error if opening.is_over else DrafterUnavailableError("the drafter did not open the session")
        if error is None:
            self.state = "ok"
            replica.note_success()
        elif isinstance(error, TokenizerMismatchError):
            self.state, self.counts.last_failure = "unavailable", str(error)
        elif isinstance(error, UnknownGraphError):  # a request of this session: the drafter is well
            self.counts.last_failure = str(error)
        elif error is not ENDED:
            self.state, self.counts.last_failure = "unavailable", str(error)
            self._note_failure(replica, error, opening.started_s, now_s, was_late=False)
            replica.report_outage(str(error))
        return error

    def begin(self, steps: Sequence[SequenceStep], now_s: float, finished: Callable[[], None]) -> InFlightBatch | None:
        """Begin a step of a batch.

        Args:
            steps: at least one.
            now_s: now.
            finished: called when all sequences are resolved before :meth:`end`.

        Returns:
            What is under way; None if no replica can be asked.
        """
        self.counts.steps += 1
        if self._is_closed or all(replica.is_down for replica in self._replicas):
            self.counts.failed_steps += 1
            self.counts.skipped_steps += 1
            self.state = "unavailable"
            return None
        batch = InFlightBatch(steps, now_s, finished)
        self._advance(batch, range(len(steps)), now_s)
        return batch

    def end(self, batch: InFlightBatch, now_s: float) -> list[Draft]:
        """End a step, complete or not; return its drafts."""
        batch.is_over = True
        for replica in batch.waiting.values():
            batch.failures.setdefault(replica, self._too_late)
        batch.waiting.clear()
        for index in batch.answered:
            self._replicas[index].note_success()
        for index, error in batch.failures.items():
            if error is not None:
                self.counts.last_failure = str(error)
                if index not in batch.answered and not isinstance(error, UnknownGraphError):
                    late = error is self._too_late
                    self._note_failure(self._replicas[index], error, batch.started_s, now_s, was_late=late)
        if batch.failures:
            self.counts.failed_steps += 1
            self.counts.skipped_steps += not batch.has_sent
        else:
            self.counts.round_trip_s.append(now_s - batch.started_s)
        if batch.is_answered:
            self.state = "ok"
        elif any(self._is_outage(index, error, now_s) for index, error in batch.failures.items()):
            self.state = "unavailable"
        self.counts.drafted_nodes += sum(map(len, batch.drafts))
        return batch.drafts

    def note_defect(self, error: Exception) -> None:
        """Note a step that an error of our own ended."""
        reason = repr(error)
        if reason != self.counts.last_failure:
            self._actions.append(Report("WARNING", f"drafting failed, going on without drafts: {reason}"))
        self.counts.failed_steps += 1
        self.state, self.counts.last_failure = "unavailable", reason

    def finish(self, session_id: int) -> None:
        """End a session; unknown ids are ignored."""
        self._registry.finish(session_id)

    def close(self) -> None:
        """End all sessions, streams and running steps."""
        self._is_closed = True
        self._registry.finish_all()
        for replica in self._replicas:
            self._drop_stream(replica, ENDED)

    # --- what the client round it reports

    def answered(self, replica_index: int, payload: bytes, now_s: float) -> None:
        """Take an answer from a stream, in time or not."""
        replica = self._replicas[replica_index]
        try:
            step_id = convert.read_answer_step_id(payload)
        except SpeculantError as error:
            self._drop_stream(replica, error)
            return
        sent = replica.unanswered.pop(step_id, None)
        if sent is None:  # not asked, or answered twice
            return
        batch = sent.batch
        self.counts.late_answers += batch.is_over
        try:
            decoded = convert.decode_step_answer(
                payload, budgets=sent.budgets, strategy=self._strategy, vocabulary_size=replica.vocabulary_size
            )
        except SpeculantError as error:
            if isinstance(error, DraftLimitError):
                replica.retry_after_s = max(replica.retry_after_s, now_s + error.retry_delay_s)
            for entry in sent.entries:
                batch.fail(entry.batch_index, replica_index, error)
            return
        if not batch.is_over:
            batch.answered.add(replica_index)
        again = []
        for entry, outcome in zip(sent.entries, decoded.sequences, strict=True):
            must_resend = self._note_outcome(entry, outcome, decoded.draft_id)
            if entry.batch_index not in batch.waiting:
                continue
            if must_resend:
                again.append(entry.batch_index)
            else:
                batch.is_answered = True
                batch.resolve(entry.batch_index, outcome.draft)
        if again:
            self._advance(batch, again, now_s)

    def stream_ended(self, replica_index: int, error: SpeculantError, now_s: float) -> None:
        """Take the end of a stream; the next step begins another."""
        replica = self._replicas[replica_index]
        if is_refusal(error):  # as it would be a moment later
            replica.retry_after_s = max(replica.retry_after_s, now_s + retry_delay_s(error, self._pause_s))
        self._drop_stream(replica, error)

    def opened(self, opening: Opening, outcome: OpenAnswer | SpeculantError, now_s: float) -> None:
        """Take the outcome of an opening."""
        if isinstance(outcome, TokenizerMismatchError) and self._tokenizer_name:
            address = self._replicas[opening.replica].address
            outcome = TokenizerMismatchError(
                f"tokenizer {self._tokenizer_name} does not fit the drafter at {address}: {outcome}"
            )
        self._registry.note_opened(opening, outcome, now_s)
        for callback in opening.callbacks:
            callback()
        for batch, index in opening.waiting:
            if opening.error is not None:
                batch.fail(index, opening.replica, opening.error)
            elif index in batch.waiting:
                self._advance(batch, [index], now_s)

    def probed(self, replica_index: int, error: SpeculantError | None) -> None:
        """Take the outcome of a probe; None: it was answered."""
        replica = self._replicas[replica_index]
        if error is not None:
            self.counts.last_failure = str(error)
        replica.note_probe(error)

    def to_probe(self) -> list[int]:
        """Return the replicas that are down."""
        return [replica.index for replica in self._replicas if replica.is_down and not self._is_closed]

    # --- steps

    def _advance(self, batch: InFlightBatch, indices: Iterable[int], now_s: float) -> None:
        """Do what comes next for sequences that wait: leave them out, open their sessions, or ask."""
        ready: dict[tuple[int, RequestedOptions], list[tuple[int, SequenceStep, Session]]] = {}
        for index in indices:
            step = batch.steps[index]
            session = self._registry.session(step.session_id)
            if session.holds_another_text(step):
                self._registry.restart(session)
            replica = self._registry.assigned_replica(session)
            batch.waiting[index] = replica.index
            if replica.is_down or now_s < replica.retry_after_s or now_s < session.retry_after_s:
                batch.fail(index, replica.index, None)
            elif batch.num_exchanges[index] == _MAX_EXCHANGES_PER_STEP:
                batch.fail(index, replica.index, _LOSES_SESSIONS)
            elif session.is_open:
                requested = step.siblings if self._draws else "none", step.max_depth, step.temperature
                ready.setdefault((replica.index, requested), []).append((index, step, session))
            else:
                self._registry.begin_opening(session, now_s).waiting.append((batch, index))
                batch.has_sent = True
        for (replica_index, requested), sequences in ready.items():
            batch.has_sent = True
            options = with_requested(self._options, requested)
            for message in pack(sequences, options):
                self._send(batch, self._replicas[replica_index], message, options)
            for index, step, session in sequences:
                session.note_sent(step)
                batch.num_exchanges[index] += 1

    def _send(self, batch: InFlightBatch, replica: Replica, message: Message, options: DraftOptions) -> None:
        budgets = [sequence.node_budget or 0 for sequence in message.sequences]
        step_id = replica.note_sent(SentMessage(batch, message.entries, budgets))
        request = StepRequest(message.sequences, options)
        try:
            payload = convert.encode_step(step_id, request)
        except Exception as error:  # whatever a caller calls a token
            del replica.unanswered[step_id]
            if len(message.entries) > 1:
                for sequence, entry in zip(message.sequences, message.entries, strict=True):
                    self._send(batch, replica, Message([sequence], [entry]), options)
                return
            reason = DraftRequestError(
                f"a sequence can't be sent ({type(error).__name__}); give ids and budgets from 0 up"
            )
            batch.fail(message.entries[0].batch_index, replica.index, reason)
            return
        self._actions.append(Send(replica.index, payload))

    def _note_outcome(self, entry: Entry, outcome: SequenceAnswer, draft_id: int) -> bool:
        """Note what a replica has taken of a sequence; return whether the sequence must be sent again."""
        session, status, position = entry.session, outcome.status, outcome.next_position
        is_current = entry.is_current
        if status is SequenceStatus.INVALID_TOKEN:
            return False  # what a server refuses once it will refuse again
        if status is SequenceStatus.OK and entry.end <= position <= (session.num_sent if is_current else entry.end):
            if is_current:
                session.position = max(session.position, position)
                session.draft_id = draft_id
            return False
        if not is_current:
            return True
        if status is SequenceStatus.OUT_OF_SYNC and position < entry.start:
            session.position = min(session.position, position)
        elif status is SequenceStatus.SESSION_LOST:
            self._registry.note_lost(session)
        else:
            self._registry.restart(session)  # the replica holds what was not sent
        return True

    # --- failures

    def _is_outage(self, index: int, error: SpeculantError | None, now_s: float) -> bool:
        """Return whether a failure is one of the replica, and not of a session that was refused."""
        replica = self._replicas[index]
        rests = replica.is_down or now_s < replica.retry_after_s
        return rests if error is None else not isinstance(error, UnknownGraphError)

    def _note_failure(
        self, replica: Replica, error: SpeculantError, started_s: float, now_s: float, *, was_late: bool
    ) -> None:
        was_open = replica.is_down
        replica.note_failure(error, started_s, now_s, was_late=was_late)
        if replica.is_down and not was_open:
            self._drop_stream(replica, error)  # nothing old must wait in it when the drafter is back

    def _drop_stream(self, replica: Replica, error: SpeculantError) -> None:
        self._actions.append(DropStream(replica.index))
        for sent in replica.drop_unanswered():
            for entry in sent.entries:
                sent.batch.fail(entry.batch_index, replica.index, error)

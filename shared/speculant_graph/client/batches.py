"""A running ``draft()`` call, and the messages that it is split into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speculant_graph._core import RequestWriter
from speculant_graph.client.session_registry import Session
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.convert import request_writer
from speculant_graph.strategies import StrategyName
from speculant_graph.types import EMPTY_DRAFT, Draft, DraftOptions, Feedback, SequenceStep, TokenId

MAX_TOKENS_PER_MESSAGE = 16_384
"""Maximum number of tokens and feedback values in a message. This many values take 64 KiB, far below the message limit
of any sensible server."""
MAX_SEQUENCES_PER_MESSAGE = 256
_MAX_ANSWER_BYTES = 700_000
"""Maximum expected size of a response, in bytes; client and server allow messages of up to 1 MiB."""
_NODE_BYTES, _CANDIDATE_BYTES = 16, 8


class InFlightBatch:
    """A batch of sequences, each of which is either waiting for its draft or resolved."""

    def __init__(self, steps: Sequence[SequenceStep], started_s: float, finished: Callable[[], None]) -> None:
        """Start a batch; ``finished`` is called once, when the last sequence is resolved in time."""
        self.steps = steps
        self.started_s = started_s
        self._finished = finished
        self.drafts: list[Draft] = [EMPTY_DRAFT] * len(steps)
        self.waiting = set(range(len(steps)))
        """Indices of the sequences that are still waiting for a draft."""
        self.num_exchanges = [0] * len(steps)
        self.has_failed = False
        """Whether any sequence of the batch was resolved without an answer."""
        self.failure: SpeculantError | None = None
        """The first error of a sequence in the batch, if any. While requests to the drafter are suspended, sequences
        fail without an error."""
        self.has_sent = False
        """Whether any request of the batch was made to the drafter."""
        self.is_reached = False
        """Whether the drafter answered any message in time."""
        self.is_answered = False
        """Whether any sequence was answered in time."""
        self.is_over = False
        """Whether the caller has stopped waiting, so that further answers count as late."""

    def resolve(self, index: int, draft: Draft = EMPTY_DRAFT) -> None:
        """Resolve a sequence with its draft."""
        if index not in self.waiting:
            return
        self.waiting.discard(index)
        self.drafts[index] = draft
        if not self.waiting:
            self._finished()

    def fail(self, index: int, error: SpeculantError | None) -> None:
        """Resolve a sequence that gets no answer, and record the batch's first error."""
        if index in self.waiting:
            self.has_failed = True
            self.failure = self.failure or error
            self.resolve(index)


class Entry(NamedTuple):
    """One sequence in a request message."""

    batch_index: int
    """Index of the sequence in the batch; -1 if nothing waits for the answer."""
    session: Session
    wire_id: int
    """The session's id on the wire at the time when the message was sent."""
    start: int
    """Position in the sequence of the first token that the message sends."""
    end: int
    """Position in the sequence after the last token that the message sends."""
    node_budget: int
    """Maximum number of draft nodes requested for the sequence."""

    @property
    def is_current(self) -> bool:
        """Whether the session still has the wire id that was sent."""
        return self.session.wire_id == self.wire_id


@dataclass(slots=True)
class Message:
    """A request message that is being written, and the sequences in it."""

    request: RequestWriter
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class SentMessage:
    """An unanswered message."""

    batch: InFlightBatch
    entries: list[Entry]
    strategy: StrategyName
    """The requested strategy."""


def pack(
    batch: Sequence[tuple[int, SequenceStep, Session]], options: DraftOptions, refuse: Callable[[int, Exception], None]
) -> Iterator[Message]:
    """Yield messages that send the new tokens of every sequence and request its draft, in sending order.

    A long text is split: its first chunks are separate messages that request no draft.

    Args:
        batch: sequences of a step, each with its index in the step and its open session.
        options: options of the requested drafts.
        refuse: called with the index of a sequence that can't be sent, and the error, such as an invalid token.
    """
    node_bytes = _NODE_BYTES
    if options.max_candidates and not options.omit_proposals:
        node_bytes += _CANDIDATE_BYTES * options.max_candidates
    try:
        message, num_tokens, num_bytes = Message(request_writer(options)), 0, 0
    except Exception as error:
        for index, _, _ in batch:
            refuse(index, error)
        return
    for index, step, session in batch:
        start, end = session.position, len(step.token_ids)
        feedback = session.fitting_feedback(step.feedback)
        try:
            while end - start > MAX_TOKENS_PER_MESSAGE:
                stop = start + MAX_TOKENS_PER_MESSAGE
                chunk = Message(request_writer(options))
                _add(chunk, -1, session, start, step.token_ids[start:stop], None, feedback)
                yield chunk
                start, feedback = stop, None
            size = end - start + (0 if feedback is None else feedback.rows.size)
            answer_bytes = step.node_budget * node_bytes
            if message.entries and (
                num_tokens + size > MAX_TOKENS_PER_MESSAGE
                or num_bytes + answer_bytes > _MAX_ANSWER_BYTES
                or len(message.entries) == MAX_SEQUENCES_PER_MESSAGE
            ):
                yield message
                message, num_tokens, num_bytes = Message(request_writer(options)), 0, 0
            _add(message, index, session, start, step.token_ids[start:], step, feedback)
            num_tokens, num_bytes = num_tokens + size, num_bytes + answer_bytes
        except Exception as error:
            refuse(index, error)
    if message.entries:
        yield message


def _add(
    message: Message,
    index: int,
    session: Session,
    start: int,
    token_ids: Sequence[TokenId],
    step: SequenceStep | None,
    feedback: Feedback | None,
) -> None:
    """Add a session's tokens to a message. If a step is given, also request a draft for it."""
    budget, seed, least = (0, 0, 0.0) if step is None else (step.node_budget, step.seed, step.least_probability)
    told = () if feedback is None else (feedback.draft_id, feedback.nodes, feedback.rows)
    message.request.add(token_ids, session.wire_id, start, budget, seed, least, *told)
    message.entries.append(Entry(index, session, session.wire_id, start, start + len(token_ids), budget))

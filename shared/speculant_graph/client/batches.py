"""One ``draft()`` call while it runs, and the messages that it is cut into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from speculant_graph.client.session_registry import Session
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.step_messages import SequenceRequest
from speculant_graph.types import EMPTY_DRAFT, CouplingName, Draft, DraftOptions, SequenceStep, SiblingsName

MAX_TOKENS_PER_MESSAGE = 16_384
"""Tokens and feedback, 64 KiB of them: far below the message limit of any sensible server."""
MAX_SEQUENCES_PER_MESSAGE = 256
_MAX_ANSWER_BYTES = 700_000
"""Of the 1 MiB that client and server agree on."""
_NODE_BYTES, _CANDIDATE_BYTES = 16, 8


class InFlightBatch:
    """A batch of sequences, each of which waits or is resolved."""

    def __init__(self, steps: Sequence[SequenceStep], started_s: float, finished: Callable[[], None]) -> None:
        """Begin; ``finished`` is called once, when the last sequence is resolved in time."""
        self.steps = steps
        self.started_s = started_s
        self._finished = finished
        self.drafts: list[Draft] = [EMPTY_DRAFT] * len(steps)
        self.waiting = set(range(len(steps)))
        """Sequences that are not resolved."""
        self.num_exchanges = [0] * len(steps)
        self.has_failed = False
        """Whether any sequence got no answer."""
        self.failure: SpeculantError | None = None
        """Why, at first; None: it was not asked."""
        self.has_sent = False
        """Whether the drafter was asked for anything."""
        self.is_reached = False
        """Whether the drafter answered any message in time."""
        self.is_answered = False
        """Whether any sequence was answered in time."""
        self.is_over = False
        """Whether the caller has gone on; what comes now is late."""

    def resolve(self, index: int, draft: Draft = EMPTY_DRAFT) -> None:
        """Note the draft of a sequence, which waits no more."""
        if index not in self.waiting:
            return
        self.waiting.discard(index)
        self.drafts[index] = draft
        if not self.waiting:
            self._finished()

    def fail(self, index: int, error: SpeculantError | None) -> None:
        """Resolve a sequence without an answer."""
        if index in self.waiting:
            self.has_failed = True
            self.failure = self.failure or error
            self.resolve(index)


class Entry(NamedTuple):
    """One sequence of a message."""

    batch_index: int
    """In the batch; -1 if its answer is not waited for."""
    session: Session
    wire_id: int
    """The session's when it was sent."""
    start: int
    """Position of the first token sent."""
    end: int
    """Position after the last one."""

    @property
    def is_current(self) -> bool:
        """Whether the session is still the one that was sent."""
        return self.session.wire_id == self.wire_id


@dataclass(slots=True)
class Message:
    """The sequences of one message."""

    sequences: list[SequenceRequest] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class SentMessage:
    """A message that is not answered yet."""

    batch: InFlightBatch
    entries: list[Entry]
    budgets: list[int]
    """Most nodes per sequence."""


RequestedOptions = tuple[SiblingsName, CouplingName | None, int | None, float | None]
"""What steps want beside the client's settings: siblings, coupling, depth and temperature. One message, one of them."""
_NONE_REQUESTED: RequestedOptions = ("none", None, None, None)


def with_requested(options: DraftOptions, requested: RequestedOptions) -> DraftOptions:
    """Return how steps are drafted for."""
    if requested == _NONE_REQUESTED:
        return options
    siblings, coupling, max_depth, temperature = requested
    return replace(
        options,
        siblings=siblings,
        coupling=coupling,
        max_depth=max_depth or options.max_depth,
        temperature=temperature or options.temperature,
    )


def pack(batch: Sequence[tuple[int, SequenceStep, Session]], options: DraftOptions) -> Iterator[Message]:
    """Yield the messages that bring every sequence up to date and ask for its draft, in the order to send them.

    Long texts come first, in chunks of their own that ask for nothing.

    Args:
        batch: sequences of a step with their index in it and their open sessions.
        options: how drafts are asked for.
    """
    node_bytes = _NODE_BYTES
    if options.max_candidates and not options.omit_proposals:
        node_bytes += _CANDIDATE_BYTES * options.max_candidates
    message, num_tokens, num_bytes = Message(), 0, 0
    for index, step, session in batch:
        start, end = session.position, len(step.token_ids)
        feedback = session.fitting_feedback(step.feedback)
        while end - start > MAX_TOKENS_PER_MESSAGE:
            stop = start + MAX_TOKENS_PER_MESSAGE
            chunk = SequenceRequest(step.token_ids[start:stop], session.wire_id, start, 0, feedback=feedback)
            yield Message([chunk], [Entry(-1, session, session.wire_id, start, stop)])
            start, feedback = stop, None
        num_tokens += end - start
        num_bytes += step.node_budget * node_bytes
        if feedback is not None:
            num_tokens += feedback.rows.size
        if message.entries and (
            num_tokens > MAX_TOKENS_PER_MESSAGE
            or num_bytes > _MAX_ANSWER_BYTES
            or len(message.entries) == MAX_SEQUENCES_PER_MESSAGE
        ):
            yield message
            message = Message()
            num_tokens, num_bytes = end - start, step.node_budget * node_bytes
        message.sequences.append(
            SequenceRequest(
                step.token_ids[start:],
                session.wire_id,
                start,
                step.node_budget,
                step.seed,
                feedback,
                step.least_probability,
            )
        )
        message.entries.append(Entry(index, session, session.wire_id, start, end))
    if message.entries:
        yield message

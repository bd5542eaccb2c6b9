"""A batch cut into messages that a sensible drafter takes: tokens, sequences, and the size of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from speculant_graph.client.batches import Entry
from speculant_graph.client.sessions import Session
from speculant_graph.rpc.messages import SequenceRequest
from speculant_graph.types import DraftOptions, SequenceStep, SiblingsName

MAX_TOKENS_PER_MESSAGE = 16_384
"""Tokens and feedback, 64 KiB of them: far below the message limit of any sensible server."""
MAX_SEQUENCES_PER_MESSAGE = 256
_MAX_ANSWER_BYTES = 700_000
"""Of the 1 MiB that client and server agree on."""
_NODE_BYTES, _CANDIDATE_BYTES = 16, 8


RequestedOptions = tuple[SiblingsName, int | None, float | None]
"""What steps want beside the client's settings: siblings, depth and temperature. A message is for steps of the same."""
_NONE_REQUESTED: RequestedOptions = ("none", None, None)


def with_requested(options: DraftOptions, requested: RequestedOptions) -> DraftOptions:
    """Return how steps are drafted for."""
    if requested == _NONE_REQUESTED:
        return options
    siblings, max_depth, temperature = requested
    return replace(
        options,
        siblings=siblings,
        max_depth=max_depth or options.max_depth,
        temperature=temperature or options.temperature,
    )


@dataclass(slots=True)
class Message:
    """The sequences of one message."""

    sequences: list[SequenceRequest] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


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
            SequenceRequest(step.token_ids[start:], session.wire_id, start, step.node_budget, step.seed, feedback)
        )
        message.entries.append(Entry(index, session, session.wire_id, start, end))
    if message.entries:
        yield message

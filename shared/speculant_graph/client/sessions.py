"""What the client knows of its sessions: which are open, and the position the server expects next in each.

Pure bookkeeping: it decides what must be opened, sent and sent again, and neither sends nor waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speculant_graph.rpc.messages import (
    SequenceAnswer,
    SequenceRequest,
    SequenceStatus,
    StepAnswer,
    StepOptions,
    StepRequest,
)
from speculant_graph.types import SequenceStep

_MAX_TOKENS_PER_MESSAGE = 16_384
"""64 KiB: far below the message limit of any sensible server."""


@dataclass(slots=True)
class _Session:
    next_position: int = 0
    is_open: bool = False
    was_open: bool = False


class SessionTable:
    """The sessions of one client."""

    def __init__(self) -> None:
        """Make an empty table."""
        self._sessions: dict[int, _Session] = {}

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ids, as they were when the iteration began."""
        return iter(list(self._sessions))

    def add(self, session_id: int) -> None:
        """Note a session that is not open yet."""
        self._sessions[session_id] = _Session()

    def remove(self, session_id: int) -> bool:
        """Forget a session; return whether it is open at the server."""
        session = self._sessions.pop(session_id, None)
        return session is not None and session.is_open

    def note_open(self, session_id: int) -> bool:
        """Note that a session was opened and is empty; return whether it had been open before."""
        was_open = self._sessions[session_id].was_open
        self._sessions[session_id] = _Session(is_open=True, was_open=True)
        return was_open

    def note_answer(self, request: StepRequest, answer: StepAnswer) -> None:
        """Note what the server has taken; sessions that have ended meanwhile are passed over."""
        for sequence, outcome in zip(request.sequences, answer.sequences, strict=True):
            session = self._sessions.get(sequence.session_id or 0)
            if session is not None and outcome.status is SequenceStatus.OK:
                session.next_position = outcome.next_position

    def without_session(self, steps: Sequence[SequenceStep]) -> list[int]:
        """Return the sessions of a batch that must be opened first."""
        missing = []
        for step in steps:
            session = self._sessions.setdefault(step.session_id, _Session())
            # A sequence shorter than what the server has is another one.
            if not session.is_open or session.next_position > len(step.token_ids):
                missing.append(step.session_id)
        return missing

    def must_resend(self, session_id: int, answer: SequenceAnswer) -> bool:
        """Take a sequence's answer; return whether its tokens must be sent again, from the position now noted."""
        session = self._sessions[session_id]
        if answer.status in (SequenceStatus.OK, SequenceStatus.INVALID_TOKEN):
            return False  # what a server refuses once it will refuse again
        if answer.status is SequenceStatus.OUT_OF_SYNC and answer.next_position < session.next_position:
            session.next_position = answer.next_position
        else:
            session.is_open = False
        return True

    def requests(self, steps: Sequence[SequenceStep], options: StepOptions) -> list[StepRequest]:
        """Return the messages of a step: the last one drafts, others bring the tokens that do not fit into it."""
        share = max(_MAX_TOKENS_PER_MESSAGE // len(steps), 1)
        requests, last = [], []
        for step in steps:
            start, end = self._sessions[step.session_id].next_position, len(step.token_ids)
            while end - start > share:
                token_ids = tuple(step.token_ids[start : start + _MAX_TOKENS_PER_MESSAGE])
                part = SequenceRequest(token_ids, step.session_id, start, node_budget=0)
                requests.append(StepRequest((part,), options))
                start += len(token_ids)
            token_ids = tuple(step.token_ids[start:])
            last.append(SequenceRequest(token_ids, step.session_id, start, step.node_budget, step.seed))
        return [*requests, StepRequest(tuple(last), options)]

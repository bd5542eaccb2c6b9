"""Slow reference drafter: a session is the list of its tokens, and a draft is a digest of that list."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

from speculant_graph.rpc.v1 import drafter_pb2 as pb

VOCABULARY_SIZE = 1_000


def drafted(token_ids: Sequence[int], budget: int) -> tuple[int, ...]:
    """Return the chain for a text, by its checksum; different texts get different chains."""
    seed = zlib.crc32(repr(list(token_ids)).encode())
    return tuple((seed >> node) % VOCABULARY_SIZE for node in range(budget))


class DictDrafter:
    """A drafter whose sessions are a dictionary of lists."""

    def __init__(self) -> None:
        """Create a drafter without sessions."""
        self.sessions: dict[int, list[int]] = {}
        self.feedback: list[int] = []
        """Draft ids in the feedback received so far."""
        self._draft_ids = itertools.count(1)

    def open(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        """Open a session, or return the open one."""
        held = self.sessions.setdefault(request.session_id, [])
        return pb.OpenSessionResponse(vocabulary_size=VOCABULARY_SIZE, next_position=len(held))

    def close(self, session_id: int) -> None:
        """Close a session, known or not."""
        self.sessions.pop(session_id, None)

    def answer(self, payload: bytes) -> bytes:
        """Answer a message of the stream."""
        request = pb.StreamDraftRequest.FromString(payload)
        draft = request.draft
        answer = pb.DraftResponse(draft_id=next(self._draft_ids))
        count = len(draft.context_lengths)
        self.feedback += filter(None, draft.feedback_draft_ids)
        ends = list(itertools.accumulate(draft.context_lengths, initial=0))
        for index in range(count):
            token_ids = list(draft.context_tokens[ends[index] : ends[index + 1]])
            position = draft.positions[index] if draft.positions else 0
            session_id, budget = draft.session_ids[index], draft.node_budgets[index]
            status, chain = self._take(session_id, position, token_ids, budget)
            answer.sequence_statuses.append(status)
            answer.next_positions.append(len(self.sessions.get(session_id, ())))
            answer.draft_lengths.append(len(chain))
            answer.draft_tokens.extend(chain)
            answer.draft_parents.extend(range(len(chain)))
        return pb.StreamDraftResponse(step_id=request.step_id, draft=answer).SerializeToString()

    def _take(
        self, session_id: int, position: int, token_ids: list[int], budget: int
    ) -> tuple[pb.SequenceStatus, tuple[int, ...]]:
        held = self.sessions.get(session_id)
        if held is None:
            return pb.SEQUENCE_STATUS_SESSION_LOST, ()
        if position > len(held):
            return pb.SEQUENCE_STATUS_OUT_OF_SYNC, ()
        known = held[position : position + len(token_ids)]
        if known != token_ids[: len(known)]:
            del self.sessions[session_id]
            return pb.SEQUENCE_STATUS_SESSION_LOST, ()
        held += token_ids[len(known) :]
        return pb.SEQUENCE_STATUS_OK, drafted(held[: position + len(token_ids)], budget)

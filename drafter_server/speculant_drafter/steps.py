"""One step of a batch, from the bytes of a request to the bytes of an answer.

Runs on the event loop: a draft takes less time than handing it to a thread would.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from speculant_drafter.counts import ServerCounts
from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_drafter.sessions import Session, SessionStore, take
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.draft.batch import DraftBatch, batch_of
from speculant_graph.errors import DraftLimitError, DraftRequestError, UnknownGraphError
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import BatchAnswer, SequenceStatus, StepBatch
from speculant_graph.rpc.status import to_status
from speculant_graph.serving.access import EVERYBODY, Principal
from speculant_graph.serving.calls import log_failure
from speculant_graph.types import Draft, Feedback

_OK = SequenceStatus.OK
FIXED_BYTES, SEQUENCE_BYTES, NODE_BYTES, ENTRY_BYTES = 128, 24, 16, 8
"""Most bytes of an answer: of any, and for each sequence, node and entry of a distribution."""
_ENVELOPE_BYTES = 32
"""More than a step on the stream adds to its answer."""


class StepAnswerer:
    """Answers steps from sessions and graphs."""

    def __init__(
        self,
        config: ServerConfig,
        draft: DraftConfig,
        graphs: GraphRegistry,
        sessions: SessionStore,
        counts: ServerCounts,
    ) -> None:
        """Make one.

        Args:
            config: limits.
            draft: what a request leaves to the server.
            graphs: what is served.
            sessions: what is open.
            counts: where steps are counted.
        """
        self._config = config
        self._draft = draft
        self._graphs = graphs
        self._sessions = sessions
        self._counts = counts
        self._draft_ids = itertools.count(1)
        self._max_answer_bytes = config.max_message_bytes - _ENVELOPE_BYTES

    def answer_enveloped(self, payload: bytes, principal: Principal) -> bytes:
        """Return the StreamDraftResponse to a StreamDraftRequest; a step that is refused is part of it.

        Raises:
            DraftRequestError: it is no such message.
        """
        draft_id = next(self._draft_ids)
        step_id, request = convert.read_stream_step(payload)
        try:
            return convert.encode_stream_answer(step_id, self._answer(request, principal, draft_id))
        except Exception as error:
            self._counts.fail_step(log_failure("StreamDraft", error).name)
            return convert.encode_stream_failure(step_id, error)

    def answer(self, payload: bytes, principal: Principal) -> bytes:
        """Return the DraftResponse to a DraftRequest.

        Raises:
            SpeculantError: the step is refused.
        """
        draft_id = next(self._draft_ids)
        try:
            return self._answer(payload, principal, draft_id)
        except Exception as error:
            self._counts.fail_step(to_status(error)[0].name)
            raise

    def _answer(self, payload: bytes, principal: Principal, draft_id: int) -> bytes:
        """Answer any step.

        Raises:
            SpeculantError: the step is refused. Tokens of sequences before the one that is to blame were taken, which
                does no harm: they are recognised when they come again.
        """
        started_ns = time.perf_counter_ns()
        config = self._config
        batch = convert.decode_step_request(
            payload, max_sequences=config.max_sequences, max_tokens=config.max_tokens, max_nodes=config.max_nodes
        )
        budgets = self._budgets(batch)
        statuses, next_positions, sessions = self._take(batch, principal)
        drafts, generations = self._drafted(batch, budgets, statuses, sessions, principal, draft_id)
        distinct = {generation for generation in generations if generation} or {self._graphs.default_generation()}
        generation = distinct.pop() if len(distinct) == 1 else 0
        elapsed_ns = time.perf_counter_ns() - started_ns
        response = convert.encode_step_answer(
            BatchAnswer(
                generation,
                draft_id,
                statuses,
                next_positions,
                drafts,
                elapsed_ns,
                [] if generation else generations,
            )
        )
        if len(response) > self._max_answer_bytes:
            raise DraftLimitError(
                f"the answer is larger than {config.max_message_bytes} bytes; ask for fewer nodes, or send fewer "
                "sequences at a time"
            )
        self._counts.observe_step(elapsed_ns * 1e-9, len(batch))
        self._counts.drafted_nodes += len(drafts.token_ids)
        return response

    def _budgets(self, batch: StepBatch) -> list[int]:
        budgets = batch.node_budgets or [min(self._draft.k, self._config.max_nodes)] * len(batch)
        if sum(budgets) > self._config.max_step_nodes:
            raise DraftLimitError(
                f"{sum(budgets)} nodes asked for in one step; ask for at most {self._config.max_step_nodes} a step"
            )
        return budgets

    def _take(self, batch: StepBatch, principal: Principal) -> tuple[list[int], list[int], list[Session | None]]:
        """Take the tokens of all sessions; return statuses, next positions and the sessions."""
        numbers = [number for number in batch.session_ids if number]
        if len(set(numbers)) < len(numbers):
            raise DraftRequestError("a session is twice in one step; send one sequence for each")
        size = len(batch)
        statuses: list[int] = [_OK] * size
        next_positions = [0] * size
        sessions: list[Session | None] = [None] * size
        num_dropped = self._counts.ended_sessions["memory"]
        for place, session_id in enumerate(batch.session_ids):
            if not session_id:
                continue
            # Looked at first: a stranger's step must not keep a session from being idle.
            found = self._sessions.look_at(session_id)
            is_own = found is not None and _owns(principal, found)
            session = self._sessions.find(session_id) if is_own else None
            if session is None:
                statuses[place] = SequenceStatus.SESSION_LOST
                continue
            feedback = None if batch.feedback is None else batch.feedback[place]
            statuses[place] = self._accept(session, batch, place, feedback)
            if statuses[place] is SequenceStatus.SESSION_LOST:
                continue
            sessions[place] = session
            next_positions[place] = session.position
        if self._counts.ended_sessions["memory"] != num_dropped:
            self._note_dropped(statuses, next_positions, sessions)
        return statuses, next_positions, sessions

    def _note_dropped(self, statuses: list[int], next_positions: list[int], sessions: list[Session | None]) -> None:
        """Note the sequences whose sessions made room for others of the same step."""
        for place, session in enumerate(sessions):
            if session is not None and self._sessions.look_at(session.session_id) is not session:
                statuses[place], next_positions[place], sessions[place] = SequenceStatus.SESSION_LOST, 0, None

    def _accept(self, session: Session, batch: StepBatch, place: int, feedback: Feedback | None) -> SequenceStatus:
        position = batch.positions[place]
        status, tokens = take(session, position, batch.contexts[place])
        if status is SequenceStatus.SESSION_LOST:
            self._sessions.end(session, "diverged")
        if status is not _OK:
            return status
        drafter = session.graph.drafter
        if tokens.size:
            # Rows of a draft that is not the latest can't be placed, and those of a step sent again were taken. Without
            # a token none was verified; such rows would only pile up.
            if feedback is not None and position == session.position and feedback.draft_id == session.offered_id:
                drafter.recycle(session.session_id, feedback.nodes, feedback.rows)
            drafter.accept(session.session_id, tokens, is_prompt=session.is_in_prompt)
            session.position += tokens.size
            if drafter.num_bytes(session.session_id) != session.num_bytes:
                self._sessions.account(session)
        return status

    def _drafted(
        self,
        batch: StepBatch,
        budgets: Sequence[int],
        statuses: Sequence[int],
        sessions: Sequence[Session | None],
        principal: Principal,
        draft_id: int,
    ) -> tuple[DraftBatch, list[int]]:
        """Draft for all sequences that were taken; return drafts and the generation of each one's graph."""
        places_of: dict[ServedGraph, list[int]] = {}
        stateless: list[int] = []
        for place, session in enumerate(sessions):
            if session is not None and statuses[place] is _OK:
                places_of.setdefault(session.graph, []).append(place)
            elif not batch.session_ids[place]:
                stateless.append(place)
        # Drafts are cut before an answer is too large: one that is refused, or not, by the tokens that were drawn would
        # leave the verifier with tokens that are no draws from q.
        fixed_bytes = FIXED_BYTES + SEQUENCE_BYTES * len(batch) + NODE_BYTES * sum(budgets)
        max_support = max(1, (self._max_answer_bytes - fixed_bytes) // ENTRY_BYTES)
        parts: list[tuple[ServedGraph, list[int], DraftBatch]] = []
        for graph, places in places_of.items():
            drafted = graph.drafter.draft_batch(
                [batch.session_ids[place] for place in places],
                [budgets[place] for place in places],
                [batch.seeds[place] for place in places],
                batch.options,
                max_support,
            )
            max_support = max(1, max_support - drafted.candidate_token_ids.size)
            for place, length in zip(places, drafted.lengths, strict=True):
                session = sessions[place]
                if session is not None:
                    session.note_draft(draft_id, length)
                    session.is_in_prompt &= not budgets[place]
            parts.append((graph, places, drafted))
        if stateless:
            graph = self.graph_for(batch.graph, principal)
            drafted = graph.drafter.draft_contexts(
                [batch.contexts[place] for place in stateless],
                [budgets[place] for place in stateless],
                [batch.seeds[place] for place in stateless],
                [(batch.positions[place] + batch.contexts[place].size) % (1 << 64) for place in stateless],
                batch.options,
                max_support,
            )
            parts.append((graph, stateless, drafted))
        return self._joined(parts, sessions, budgets)

    def _joined(
        self,
        parts: list[tuple[ServedGraph, list[int], DraftBatch]],
        sessions: Sequence[Session | None],
        budgets: Sequence[int],
    ) -> tuple[DraftBatch, list[int]]:
        for _, places, drafted in parts:
            for place, length in zip(places, drafted.lengths, strict=True):
                if not length and budgets[place]:
                    self._counts.empty_drafts += 1
        size = len(sessions)
        if len(parts) == 1 and len(parts[0][1]) == size:
            graph, _, drafted = parts[0]
            return drafted, [graph.generation] * size
        # Several graphs, or sequences without a draft: rare enough to go by single drafts.
        drafts = [Draft() for _ in range(size)]
        generations = [0 if session is None else session.graph.generation for session in sessions]
        for graph, places, drafted in parts:
            for place, draft in zip(places, drafted.drafts(), strict=True):
                drafts[place], generations[place] = draft, graph.generation
        return batch_of(drafts), generations

    def graph_for(self, name: str, principal: Principal) -> ServedGraph:
        """Return a graph that the client may use; one that it may not is as unknown as one that is not there.

        Raises:
            UnknownGraphError: there is none of this name for it.
            DrafterUnavailableError: graphs are still being loaded.
        """
        graph = self._graphs.get(name)
        if principal is not EVERYBODY and not principal.may_use_graph(graph.name):
            raise UnknownGraphError("no graph of this name is served to this client; ask for one that is")
        return graph


def _owns(principal: Principal, session: Session) -> bool:
    return principal is EVERYBODY or principal.owns_tenant(session.tenant)

"""The servicer: validate, call, convert; nothing else.

Steps run on the event loop: a draft takes less time than handing it to a thread would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from speculant_drafter.interceptors import log_failure
from speculant_drafter.sessions import SessionStore
from speculant_graph import types
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftLimitError,
    TokenizerMismatchError,
    UnknownGraphError,
)
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import (
    OpenAnswer,
    SequenceAnswer,
    SequenceRequest,
    SequenceStatus,
    StepAnswer,
    StepOptions,
)
from speculant_graph.rpc.status import status_number, to_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceServicer
from speculant_graph.types import EMPTY_DRAFT

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
"""Name of the service, for health checks."""

_GENERATION = 1
_CANDIDATE_BYTES = 8
_ENVELOPE_BYTES = 32
"""More than a step on the stream adds to its answer."""


class _LoadedGraph:
    """A loaded graph and the sessions on it."""

    def __init__(self, graph: NgramGraph, config: ServerConfig, draft: DraftConfig, clock: Callable[[], float]) -> None:
        self.tokenizer = graph.metadata.tokenizer
        self.vocabulary_size = graph.vocabulary_size
        self.max_order = graph.metadata.max_order
        self.generator = DraftGenerator(graph, draft)
        self.sessions = SessionStore(
            self.max_order,
            max_sessions=config.max_sessions,
            idle_timeout_s=config.idle_timeout_s,
            clock=clock,
        )


class DrafterService(DrafterServiceServicer):
    """Drafts over the wire, from one graph."""

    def __init__(self, config: ServerConfig, draft: DraftConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Make a service that answers UNAVAILABLE until :meth:`serve` gives it a graph.

        Args:
            config: limits.
            draft: what a request leaves to the server.
            clock: monotonic time in seconds, for idle sessions.
        """
        self._config = config
        self._draft_config = draft
        self._clock = clock
        self._loaded: _LoadedGraph | None = None
        self._draft_ids = itertools.count(1)
        self._reading: set[asyncio.Task[Any]] = set()
        self._is_draining = False

    def serve(self, graph: NgramGraph) -> None:
        """Answer from ``graph`` from now on."""
        self._loaded = _LoadedGraph(graph, self._config, self._draft_config, self._clock)

    def drain(self) -> None:
        """End the streams, which would otherwise outlast any patience.

        Only those that wait for a request are cancelled: gRPC would leave a stream that is cancelled while its
        answer is sent open, and wait for it. The others end themselves before their next request.
        """
        self._is_draining = True
        for task in self._reading:
            task.cancel()

    async def Draft(self, request: pb.DraftRequest, context: Any) -> pb.DraftResponse:
        """Answer one step."""
        return self._answer(request)

    async def StreamDraft(
        self, requests: AsyncIterator[pb.StreamDraftRequest], context: Any
    ) -> AsyncIterator[pb.StreamDraftResponse]:
        """Answer steps in order; the failure of one is part of its answer."""
        while (request := await self._next_request(requests)) is not None:
            yield self._answer_in_band(request)

    async def _next_request(self, requests: AsyncIterator[pb.StreamDraftRequest]) -> pb.StreamDraftRequest | None:
        if self._is_draining:
            raise DrafterUnavailableError("the drafter is shutting down")
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        try:
            return await anext(requests, None)
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise DrafterUnavailableError("the drafter is shutting down") from None
        finally:
            self._reading.discard(task)

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionResponse:
        """Open a session, after comparing tokenizers."""
        served = self._served(request.graph)
        asked = convert.decode_open_request(request)
        if asked.tokenizer_sha256 and asked.tokenizer_sha256 != served.tokenizer.sha256:
            raise TokenizerMismatchError(
                f"the graph was built with tokenizer {served.tokenizer.name} ({served.tokenizer.sha256[:12]}), the "
                f"client uses one with digest {asked.tokenizer_sha256[:12]}; build the graph with the client's"
            )
        next_position = served.sessions.open(asked.session_id, asked.tenant, asked.idle_timeout_s)
        answer = OpenAnswer(_GENERATION, served.tokenizer, served.max_order, next_position)
        return convert.encode_open_answer(answer)

    async def CloseSession(self, request: pb.CloseSessionRequest, context: Any) -> pb.CloseSessionResponse:
        """Close a session, known or not."""
        self._served("").sessions.close(request.session_id, request.tenant)
        return pb.CloseSessionResponse()

    def _answer_in_band(self, request: pb.StreamDraftRequest) -> pb.StreamDraftResponse:
        try:
            return pb.StreamDraftResponse(step_id=request.step_id, draft=self._answer(request.draft))
        except Exception as error:
            code, message = to_status(error)
            log_failure("StreamDraft", code, error)
            failure = pb.StepError(code=status_number(code), message=message)
            return pb.StreamDraftResponse(step_id=request.step_id, error=failure)

    def _answer(self, message: pb.DraftRequest) -> pb.DraftResponse:
        started_ns = time.perf_counter_ns()
        served = self._served(message.graph)
        request = convert.decode_step_request(message, max_sequences=self._config.max_sequences)
        sequences = []
        num_candidates = 0
        for entry in request.sequences:
            sequences.append(self._answer_sequence(served, entry, request.options))
            num_candidates += sum(len(proposal.token_ids) for proposal in sequences[-1].draft.proposals)
            # Stop before the distributions of a large batch fill the memory, not when they are packed.
            if num_candidates * _CANDIDATE_BYTES > self._config.max_message_bytes:
                raise self._too_large()
        server_time_ns = time.perf_counter_ns() - started_ns
        answer = StepAnswer(_GENERATION, next(self._draft_ids), tuple(sequences), server_time_ns)
        response = convert.encode_step_answer(answer)
        if response.ByteSize() > self._config.max_message_bytes - _ENVELOPE_BYTES:
            raise self._too_large()
        return response

    def _too_large(self) -> DraftLimitError:
        return DraftLimitError(
            f"the answer is larger than {self._config.max_message_bytes} bytes; set omit_proposals or max_candidates, "
            "or send fewer sequences at a time"
        )

    def _answer_sequence(self, served: _LoadedGraph, request: SequenceRequest, options: StepOptions) -> SequenceAnswer:
        session_id = request.session_id
        if session_id is None:
            end = request.position + len(request.token_ids)
            draft = self._draft(served, request, options, request.token_ids, end)
            return SequenceAnswer(SequenceStatus.OK, 0, draft)
        taken = served.sessions.take(session_id, request.position, request.token_ids)
        if taken.status is not SequenceStatus.OK:
            return SequenceAnswer(taken.status, taken.next_position)
        draft = self._draft(served, request, options, taken.context, taken.end)
        return SequenceAnswer(SequenceStatus.OK, taken.next_position, draft)

    def _draft(
        self,
        served: _LoadedGraph,
        request: SequenceRequest,
        options: StepOptions,
        context: tuple[int, ...],
        position: int,
    ) -> types.Draft:
        budget = self._draft_config.k if request.node_budget is None else request.node_budget
        if budget == 0:
            return EMPTY_DRAFT
        draft = served.generator.draft(
            context[-served.max_order :],
            min(budget, self._config.max_nodes),
            options.strategy or self._draft_config.strategy,
            seed=request.seed,
            position=position,
            max_candidates=options.max_candidates or self._draft_config.max_candidates,
        )
        return dataclasses.replace(draft, proposals=()) if options.omit_proposals else draft

    def _served(self, graph: str) -> _LoadedGraph:
        if self._loaded is None:
            raise DrafterUnavailableError("the drafter is loading its graph; try again in a moment")
        if graph:
            raise UnknownGraphError("one graph is served here; leave the graph's name empty")
        return self._loaded

"""The drafter's methods: drafting, and the sessions it needs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from speculant_drafter.counts import ServerCounts
from speculant_drafter.graphs import GraphRegistry
from speculant_drafter.sessions import SessionStore
from speculant_drafter.steps import StepAnswerer
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftRequestError,
    TokenizerMismatchError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import OpenAnswer
from speculant_graph.rpc.status import to_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.calls import Call, CallInterceptor

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
"""Name of the service, for health checks."""

_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


class DrafterService:
    """Drafts over the wire."""

    def __init__(
        self,
        graphs: GraphRegistry,
        sessions: SessionStore,
        steps: StepAnswerer,
        counts: ServerCounts,
    ) -> None:
        """Make a service.

        Args:
            graphs: what is served.
            sessions: what is open.
            steps: answers steps.
            counts: where failures are counted.
        """
        self._graphs = graphs
        self._sessions = sessions
        self._steps = steps
        self._counts = counts
        self._reading: set[asyncio.Task[Any]] = set()
        self._is_draining = False

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return what a server answers the service's methods with."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Draft": interceptor.unary("Draft", self.draft),
                "StreamDraft": interceptor.stream("StreamDraft", self.stream_draft),
                "OpenSession": interceptor.unary("OpenSession", self.open_session),
                "CloseSession": interceptor.unary("CloseSession", self.close_session),
            },
        )

    def drain(self) -> None:
        """End the streams, which would otherwise outlast any patience.

        Only those that wait for a request are cancelled: gRPC would leave a stream that is cancelled while its
        answer is sent open, and wait for it. The others end themselves before their next request.
        """
        self._is_draining = True
        for task in self._reading:
            task.cancel()

    async def draft(self, payload: bytes, call: Call) -> bytes:
        """Answer one step."""
        return self._steps.answer(payload, call.principal)

    async def stream_draft(self, call: Call) -> None:
        """Answer steps in order; the failure of one is part of its answer."""
        context, principal = call.context, call.principal
        while (payload := await self._next_request(context)) is not _END_OF_STREAM:
            await context.write(self._steps.answer_enveloped(payload, principal))

    async def _next_request(self, context: Any) -> Any:
        if self._is_draining:
            raise DrafterUnavailableError("the drafter is shutting down")
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise DrafterUnavailableError("the drafter is shutting down") from None
        finally:
            self._reading.discard(task)

    async def open_session(self, payload: bytes, call: Call) -> bytes:
        """Open a session, after comparing tokenizers."""
        try:
            return await self._open_session(payload, call)
        except Exception as error:
            self._counts.refused_openings[to_status(error)[0].name] += 1
            raise

    async def _open_session(self, payload: bytes, call: Call) -> bytes:
        asked = convert.decode_open_request(parsed(pb.OpenSessionRequest, payload))
        tenant = call.principal.require_tenant(asked.tenant)
        served = self._steps.graph_for(asked.graph, call.principal)
        if asked.tokenizer_sha256 and asked.tokenizer_sha256 != served.tokenizer.sha256:
            raise TokenizerMismatchError(
                f"the graph was built with tokenizer {served.tokenizer.name} ({served.tokenizer.sha256[:12]}), the "
                f"client uses one with digest {asked.tokenizer_sha256[:12]}; build the graph with the client's"
            )
        # A tenant's text may have to be read from disk, which no step should wait for.
        memory = await self._graphs.load_memory(served, tenant)
        served = self._steps.graph_for(asked.graph, call.principal)  # it may have been replaced meanwhile
        session = self._sessions.open(
            asked.session_id,
            served,
            tenant,
            idle_timeout_s=asked.idle_timeout_s,
            learn=asked.learn,
            cost=asked.cost,
        )
        del memory
        graph = session.graph
        answer = OpenAnswer(
            graph.generation, graph.tokenizer, graph.graph.max_order, self._sessions.position(asked.session_id)
        )
        return convert.encode_open_answer(answer).SerializeToString()

    async def close_session(self, payload: bytes, call: Call) -> bytes:
        """Close a session; one that is unknown, or another's, is none of the caller's business."""
        asked = parsed(pb.CloseSessionRequest, payload)
        tenant = call.principal.require_tenant(asked.tenant)
        session = self._sessions.look_at(asked.session_id)
        if session is not None and session.tenant == tenant:
            self._sessions.end(asked.session_id)
        return pb.CloseSessionResponse().SerializeToString()


def parsed(message_class: Any, payload: bytes) -> Any:
    """Return a message of a class.

    Raises:
        DraftRequestError: it is none.
    """
    try:
        message: Message = message_class.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the message can't be parsed; send one of this service's protocol") from None
    return message

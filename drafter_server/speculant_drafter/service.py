"""The drafter's RPC methods: drafting, sessions, and administration of graphs.

The C++ core answers steps on the event loop, because a draft takes less time than a switch to a thread. Steps with many
tokens or nodes run in threads, so that other steps do not wait for them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_drafter.metrics import ServerMetrics
from speculant_drafter.sessions import LIMITS, Limits, SessionStore
from speculant_graph import _core
from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import changed
from speculant_graph.errors import (
    DraftRequestError,
    GraphFileError,
    ShutdownError,
    TokenizerMismatchError,
    UnknownGraphError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.status import to_status
from speculant_graph.rpc.step_messages import OpenResponse
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.access import ALL, ANONYMOUS, Principal
from speculant_graph.serving.grpc_endpoint import Call, CallInterceptor, log_failure

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
ADMIN_SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterAdminService"].full_name
"""Names of the services, for health checks."""

_MOST_AT_ONCE_NS = 2_000_000
"""Time limit in nanoseconds for a step on the event loop; a step that may take longer runs in a thread. Switching to a
thread takes 0.1 ms, and the steps of typical batches stay below this limit."""
_NUM_LONG_STEPS = 4
"""Number of threads for steps that may take long. With several threads, one long step can't block the other long steps;
with only a few, the event loop still gets a core."""
_ANY_CONFIG = DraftConfig()
_Counted = tuple[bytes, int, int, int, int, int]
"""An encoded response, and five figures of its step: sequences, nodes, empty drafts, sequences drafted without the
neural model, and nanoseconds."""
_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


def shutting_down() -> ShutdownError:
    """Return the error for requests during shutdown."""
    return ShutdownError("the drafter is shutting down", fix="ask another, or try again later")


class DrafterService:
    """The gRPC service that drafts for sessions."""

    def __init__(
        self,
        draft: DraftConfig,
        graphs: GraphRegistry,
        sessions: SessionStore,
        metrics: ServerMetrics,
        limits: Limits = LIMITS,
    ) -> None:
        """Make a service.

        Args:
            draft: defaults for options that requests leave out.
            graphs: the served graphs.
            sessions: the open sessions.
            metrics: counters of steps and failures.
            limits: limits for the size of a message and its step.
        """
        self._graphs = graphs
        self._sessions = sessions
        self._metrics = metrics
        self._draft_ids = itertools.count(1)
        self._core = _core.StepHandler(
            sessions.table,
            check_options=_check_options,
            graph_of=partial(_drafter_of, graphs),
            default_generation=partial(_default_generation, graphs),
            max_sequences=limits.max_sequences,
            max_tokens=limits.max_tokens,
            max_nodes=limits.max_nodes,
            max_step_nodes=limits.max_step_nodes,
            max_message_bytes=limits.max_message_bytes,
            budget=min(draft.k, limits.max_nodes),
        )
        self._long_steps = ThreadPoolExecutor(_NUM_LONG_STEPS, "long-steps")
        self._reading: set[asyncio.Task[Any]] = set()
        self._is_draining = False

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the gRPC handler of the service's methods."""
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
        """End the clients' open streams for a shutdown; otherwise they would stay open.

        Only streams that wait for a request are cancelled. gRPC leaves a stream open, and waits for it, if the stream
        is cancelled while its response is being sent. Streams that are busy with a step end themselves before they read
        their next request.
        """
        self._is_draining = True
        for task in self._reading:
            task.cancel()

    async def draft(self, payload: bytes, call: Call) -> bytes:
        """Handle one step."""
        return await self.answer(payload, call.principal)

    async def stream_draft(self, _requests: object, call: Call) -> None:
        """Handle steps in order; the response to a failed step contains the error."""
        context, principal = call.context, call.principal
        while (payload := await self._next_request(context)) is not _END_OF_STREAM:
            await context.write(await self.answer_enveloped(payload, principal))

    async def _next_request(self, context: Any) -> Any:
        if self._is_draining:
            raise shutting_down()
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise shutting_down() from None
        finally:
            self._reading.discard(task)

    async def open_session(self, payload: bytes, call: Call) -> bytes:
        """Compare the client's tokenizer with the graph's, and open a session."""
        try:
            return await self._open_session(payload, call)
        except Exception as error:
            self._metrics.refused_openings.labels(to_status(error)[0].name).inc()
            raise

    async def _open_session(self, payload: bytes, call: Call) -> bytes:
        asked = convert.decode_open_request(parsed(pb.OpenSessionRequest, payload))
        tenant = call.principal.require_tenant(asked.tenant)
        name = asked.graph or self._graphs.default_of(tenant)
        served = _graph_for(self._graphs, name, call.principal)
        if asked.tokenizer_sha256 and asked.tokenizer_sha256 != served.tokenizer.sha256:
            raise TokenizerMismatchError(
                f"its graph was built with tokenizer {served.tokenizer.name} ({served.tokenizer.sha256[:12]}), not "
                f"with the client's ({asked.tokenizer_sha256[:12]}); build the graph with the client's tokenizer"
            )
        # Reading a tenant's text from disk must not delay steps.
        memory = await asyncio.to_thread(served.drafter.learned.memory, tenant)
        served = _graph_for(self._graphs, name, call.principal)  # may have been replaced during the read
        session = self._sessions.open(asked.session_id, served, memory, learn=asked.learn)
        graph = session.graph
        position = self._sessions.table.position(asked.session_id) or 0
        answer = OpenResponse(graph.generation, graph.tokenizer, graph.graph.max_order, position)
        return convert.encode_open_response(answer).SerializeToString()

    async def close_session(self, payload: bytes, call: Call) -> bytes:
        """Close a session; an unknown session, or one of another tenant, is ignored."""
        asked = parsed(pb.CloseSessionRequest, payload)
        tenant = call.principal.require_tenant(asked.tenant)
        session = self._sessions.find(asked.session_id)
        if session is not None and session.memory.tenant == tenant:
            self._sessions.end(asked.session_id)
        return pb.CloseSessionResponse().SerializeToString()

    # --- steps

    async def answer_enveloped(self, payload: bytes, principal: Principal) -> bytes:
        """Return the StreamDraftResponse to a StreamDraftRequest; for a refused step it contains the error.

        Raises:
            DraftRequestError: the payload is not a StreamDraftRequest.
        """
        try:
            return await self._answer(payload, principal, is_enveloped=True)
        except Exception as error:
            return self._failure(payload, error)

    def answer_at_once(self, payload: bytes, principal: Principal) -> bytes | None:
        """Answer like :meth:`answer_enveloped`, or return None without any effect if the step may take long.

        Raises:
            DraftRequestError: the payload is not a StreamDraftRequest.
        """
        try:
            return self._counted(self._call(payload, principal, is_enveloped=True)(_MOST_AT_ONCE_NS))
        except Exception as error:
            return self._failure(payload, error)
        finally:
            self._sessions.resolve_ended()

    def _failure(self, payload: bytes, error: Exception) -> bytes:
        step_id = convert.read_step_id(payload)
        self._metrics.failed_steps.labels(log_failure("StreamDraft", error).name).inc()
        return convert.encode_step_failure(step_id, error)

    async def answer(self, payload: bytes, principal: Principal) -> bytes:
        """Return the DraftResponse to a DraftRequest.

        Raises:
            SpeculantError: the step is refused.
        """
        try:
            return await self._answer(payload, principal, is_enveloped=False)
        except Exception as error:
            self._metrics.failed_steps.labels(to_status(error)[0].name).inc()
            raise

    async def _answer(self, payload: bytes, principal: Principal, *, is_enveloped: bool) -> bytes:
        call = self._call(payload, principal, is_enveloped=is_enveloped)
        try:
            counted = call(_MOST_AT_ONCE_NS)
            if counted is None:
                counted = await asyncio.get_running_loop().run_in_executor(self._long_steps, call)
        finally:
            self._sessions.resolve_ended()
        answer = self._counted(counted)
        assert answer is not None
        return answer

    def _call(self, payload: bytes, principal: Principal, *, is_enveloped: bool) -> Callable[..., _Counted | None]:
        tenants = None if principal is ANONYMOUS or ALL in principal.tenants else list(principal.tenants)
        now_ns = self._sessions.now_ns()
        return partial(self._core.answer, payload, is_enveloped, tenants, next(self._draft_ids), now_ns, principal)

    def _counted(self, counted: _Counted | None) -> bytes | None:
        if counted is None:
            return None
        answer, num_sequences, num_nodes, num_empty, num_without_neural, elapsed_ns = counted
        self._metrics.steps.inc()
        self._metrics.step_seconds.observe(elapsed_ns * 1e-9)
        self._metrics.sequences.inc(num_sequences)
        self._metrics.drafted_nodes.inc(num_nodes)
        self._metrics.empty_drafts.inc(num_empty)
        self._metrics.without_neural.inc(num_without_neural)
        return answer


def _check_options(options: bytes) -> None:
    """Raise an error for StrategyOptions that are unsupported or out of bounds."""
    changed(_ANY_CONFIG, convert.decode_options(options))


def _default_generation(graphs: GraphRegistry) -> int:
    """Return the default graph's generation, which a response reports if no graph drafted for it."""
    return graphs.get("").generation


def _drafter_of(graphs: GraphRegistry, name: str, principal: Principal) -> tuple[_core.Drafter, int]:
    """Return a graph's drafter, which serves sequences without a session, and the graph's generation."""
    served = _graph_for(graphs, name, principal)
    return served.drafter.core, served.generation


def _graph_for(graphs: GraphRegistry, name: str, principal: Principal) -> ServedGraph:
    """Return the graph of a requested name, if the client may use it.

    Raises:
        UnknownGraphError: no graph has this name, or the client may not use it.
        UnavailableError: graphs are still being loaded.
    """
    if principal is not ANONYMOUS and not all(map(principal.may_use_graph, graphs.names_of(name))):
        raise UnknownGraphError("no graph of this name is served to this client; ask for one that is")
    return graphs.get(name)


class DrafterAdminService:
    """The gRPC service that administers graphs."""

    def __init__(self, graphs: GraphRegistry) -> None:
        """Make the service for the served graphs."""
        self._graphs = graphs

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the gRPC handler of the service's methods."""
        return grpc.method_handlers_generic_handler(
            ADMIN_SERVICE_NAME,
            {
                "ListGraphs": interceptor.unary("ListGraphs", self.list_graphs),
                "ReloadGraph": interceptor.unary("ReloadGraph", self.reload_graph),
            },
        )

    async def list_graphs(self, payload: bytes, call: Call) -> bytes:
        """Describe the served graphs."""
        call.principal.require_admin()
        parsed(pb.ListGraphsRequest, payload)
        return pb.ListGraphsResponse(graphs=map(_info, self._graphs)).SerializeToString()

    async def reload_graph(self, payload: bytes, call: Call) -> bytes:
        """Load a graph's file again, and replace the served generation."""
        call.principal.require_admin()
        try:
            served = await self._graphs.reload(parsed(pb.ReloadGraphRequest, payload).name)
        except GraphFileError as error:  # administrators may see the details
            raise error.as_class(DraftRequestError) from error
        return pb.ReloadGraphResponse(graph=_info(served)).SerializeToString()


def _info(served: ServedGraph) -> pb.GraphInfo:
    return pb.GraphInfo(
        name=served.name,
        generation=served.generation,
        corpus_tokens=served.graph.metadata.num_tokens,
        max_order=served.graph.max_order,
        vocabulary_size=served.tokenizer.vocabulary_size,
        tokenizer_sha256=bytes.fromhex(served.tokenizer.sha256),
        tokenizer_name=served.tokenizer.name,
        file_bytes=served.file_bytes,
        open_sessions=served.num_sessions,
    )


def parsed(message_class: Any, payload: bytes) -> Any:
    """Parse a request's bytes as a protobuf message of the given class.

    Raises:
        DraftRequestError: the payload can't be parsed.
    """
    try:
        message: Message = message_class.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the message can't be parsed; send one of this service's protocol") from None
    return message
